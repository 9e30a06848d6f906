"""What workers report about their claimed jobs."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, assert_never

import msgspec

from casque.errors import InvalidInputError
from casque.types import Backoff, Progress


class Lease(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A job's lease, as its holder knows it. Without a token: any holder. A heartbeat may report progress; None leaves
    it unchanged."""

    job_id: str
    token: int | None = None
    progress: Progress | None = None


class OutcomeKind(StrEnum):
    """What became of a claimed job."""

    DONE = "done"
    FAILED = "failed"
    """The job runs again, if it has attempts left."""
    FINAL = "final"
    """It failed and is dead, however many attempts it has left, because another one would not help."""
    CRASHED = "crashed"
    """The worker process died. A job with `max_crashes` counts that apart from its attempts; for any other job it is an
    ordinary failure."""
    SNOOZED = "snoozed"
    """It was not ready to run: it is due again after `delay_ms`, and this was no attempt."""
    CANCELLED = "cancelled"
    """It is no longer needed; `error` may say why."""
    DECLINED = "declined"
    """The worker does not understand the job, because another version of the program enqueued it, and `error` says why.
    It waits for a worker that does, this was no attempt, and after too many of these it is dead."""


# For the state machine: Python 3.11 takes 70 ns to look up a member of an enum, and 10 for one of these.
DONE: Final = OutcomeKind.DONE
FAILED: Final = OutcomeKind.FAILED
FINAL: Final = OutcomeKind.FINAL
CRASHED: Final = OutcomeKind.CRASHED
SNOOZED: Final = OutcomeKind.SNOOZED
CANCELLED: Final = OutcomeKind.CANCELLED
DECLINED: Final = OutcomeKind.DECLINED

FAILURES = frozenset({FAILED, FINAL, CRASHED})
"""The attempt failed: there is an error, and a back-off unless `delay_ms` says how long the job waits."""


class Outcome(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The outcome of a claimed job: done without an error, failed with one, or what `how` says.

    A failed job waits for `delay_ms`, which takes precedence over `backoff`; with neither it is due again at once.
    `result` goes to the archive, and only for a job that is done.
    """

    job_id: str
    token: int
    error: str | None = None
    result: bytes | None = None
    delay_ms: int | None = None
    backoff: Backoff | None = None
    how: OutcomeKind | None = None

    @property
    def kind(self) -> OutcomeKind:
        """What became of the job, also where `how` is left out."""
        if self.how is not None:
            return self.how
        return DONE if self.error is None else FAILED


def is_silent_ack(outcome: Outcome) -> bool:
    """True for a plain ack without a result: the most common outcome, recognised with one comparison."""
    return (
        outcome.error is None
        and outcome.result is None
        and outcome.delay_ms is None
        and outcome.backoff is None
        and outcome.how is None
    )


def check_outcome(outcome: Outcome) -> None:
    """Check that the fields fit together; numbers and texts are checked elsewhere.

    Raises:
        InvalidInputError: names the fields that do not.
    """
    if outcome.how is not None and type(outcome.how) is not OutcomeKind:
        raise InvalidInputError(f"how must be an OutcomeKind, not a {type(outcome.how).__name__}")
    waits, backs_off = outcome.delay_ms is not None, outcome.backoff is not None
    match outcome.kind:
        case OutcomeKind.DONE:
            if outcome.error is not None:
                raise InvalidInputError("a job that is done has no error: leave out how, or the error")
            if waits or backs_off:
                raise InvalidInputError("delay_ms and backoff are for a job that failed: give its error as well")
        case OutcomeKind.FAILED | OutcomeKind.FINAL | OutcomeKind.CRASHED:
            if outcome.error is None:
                raise InvalidInputError(f"{outcome.kind} is for a job that failed: give its error as well")
            if outcome.result is not None:
                raise InvalidInputError("a job that failed has no result: give an error or a result, not both")
        case OutcomeKind.SNOOZED:
            if outcome.error is not None or outcome.result is not None or backs_off:
                raise InvalidInputError("a snoozed job has a delay_ms, and no error, result or backoff")
        case OutcomeKind.CANCELLED:
            if outcome.result is not None or waits or backs_off:
                raise InvalidInputError("a cancelled job may have an error that says why, and nothing else")
        case OutcomeKind.DECLINED:
            if outcome.error is None or outcome.result is not None or backs_off:
                raise InvalidInputError("a declined job has an error that says why, and no result or backoff")
        case never:
            assert_never(never)
