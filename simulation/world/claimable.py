"""What can be claimed next: asked of a copy of a state, and worked out from its jobs alone.

The indexes behind `dequeue` are never stored. They are built up command by command, also by commands that were undone,
so a state that has lived through much is compared with one that was just restored, and both with a slow, obvious rule.
"""

from __future__ import annotations

import io
import pickle
from itertools import count
from typing import TypeAlias

import msgspec

from casque.service.requests import Dequeue
from casque.state import Lapse, State
from casque.state.answers import AnswerFacet
from casque.state.facets import Facets
from casque.state.finished import FinishedFacet
from casque.state.schedules import ScheduleFacet
from casque.state.sources import SourceFacet
from casque.state.staged import StagedFacet
from casque.state.vigils import VigilFacet
from casque.state.writers import WriterFacet
from casque.types import JobRecord, JobState

Claims: TypeAlias = dict[str | None, list[str]]
"""Ids of jobs by zone, in the order in which they are claimed."""

LIMIT = 10_000


_ASIDE = (AnswerFacet, FinishedFacet, ScheduleFacet, SourceFacet, StagedFacet, VigilFacet, WriterFacet)
"""What a claim neither asks nor changes: most of what a state holds, and not worth a copy each time."""


def copied(state: State) -> State:
    """A copy with its indexes as they are: claims made on it leave the original alone. Pickled, which takes a tenth of
    the time of `copy.deepcopy`."""
    fresh = {type(facet): facet for facet in Facets(state.limits)}
    written = io.BytesIO()
    pickler = pickle.Pickler(written, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {count: lambda _: (count, (2**40,))}  # later than all stamps that it has given out
    pickler.dispatch_table |= {kind: lambda facet: fresh[type(facet)].__reduce_ex__(4) for kind in _ASIDE}
    pickler.dump(state.facets)
    copy = State(state.limits, pickle.loads(written.getbuffer()))  # noqa: S301  written just now
    copy.position, copy.events = state.position, list(state.events)
    return copy


def rebuilt(state: State) -> State:
    """The same queue, restored from its records."""
    fresh = State(state.limits)
    fresh.restore(state.jobs.values(), msgspec.structs.replace(state.counters), state.position)
    fresh.facets.gates.restore(fresh, state.gates)
    fresh.facets.rules.restore(fresh, state.rules)
    fresh.facets.zone_leases.restore(fresh, list(state.zone_leases.values()))
    return fresh


def claimable(
    state: State,
    now_ms: int,
    *,
    entrypoints: tuple[str, ...] | None = None,
    zones: tuple[str, ...] | None = None,
    at_once: int = 1,
) -> Claims:
    """Claim whatever there is, by so many at a time, on a copy."""
    return _claimed(copied(state), now_ms, entrypoints, zones, at_once)


def _claimed(
    state: State, now_ms: int, entrypoints: tuple[str, ...] | None, zones: tuple[str, ...] | None, at_once: int
) -> Claims:
    state.execute(Lapse(), now_ms)
    claims = Claims()
    command = Dequeue(entrypoints, limit=at_once, lease_ms=1_000, zones=zones)
    for _ in range(LIMIT):
        due = state.has_due(entrypoints, now_ms, zones)
        jobs: list[JobRecord] = state.execute(command, now_ms)
        assert due is bool(jobs), f"has_due says {due}, and dequeue gave {len(jobs)} jobs"
        if not jobs:
            return claims
        for job in jobs:
            claims.setdefault(job.spec.zone, []).append(job.spec.id)
    raise AssertionError("a dequeue finds jobs without end")


def unclaimable(state: State, now_ms: int, *, restored_too: bool = True) -> str | None:
    """What is wrong with the indexes of a committed state, and with those of the same that was just restored, if
    anything is."""
    now_ms = max(now_ms, state.ready._promoted_to)  # noqa: SLF001  what was due once stays so when the clock goes back
    expected = allowed(state, now_ms)
    asked = [("the state", copied(state))]
    if restored_too:
        asked.append(("the same, restored from its jobs,", rebuilt(state)))
    for name, one in asked:
        try:
            found = _claimed(one, now_ms, None, None, 1)
        except Exception as error:  # noqa: BLE001  whatever it is, callers would meet it
            return f"{name} of position {state.position} fails when all of it is claimed: {error!r}"
        if found != expected:
            return f"{name} of position {state.position} lets {found} be claimed instead of {expected}"
    return None


def allowed(
    state: State, now_ms: int, *, entrypoints: tuple[str, ...] | None = None, zones: tuple[str, ...] | None = None
) -> Claims:
    """The same by the rules, which knows of no index: every job that is due, unless its gate, its zone or a job of a
    FIFO zone before it is in the way. Rates are left out: how much a zone has used of its own is not stored."""
    by_zone: dict[str | None, list[JobRecord]] = {}
    for job in state.jobs.values():
        if zones is None or job.spec.zone in zones:
            by_zone.setdefault(job.spec.zone, []).append(job)
    claims = {zone: _allowed_of(state, zone, jobs, now_ms, entrypoints) for zone, jobs in by_zone.items()}
    return {zone: ids for zone, ids in claims.items() if ids}


def _allowed_of(
    state: State, zone: str | None, jobs: list[JobRecord], now_ms: int, entrypoints: tuple[str, ...] | None
) -> list[str]:
    rules = None if zone is None else state.rules.get(zone)
    if zone in state.zone_leases or (rules is not None and rules.paused):
        return []
    running = sum(job.state is JobState.RUNNING for job in jobs)
    waiting = [job for job in jobs if job.state in (JobState.READY, JobState.DELAYED) and not _has_expired(job, now_ms)]
    due = [job for job in waiting if job.state is JobState.READY or job.due_ms <= now_ms]
    if any(job.spec.fifo for job in jobs):
        free = not running and len(due) == len(waiting)
        due = sorted(due, key=lambda job: job.sequence)[: 1 if free else 0]
    else:
        due.sort(key=lambda job: (job.spec.priority, job.due_ms, job.sequence))
    due = [
        job
        for job in due
        if not state.gates.pauses(job.spec.entrypoint) and (entrypoints is None or job.spec.entrypoint in entrypoints)
    ]
    if rules is not None and rules.running_max is not None:
        due = due[: max(rules.running_max - running, 0)]
    return [job.spec.id for job in due]


def _has_expired(job: JobRecord, now_ms: int) -> bool:
    return job.spec.expires_ms is not None and job.created_ms + job.spec.expires_ms <= now_ms
