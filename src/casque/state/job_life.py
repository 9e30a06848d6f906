"""The life of a job: which event takes it from which state to which, and what becomes of its record.

Applying an event makes no checks and no choices, so an old history replays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from casque.service import Outcome
from casque.state.events import (
    Acked,
    Added,
    Advanced,
    Beaten,
    Cancelled,
    Claimed,
    Crashed,
    Declined,
    Died,
    Expired,
    Lapsed,
    Nacked,
    Purged,
    Quarantined,
    Rescheduled,
    Returned,
    Revived,
    Snoozed,
    Withdrawn,
)
from casque.state.facet import Methods
from casque.types import TRIES_MAX, Attempt, Ending, Finished, JobRecord, JobState

if TYPE_CHECKING:
    from casque.state.machine import State

READY, DELAYED, RUNNING, DEAD = JobState.READY, JobState.DELAYED, JobState.RUNNING, JobState.DEAD
DONE, CANCELLED = JobState.DONE, JobState.CANCELLED
ABSENT = None
"""Not added yet, or purged."""

LEASE_RAN_OUT = "the lease ran out: its worker stopped sending heartbeats"


class Step(NamedTuple):
    """What an event does to a job."""

    before: tuple[JobState | None, ...]
    """The states that a job may be in when it happens."""
    after: tuple[JobState | None, ...]
    """The states that it may be in then. Done and cancelled jobs leave the table of jobs."""
    applier: str


UNFINISHED = (READY, DELAYED, RUNNING)

LIFE: Mapping[type[msgspec.Struct], Step] = {
    Added: Step((ABSENT,), (READY, DELAYED), "apply_added"),
    Claimed: Step((READY, DELAYED), (RUNNING,), "apply_claimed"),
    Beaten: Step((RUNNING,), (RUNNING,), "apply_beaten"),
    Advanced: Step((RUNNING,), (RUNNING,), "apply_advanced"),
    Acked: Step(UNFINISHED, (DONE,), "apply_acked"),
    Nacked: Step((RUNNING,), (READY, DELAYED), "apply_nacked"),
    Returned: Step((RUNNING,), (READY,), "apply_returned"),
    Snoozed: Step((RUNNING,), (READY, DELAYED), "apply_snoozed"),
    Declined: Step((RUNNING,), (DELAYED,), "apply_declined"),
    Expired: Step((RUNNING,), (READY,), "apply_expired"),
    Crashed: Step((RUNNING,), (READY, DELAYED), "apply_crashed"),
    Died: Step((RUNNING,), (DEAD,), "apply_died"),
    Quarantined: Step((RUNNING,), (DEAD,), "apply_quarantined"),
    Cancelled: Step(UNFINISHED, (CANCELLED,), "apply_cancelled"),
    Withdrawn: Step((RUNNING,), (CANCELLED,), "apply_withdrawn"),
    Lapsed: Step((READY, DELAYED), (CANCELLED,), "apply_lapsed"),
    Rescheduled: Step((READY, DELAYED), (READY, DELAYED), "apply_rescheduled"),
    Revived: Step((DEAD,), (READY,), "apply_revived"),
    Purged: Step((DEAD,), (ABSENT,), "apply_purged"),
}
"""The life of a job, as `docs/explanation/the-life-of-a-job.md` tells it. A delayed job whose time has come is claimed
from where it is: that it is due now is no event."""

FINISHING = tuple(event for event, step in LIFE.items() if set(step.after) <= {DONE, DEAD, CANCELLED})
"""The events that finish a job: after each of these it is to be in the archive."""

APPLIERS: Methods = {event: step.applier for event, step in LIFE.items()}


# --- A job comes ---


def apply_added(state: State, event: Added, at_ms: int) -> JobRecord:
    # A job that was read is due at the time of its commit, mostly: one number for both.
    due_ms = at_ms if event.due_ms == at_ms else event.due_ms
    job = JobRecord(event.spec, event.sequence, at_ms, DELAYED if event.delayed else READY, due_ms)
    state.table.put(job)
    return job


def apply_added_run(state: State, events: list[Added], at_ms: int) -> list[JobRecord]:
    """What `apply_added` does with each of them, for jobs that are alike, due and without keys."""
    added = [JobRecord(event.spec, event.sequence, at_ms, READY, event.due_ms) for event in events]
    state.table.put_run(added)
    return added


def apply_added_all(state: State, events: list[Added], at_ms: int) -> None:
    """The same for any that come in their order and are new together."""
    if events:
        state.table.put_all(
            [
                JobRecord(event.spec, event.sequence, at_ms, DELAYED if event.delayed else READY, event.due_ms)
                for event in events
            ]
        )


# --- It is claimed, and goes back ---


def apply_claimed(state: State, event: Claimed, at_ms: int) -> None:
    job = state.jobs[event.job_id]
    state.table.claim(job, event, at_ms)
    state.table.forget_waiting(job)


def apply_beaten(state: State, event: Beaten, at_ms: int) -> JobRecord:
    return state.table.replace(event.job_id, beat_ms=_next_beat_ms(state, event.job_id, at_ms))


def apply_advanced(state: State, event: Advanced, at_ms: int) -> JobRecord:
    beat_ms = _next_beat_ms(state, event.job_id, at_ms)
    return state.table.replace(event.job_id, beat_ms=beat_ms, progress=event.progress)


def _next_beat_ms(state: State, job_id: str, at_ms: int) -> int:
    # Every beat differs from the one before, also when the writer's clock stands still or steps back: those who watch
    # the lease recognise a renewal by that alone.
    return max(at_ms, (state.jobs[job_id].beat_ms or 0) + 1)


def apply_nacked(state: State, event: Nacked, at_ms: int) -> None:
    tries = with_try(state.jobs[event.job_id], at_ms, Ending.FAILED, event.error)
    state.table.wait_again(event.job_id, event.due_ms, delayed=event.delayed, error=event.error, tries=tries)


def apply_returned(state: State, event: Returned, at_ms: int) -> None:  # noqa: ARG001  one signature for all appliers
    job = state.jobs[event.job_id]
    state.table.wait_again(event.job_id, job.due_ms, attempts=job.attempts - 1)


def apply_snoozed(state: State, event: Snoozed, at_ms: int) -> None:  # noqa: ARG001
    attempts = state.jobs[event.job_id].attempts - 1
    state.table.wait_again(event.job_id, event.due_ms, delayed=event.delayed, attempts=attempts)


def apply_declined(state: State, event: Declined, at_ms: int) -> None:  # noqa: ARG001
    job = state.jobs[event.job_id]
    attempts, declined = job.attempts - 1, job.declined + 1
    state.table.wait_again(
        event.job_id, event.due_ms, delayed=True, error=event.error, attempts=attempts, declined=declined
    )


def apply_crashed(state: State, event: Crashed, at_ms: int) -> None:
    job = state.jobs[event.job_id]
    state.table.wait_again(
        event.job_id,
        event.due_ms,
        delayed=event.delayed,
        error=event.error,
        attempts=job.attempts - 1,
        tries=with_try(job, at_ms, Ending.CRASHED, event.error),
        crashes=job.crashes + 1,
    )


def apply_expired(state: State, event: Expired, at_ms: int) -> None:
    tries = with_try(state.jobs[event.job_id], at_ms, Ending.EXPIRED, LEASE_RAN_OUT)
    state.table.wait_again(event.job_id, event.due_ms, error=LEASE_RAN_OUT, tries=tries)


def apply_rescheduled(state: State, event: Rescheduled, at_ms: int) -> None:  # noqa: ARG001
    old = state.jobs[event.job_id].spec
    spec = msgspec.structs.replace(old, run_at_ms=event.run_at_ms, priority=event.priority)
    state.table.move(event.job_id, spec, event.due_ms, delayed=event.delayed)


# --- It ends ---


def apply_acked(state: State, event: Acked, at_ms: int) -> None:
    table = state.table
    job = table.remove(event.job_id)
    table.counters.done += 1
    if state.keeps_finished:
        state.finished.append(Finished(state.position + 1, at_ms, job, DONE, job.error, event.result))


def ack_run(state: State, outcomes: Sequence[Outcome], jobs: list[JobRecord], at_ms: int) -> None:
    """What `apply_acked` does with each of these jobs: in half the time."""
    state.table.remove_run(jobs)
    state.table.counters.done += len(jobs)
    if state.keeps_finished:
        position = state.position + 1
        state.finished.extend(
            [
                Finished(position, at_ms, job, DONE, job.error, outcome.result)
                for job, outcome in zip(jobs, outcomes, strict=True)
            ]
        )


def apply_died(state: State, event: Died, at_ms: int) -> None:
    _die(state, state.jobs[event.job_id], event.how or _how_it_died(event.error), event.error, at_ms)


def _how_it_died(error: str | None) -> Ending:
    """For events of older releases, in which the text alone distinguishes a lease that ran out from a failure."""
    return Ending.EXPIRED if error == LEASE_RAN_OUT else Ending.FAILED


def apply_quarantined(state: State, event: Quarantined, at_ms: int) -> None:
    job = state.jobs[event.job_id]
    crashed = state.table.replace(event.job_id, attempts=job.attempts - 1, crashes=job.crashes + 1)
    _die(state, crashed, Ending.CRASHED, event.error, at_ms)


def _die(state: State, job: JobRecord, how: Ending, last_error: str | None, at_ms: int) -> None:
    error = last_error or job.error
    state.table.bury(job, error, with_try(job, at_ms, how, last_error))
    if state.keeps_finished:
        state.finished.append(Finished(state.position + 1, at_ms, job, DEAD, error))


def apply_cancelled(state: State, event: Cancelled, at_ms: int) -> None:
    _leave_cancelled(state, event.job_id, None, at_ms)


def apply_lapsed(state: State, event: Lapsed, at_ms: int) -> None:
    _leave_cancelled(state, event.job_id, event.error, at_ms)


def apply_withdrawn(state: State, event: Withdrawn, at_ms: int) -> None:
    _leave_cancelled(state, event.job_id, event.error, at_ms)


def _leave_cancelled(state: State, job_id: str, why: str | None, at_ms: int) -> None:
    job = state.table.remove(job_id)
    state.table.counters.cancelled += 1
    if state.keeps_finished:
        state.finished.append(Finished(state.position + 1, at_ms, job, CANCELLED, why or job.error))


# --- It was dead ---


def apply_revived(state: State, event: Revived, at_ms: int) -> None:  # noqa: ARG001
    job = state.jobs[event.job_id]
    if job.spec.key is not None:
        state.keys[job.spec.key] = job.spec.id
    state.table.wait_again(event.job_id, event.due_ms, attempts=0, crashes=0, declined=0)


def apply_purged(state: State, event: Purged, at_ms: int) -> None:  # noqa: ARG001
    state.table.purge(event.job_id)
    state.table.counters.dead_purged += 1


def with_try(job: JobRecord, at_ms: int, how: Ending, error: str | None) -> tuple[Attempt, ...]:
    """The failed attempts so far, with the one that ends here."""
    ended = Attempt(job.claimed_ms, at_ms, how, job.worker, job.token, error)
    return (*job.tries[-(TRIES_MAX - 1) :], ended) if job.tries else (ended,)
