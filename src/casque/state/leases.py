"""How leases end that their holders do not end: they run out, or an operator takes them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from casque.service.requests import RequeueStale
from casque.state.commands import Expire, ObservedZone
from casque.state.events import Crashed, Died, Expired, ZoneExpired
from casque.state.facet import Methods
from casque.state.job_life import LEASE_RAN_OUT
from casque.state.settling import crash, is_exhausted
from casque.types import Ending, JobRecord, JobState, ZoneLease

if TYPE_CHECKING:
    from casque.state.machine import State

HANDLERS: Methods = {Expire: "expire", RequeueStale: "requeue_stale"}

RUNNING = JobState.RUNNING


def expire(state: State, c: Expire, now_ms: int) -> int:
    expired = 0
    for seen in c.leases:
        if isinstance(seen, ObservedZone):
            lease = state.zone_leases.get(seen.zone)
            if lease is not None and (lease.token, lease.beat_ms) == (seen.token, seen.beat_ms):
                state.happen(ZoneExpired(seen.zone, seen.token), now_ms)
                expired += 1
            continue
        job = state.jobs.get(seen.job_id)
        if job is None or job.state is not RUNNING or (job.token, job.beat_ms) != (seen.token, seen.beat_ms):
            continue
        end_lease(state, job, now_ms)
        expired += 1
    return expired


def requeue_stale(state: State, c: RequeueStale, now_ms: int) -> int:
    if (seen := state.answers.seen(c, "requeue")) is not None:
        return seen.count
    before_ms = now_ms - c.older_ms
    stale = [
        job
        for job in state.leases()
        if (job.beat_ms is None or job.beat_ms <= before_ms)
        and c.entrypoint in (None, job.spec.entrypoint)
        and c.zone in (None, job.spec.zone)
    ]
    for job in stale:
        end_lease(state, job, now_ms)
    # As with purge: which shards of a ring had none has to stay so when it is asked again.
    if c.request_id is not None and (stale or state.ring is not None):
        state.answers.remember(state, c, "requeue", now_ms, count=len(stale))
    return len(stale)


def end_lease(state: State, job: JobRecord, now_ms: int) -> None:
    if job.spec.max_crashes is not None:
        crashed = crash(job, LEASE_RAN_OUT, None, None, now_ms)
        if isinstance(crashed, Crashed) and keeps_place(job):
            crashed = msgspec.structs.replace(crashed, due_ms=job.due_ms)
        state.happen(crashed, now_ms)
    elif is_exhausted(job):
        state.happen(Died(job.spec.id, job.token, LEASE_RAN_OUT, Ending.EXPIRED), now_ms)
    else:
        state.happen(Expired(job.spec.id, job.token, job.due_ms if keeps_place(job) else now_ms + 1), now_ms)


def keeps_place(job: JobRecord) -> bool:
    """Whether this is the first worker that it loses. That is most often the worker's misfortune; a job that loses a
    second one may be the cause, and goes behind those that wait, so that it does not take all workers in turn."""
    return all(tried.how is Ending.FAILED for tried in job.tries)


def leased(state: State, subject: str, *, is_zone: bool) -> JobRecord | ZoneLease | None:
    """The lease of this job or zone, if it has one."""
    if is_zone:
        return state.zone_leases.get(subject)
    job = state.jobs.get(subject)
    return job if job is not None and job.state is RUNNING else None
