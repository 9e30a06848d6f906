"""What people do to jobs that no worker holds for them: `cancel`, `retry`, `reschedule` and `purge`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from casque.errors import DuplicateKeyError, InvalidInputError, JobStateError
from casque.service.requests import Cancel, Purge, Reschedule, Retry
from casque.state.adding import fifo_has_no_delay
from casque.state.events import Cancelled, Purged, Rescheduled, Revived
from casque.state.facet import Methods
from casque.state.lapses import has_lapsed
from casque.types import JobRecord, JobState, from_ms

if TYPE_CHECKING:
    from casque.state.machine import State

HANDLERS: Methods = {Cancel: "cancel", Retry: "retry", Reschedule: "reschedule", Purge: "purge"}

READY, DELAYED, DEAD = JobState.READY, JobState.DELAYED, JobState.DEAD


def cancel(state: State, c: Cancel, now_ms: int) -> None:
    if state.answers.seen(c, "cancel") is not None:
        return
    job = state.table.there(c.job_id, state.reach)
    if job.state is DEAD:
        raise JobStateError(c.job_id, "dead", "waiting or running")
    state.happen(Cancelled(c.job_id), now_ms)
    if c.request_id is not None:
        state.answers.remember(state, c, "cancel", now_ms)


def retry(state: State, c: Retry, now_ms: int) -> JobRecord | None:
    if state.answers.seen(c, "retry") is not None:
        return state.jobs.get(c.job_id)
    job = state.table.there(c.job_id, state.reach)
    if job.state is not DEAD:
        raise JobStateError(c.job_id, job.state.value, "dead")
    if has_lapsed(job, now_ms):
        raise InvalidInputError(f"the job {c.job_id} has expired {_at(job)}: enqueue it again, or purge it")
    if job.spec.key is not None and (holder := state.keys.get(job.spec.key)) is not None:
        raise DuplicateKeyError(job.spec.key, holder)
    state.happen(Revived(c.job_id, now_ms), now_ms)
    if c.request_id is not None:
        state.answers.remember(state, c, "retry", now_ms)
    return state.jobs[c.job_id]


def reschedule(state: State, c: Reschedule, now_ms: int) -> JobRecord | None:
    if state.answers.seen(c, "reschedule") is not None:
        return state.jobs.get(c.job_id)
    job = state.table.there(c.job_id, state.reach)
    spec = job.spec
    if job.state is not READY and job.state is not DELAYED:
        raise JobStateError(c.job_id, job.state.value, "waiting")
    if spec.fifo and c.run_at_ms is not None and c.run_at_ms > now_ms:
        raise fifo_has_no_delay(spec.zone)
    due_ms, delayed, run_at_ms = job.due_ms, job.state is DELAYED, spec.run_at_ms
    if c.run_at_ms is not None:
        due_ms, delayed, run_at_ms = max(c.run_at_ms, now_ms), c.run_at_ms > now_ms, c.run_at_ms
        if has_lapsed(job, due_ms):
            raise InvalidInputError(
                f"the job {c.job_id} expires {_at(job)}: choose an earlier time, or enqueue it again"
            )
    priority = spec.priority if c.priority is None else c.priority
    if (due_ms, delayed, run_at_ms, priority) != (job.due_ms, job.state is DELAYED, spec.run_at_ms, spec.priority):
        state.happen(Rescheduled(c.job_id, due_ms, delayed, run_at_ms, priority), now_ms)
    if c.request_id is not None:
        state.answers.remember(state, c, "reschedule", now_ms)
    return state.jobs[c.job_id]


def purge(state: State, c: Purge, now_ms: int) -> int:
    if (seen := state.answers.seen(c, "purge")) is not None:
        return seen.count
    doomed = [job_id for job_id in state.dead if c.takes(state.jobs[job_id].spec)]
    for job_id in doomed:
        state.happen(Purged(job_id), now_ms)
    # A ring asks all its shards: which of them had nothing to purge has to stay so when it asks again.
    if c.request_id is not None and (doomed or state.ring is not None):
        state.answers.remember(state, c, "purge", now_ms, count=len(doomed))
    return len(doomed)


def _at(job: JobRecord) -> str:
    return f"at {from_ms(job.expires_at_ms or 0):%Y-%m-%dT%H:%M:%SZ}"
