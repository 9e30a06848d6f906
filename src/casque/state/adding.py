"""How jobs come into a queue: `enqueue`, and what has to be true of a job before it is added."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from casque.errors import InvalidInputError
from casque.service.requests import Enqueue
from casque.state.events import Added
from casque.state.facet import Methods
from casque.state.job_life import apply_added, apply_added_run
from casque.state.request_ids import shown_id
from casque.state.request_memory import Answered
from casque.types import JobRecord, JobSpec, JobState

if TYPE_CHECKING:
    from casque.state.machine import State

HANDLERS: Methods = {Enqueue: "enqueue"}

NEW, HELD = 0, -1
"""In the remembered answer of an enqueue, where others have a token: the job was added, or it held the unique key."""


def enqueue(state: State, c: Enqueue, now_ms: int) -> tuple[JobRecord, ...]:
    if (seen := state.answers.seen(c, "enqueue")) is not None:
        return _enqueued_before(state, c, seen, now_ms)
    shard, gates = state.table.shard, state.facets.gates
    if shard.view is not None:
        shard.places.check(shard.view, c.specs, request_id=c.request_id, generation=c.generation)
    _check_new(state, c.specs)
    if gates.current:
        gates.check_not_draining(state, c.specs)
    if any(spec.zone is not None or spec.fifo for spec in c.specs):
        check_zones(state, c.specs)
    added = tuple(
        _add_run(state, c.specs, now_ms)
        if len(c.specs) > 1 and _alike(c.specs)
        else [add(state, spec, now_ms) for spec in c.specs]
    )
    if c.request_id is not None:
        jobs = [(job.spec.id, NEW if job.spec is spec else HELD) for job, spec in zip(added, c.specs, strict=True)]
        state.answers.remember(state, c, "enqueue", now_ms, jobs=tuple(jobs))
    return added


def add(state: State, spec: JobSpec, now_ms: int) -> JobRecord:
    """The new job, or the one that holds its key."""
    if spec.key is not None and (holder := state.keys.get(spec.key)) is not None:
        return state.jobs[holder]
    run_at = spec.run_at_ms
    if run_at is None or run_at <= now_ms:
        event = Added(spec, state.table.counters.sequence + 1, now_ms)
    else:
        event = Added(spec, state.table.counters.sequence + 1, run_at, True)
    state.events.append(event)
    return apply_added(state, event, now_ms)


def _add_run(state: State, specs: tuple[JobSpec, ...], now_ms: int) -> list[JobRecord]:
    """The same for many jobs that are alike and due at once."""
    first = state.table.counters.sequence + 1
    events = [Added(spec, sequence, now_ms) for sequence, spec in enumerate(specs, first)]
    state.events += events
    return apply_added_run(state, events, now_ms)


def _check_new(state: State, specs: tuple[JobSpec, ...]) -> None:
    jobs = state.jobs
    if len(specs) > 1 and jobs.keys().isdisjoint(ids := {spec.id for spec in specs}):
        if len(ids) != len(specs):
            raise InvalidInputError("two jobs of one enqueue have the same id")
        return
    for spec in specs:
        if spec.id in jobs:
            raise InvalidInputError(f"a job with the id {spec.id!r} is already in the queue")


def check_zones(state: State, specs: Iterable[JobSpec]) -> None:
    """Whether a zone is FIFO is decided by its first job: the others must agree."""
    asked: dict[str, bool] = {}
    for spec in specs:
        zone = spec.zone
        if zone is None:
            if spec.fifo:
                raise InvalidInputError("fifo=True is about the order within a zone: say which zone")
            continue
        if spec.fifo and spec.run_at_ms is not None:
            raise fifo_has_no_delay(zone)
        fifo = state.is_fifo(zone) if zone in state.zone_jobs else asked.setdefault(zone, spec.fifo)
        if fifo is not spec.fifo:
            now, wanted = ("FIFO", "fifo=True") if fifo else ("not FIFO", "fifo left out")
            raise InvalidInputError(
                f"the zone {zone!r} has jobs and is {now}: enqueue with {wanted}, or use another zone. It can "
                "change when it is empty, without dead jobs"
            )


def fifo_has_no_delay(zone: str | None) -> InvalidInputError:
    return InvalidInputError(
        f"the zone {zone!r} is FIFO: its jobs come one after the other, so none of them can be delayed. "
        "Leave delay and run_at out, or use another zone"
    )


def _alike(specs: tuple[JobSpec, ...]) -> bool:
    """Whether they go to one place in the order they come: one entrypoint, one priority, no delay and no key."""
    entrypoint, priority = specs[0].entrypoint, specs[0].priority
    for spec in specs:
        if (
            spec.key is not None
            or spec.run_at_ms is not None
            or spec.priority != priority
            or spec.entrypoint != entrypoint
        ):
            return False
    return True


def _enqueued_before(state: State, c: Enqueue, seen: Answered, now_ms: int) -> tuple[JobRecord, ...]:
    if len(c.specs) != len(seen.jobs):
        raise InvalidInputError(
            f"request_id {shown_id(c.request_id)!r} was used before, to enqueue {len(seen.jobs)} jobs"
        )
    # A job that has been finished since is shown as it was asked for: the caller needs its id. One that held the
    # unique key is another's job: its payload is not known any more, and it is not this caller's.
    return tuple(
        state.jobs.get(job_id)
        or JobRecord(
            _holder(spec, job_id) if what == HELD else _asked(spec, job_id), 0, seen.at_ms, JobState.READY, now_ms
        )
        for spec, (job_id, what) in zip(c.specs, seen.jobs, strict=True)
    )


def _asked(spec: JobSpec, job_id: str) -> JobSpec:
    """A finished job, as it is asked for again. Where its payload lies this time says nothing about it; its size shows
    that the caller has it."""
    return msgspec.structs.replace(spec, id=job_id, blob=None)


def _holder(spec: JobSpec, job_id: str) -> JobSpec:
    """The finished job that held the key of this one: all that is still known of it."""
    return JobSpec(job_id, spec.entrypoint, b"", key=spec.key, zone=spec.zone)
