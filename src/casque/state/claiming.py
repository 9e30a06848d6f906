"""How workers get jobs: `dequeue`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from casque.errors import ZoneLeaseLostError
from casque.service.requests import Dequeue
from casque.state.commands import Lapse
from casque.state.events import Claimed
from casque.state.facet import Methods
from casque.state.lapses import lapse
from casque.types import JobRecord, JobState

if TYPE_CHECKING:
    from casque.state.machine import State

HANDLERS: Methods = {Dequeue: "dequeue"}

RUNNING = JobState.RUNNING
LAPSE = Lapse()


def dequeue(state: State, c: Dequeue, now_ms: int) -> list[JobRecord]:
    if (seen := state.answers.seen(c, "dequeue")) is not None:
        return [
            job
            for job_id, token in seen.jobs
            if (job := state.jobs.get(job_id)) is not None and job.token == token and job.state is RUNNING
        ]
    zones = c.zones
    if c.zone_lease is not None:
        if not state.facets.zone_leases.has(*c.zone_lease):
            raise ZoneLeaseLostError(*c.zone_lease)
        zones = c.zone_lease[:1]
    lapse(state, LAPSE, now_ms)  # first: what has expired is not handed out
    ready, gates = state.table.ready, state.facets.gates
    ready.promote(now_ms)
    entrypoints = gates.let_through(state, c.entrypoints) if gates.current else c.entrypoints
    claimed: list[JobRecord] = []
    if zones is None and ready.takes_turns() and c.limit > 1:
        # Jobs of several zones at once, where no rule has to be asked in between.
        claimed += _claim_run(state, c, ready.take_many(entrypoints, c.limit, now_ms) or [], now_ms)
    if len(claimed) < c.limit and ready.takes_turns():
        claims = ready.claims(entrypoints, zones, now_ms, holds=c.zone_lease is not None)
        for job in islice(claims, c.limit - len(claimed)):
            claimed.append(_claim(state, c, job, now_ms))
    # Without zones it is simpler, and faster.
    while len(claimed) < c.limit and not ready.takes_turns() and zones is None:
        most = c.limit - len(claimed)
        if most > 1 and (lane := ready.only_lane(entrypoints)) is not None:
            if not (some := ready.pop_many(lane, most)):
                break
            claimed += _claim_run(state, c, some, now_ms)
            continue
        first = ready.pop(entrypoints)
        if first is None:
            break
        claimed.append(_claim(state, c, first, now_ms))
    if c.request_id is not None and claimed:
        # An empty answer is not remembered: it changed nothing, and asking again may find something.
        state.answers.remember(state, c, "dequeue", now_ms, jobs=tuple([(j.spec.id, j.token) for j in claimed]))
    return claimed


def _claim(state: State, c: Dequeue, job: JobRecord, now_ms: int) -> JobRecord:
    """Claim a job that has left the ready index already."""
    assert c.lease_ms is not None, "the engine fills in what its settings say"
    event = Claimed(job.spec.id, state.table.counters.tokens + 1, c.lease_ms, c.worker)
    state.events.append(event)
    return state.table.claim(job, event, now_ms)


def _claim_run(state: State, c: Dequeue, jobs: list[JobRecord], now_ms: int) -> list[JobRecord]:
    """The same for all of these: in half the time that one by one would take."""
    assert c.lease_ms is not None
    claimed, events = state.table.claim_run(jobs, c.lease_ms, c.worker, now_ms)
    state.events += events
    return claimed
