"""What workers say of the jobs that they claimed."""

from __future__ import annotations

import msgspec

from casque import checks
from casque.errors import InvalidInputError
from casque.types import Backoff, Progress


class Lease(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The right to work on a job, as its holder knows it. Without a token: whoever holds it. With a heartbeat, how far
    the work has come may be told; None for no more than was told before."""

    job_id: str
    token: int | None = None
    progress: Progress | None = None


class Outcome(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What became of a claimed job: without an error it is done, with one it failed.

    Of a job that failed, `delay_ms` says how long it waits and wins over `backoff`; with neither it is due again at
    once. With `final` it is dead, however many attempts it has left: trying again will not help. `result` is for the
    archive, and only of a job that is done.

    `crashed`: the process that worked on it died. A job with `max_crashes` counts that apart from its attempts; of any
    other it is a failure like others. `snoozed`: its time had not come; it is due again after `delay_ms`, and this
    was no attempt. `cancelled`: it need not be done any more; `error` may say why. `declined`: its worker does not
    understand it, because another version of the program enqueued it, and `error` says what; it waits for a worker that
    does, this was no attempt, and after too many of these it is dead.
    """

    job_id: str
    token: int
    error: str | None = None
    result: bytes | None = None
    delay_ms: int | None = None
    backoff: Backoff | None = None
    final: bool = False
    crashed: bool = False
    snoozed: bool = False
    cancelled: bool = False
    declined: bool = False

    @property
    def plain(self) -> bool:
        """Whether it is nothing but done, or failed."""
        return not (self.crashed or self.snoozed or self.cancelled or self.declined)


def is_silent_ack(outcome: Outcome) -> bool:
    """Done, and nothing else is said: what most outcomes are, so that one look is enough for them."""
    return (
        outcome.error is None
        and outcome.result is None
        and outcome.delay_ms is None
        and outcome.backoff is None
        and outcome.final is False
        and outcome.crashed is False
        and outcome.snoozed is False
        and outcome.cancelled is False
        and outcome.declined is False
    )


def check_outcome(outcome: Outcome) -> None:
    """That what it says fits together; its numbers and texts are checked elsewhere.

    Raises:
        InvalidInputError: names what does not belong together.
    """
    for flag in ("final", "crashed", "snoozed", "cancelled", "declined"):
        checks.flag(flag, getattr(outcome, flag))
    if outcome.crashed + outcome.snoozed + outcome.cancelled + outcome.declined > 1:
        raise InvalidInputError("a claimed job crashed, was snoozed, cancelled or declined, and not several of these")
    waits = outcome.delay_ms is not None
    retries = outcome.backoff is not None or outcome.final
    if outcome.snoozed:
        if outcome.error is not None or outcome.result is not None or retries:
            raise InvalidInputError("a snoozed job has a delay_ms, and no error, result, backoff or final")
    elif outcome.declined:
        if outcome.error is None or outcome.result is not None or retries:
            raise InvalidInputError("a declined job has an error that says why, and no result, backoff or final")
    elif outcome.cancelled:
        if outcome.result is not None or waits or retries:
            raise InvalidInputError("a cancelled job may have an error that says why, and nothing else")
    elif outcome.error is None:
        if waits or retries or outcome.crashed:
            raise InvalidInputError(
                "delay_ms, backoff, final and crashed are for a job that failed: give its error as well"
            )
    elif outcome.result is not None:
        raise InvalidInputError("a job that failed has no result: give an error or a result, not both")
