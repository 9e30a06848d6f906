"""What workers report about their claimed jobs."""

from __future__ import annotations

import msgspec

from casque import checks
from casque.errors import InvalidInputError
from casque.types import Backoff, Progress


class Lease(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A job's lease, as its holder knows it. Without a token: any holder. A heartbeat may report progress; None leaves
    it
    unchanged."""

    job_id: str
    token: int | None = None
    progress: Progress | None = None


class Outcome(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The outcome of a claimed job: done without an error, failed with one.

    A failed job waits for `delay_ms`, which takes precedence over `backoff`; with neither it is due again at once. With
    `final` it is dead, however many attempts it has left, because another attempt would not help. `result` goes to the
    archive, and only for a job that is done.

    `crashed`: the worker process died. A job with `max_crashes` counts that apart from its attempts; for any other job
    it is an ordinary failure. `snoozed`: the job was not ready to run; it is due again after `delay_ms`, and this was
    no attempt. `cancelled`: the job is no longer needed; `error` may say why. `declined`: the worker does not
    understand the job, because another version of the program enqueued it, and `error` says why; the job waits for a
    worker that does, this was no attempt, and after too many of these it is dead.
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
        """True for a plain done or failed."""
        return not (self.crashed or self.snoozed or self.cancelled or self.declined)


def is_silent_ack(outcome: Outcome) -> bool:
    """True for a plain ack without a result: the most common outcome, recognised with one comparison."""
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
    """Check that the fields fit together; numbers and texts are checked elsewhere.

    Raises:
        InvalidInputError: names the fields that do not.
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
