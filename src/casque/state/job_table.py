"""The jobs of a queue: their records, their order, their keys and their numbers.

A change replaces a job's frozen record and notes the old one, which is all that `rollback` needs. What an event means
for a job is in `job_life`; here the record moves, and everything that is derived from the records follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from casque.errors import JobNotFoundError, JobStateError, LeaseLostError
from casque.state.events import Claimed
from casque.state.facet import Facet
from casque.state.lapses import LapseIndex
from casque.state.ready import ReadyIndex
from casque.state.shard import ShardFacet
from casque.state.zone_lines import FifoLine
from casque.types import Attempt, JobRecord, JobSpec, JobState, Reach, ZoneLease, ZoneRules

if TYPE_CHECKING:
    from casque.state.machine import State

# Module globals are cheaper to reach than enum attributes, and these are compared on every command.
READY, DELAYED, RUNNING, DEAD = JobState.READY, JobState.DELAYED, JobState.RUNNING, JobState.DEAD

replace = msgspec.structs.replace


class Counters(msgspec.Struct):
    """Numbers that only grow (`dead_purged` included); with the jobs themselves they make the conservation law."""

    enqueued: int = 0
    done: int = 0
    cancelled: int = 0
    dead_purged: int = 0
    sequence: int = 0
    """The last enqueue number given out."""
    tokens: int = 0
    """The last lease token given out."""


class JobTable(Facet[Iterable[JobRecord]]):
    def __init__(self, rules: dict[str, ZoneRules], zone_leases: dict[str, ZoneLease]) -> None:
        self.by_id: dict[str, JobRecord] = {}
        """Every job that is not finished, and the dead ones."""
        self.keys: dict[str, str] = {}
        """Which unfinished job has each unique key."""
        self.zone_jobs: dict[str, int] = {}
        """How many jobs each zone has here, dead ones included; those without any are forgotten."""
        self.dead: dict[str, None] = {}
        self.running = 0
        self.waiting = 0
        self.counters = Counters()
        self._rules, self._zone_leases = rules, zone_leases
        self.ready = ReadyIndex(self.by_id, rules, zone_leases)
        self.lapses = LapseIndex(self.by_id)
        self.shard = ShardFacet(self.zone_jobs, zone_leases)
        self._in_order = True
        self._undo: list[str | JobRecord] = []
        """What to put back, oldest first: a record that was replaced or removed, or the id of a job that was added."""
        self._counters_before: Counters | None = None

    # --- Looking ---

    def there(self, job_id: str, reach: Reach | None) -> JobRecord:
        job = self.by_id.get(job_id)
        if job is None or (reach is not None and not reach.has(job.spec)):
            raise JobNotFoundError(job_id)
        return job

    def held(self, job_id: str, token: int | None, reach: Reach | None) -> JobRecord:
        """The job, if this token is its lease; without a token, if it is unfinished."""
        job = self.there(job_id, reach)
        if token is None:
            if job.state is DEAD:
                raise JobStateError(job_id, "dead", "unfinished")
        elif job.token != token or job.state is not RUNNING:
            raise LeaseLostError(job_id, token)
        return job

    def listed(self) -> Iterable[JobRecord]:
        """Every job in enqueue order."""
        if not self._in_order:
            in_order = sorted(self.by_id.items(), key=lambda item: item[1].sequence)
            self.by_id.clear()
            self.by_id.update(in_order)
            self._in_order = True
        return self.by_id.values()

    def violation(self) -> str | None:
        """The conservation law: no job comes from nowhere and none vanishes. What breaks it, if anything does."""
        c = self.counters
        if len(self.by_id) != self.waiting + self.running + len(self.dead):
            return "a job is in no state, or in two"
        if c.enqueued != len(self.by_id) + c.done + c.cancelled + c.dead_purged:
            return "jobs appeared or vanished"
        return None

    # --- As a facet ---

    def copied(self) -> list[JobRecord]:
        return list(self.by_id.values())

    def restore(self, state: State, data: Iterable[JobRecord]) -> None:  # noqa: ARG002
        """Fill an empty table. Derived indexes are built here, never stored."""
        assert not self.by_id
        for job in sorted(data, key=lambda job: job.sequence):
            self.by_id[job.spec.id] = job
            if job.spec.zone is not None:
                self._join_zone(job.spec)
            self._count(job)
            if job.state is DEAD:
                continue
            if job.spec.key is not None:
                self.keys[job.spec.key] = job.spec.id
            self._list(job)

    def reindex(self, state: State) -> None:
        """Build anew everything that is derived from the jobs."""
        records = self.copied()
        for derived in (self.by_id, self.dead, self.keys, self.zone_jobs):
            derived.clear()
        self.running = self.waiting = 0
        self._in_order = True
        self.ready = ReadyIndex(self.by_id, self._rules, self._zone_leases)
        self.lapses = LapseIndex(self.by_id)
        self.restore(state, records)
        self.ready.fair.limit(dict(self._rules))
        self.ready.fair.relist(set(self._zone_leases))
        if self.shard.view is not None:
            self.shard.recount(state)

    def begin(self) -> None:
        """A command is about to be carried out."""
        if self._counters_before is None:
            self._counters_before = replace(self.counters)

    def commit(self) -> None:
        self._undo.clear()
        self._counters_before = None

    def rollback(self, state: State) -> None:  # noqa: ARG002
        shard = self.shard
        for undo in reversed(self._undo):
            job_id, old = (undo, None) if isinstance(undo, str) else (undo.spec.id, undo)
            current = self.by_id.get(job_id)
            if current is not None and current.spec.key is not None and current.state is not DEAD:
                del self.keys[current.spec.key]
            self._uncount(current)
            if old is None:
                assert current is not None
                del self.by_id[job_id]
                self.forget_waiting(current)
                if current.spec.zone is not None:
                    self._leave_zone(current.spec)
                if shard.view is not None:
                    shard.places.drop(current.spec)
                continue
            self.by_id[job_id] = old
            if current is None:
                self._in_order = False  # it was taken out, and came back at the end
                if old.spec.zone is not None:
                    self._join_zone(old.spec)
                if shard.view is not None:
                    shard.places.add(old.spec)
            else:
                self.forget_waiting(current)
            self._count(old)
            if old.spec.key is not None and old.state is not DEAD:
                self.keys[old.spec.key] = job_id
            self._list(old)
        if self._counters_before is not None:
            self.counters = self._counters_before
        self.commit()

    # --- Moving records; every change notes the record it replaces ---

    def put(self, job: JobRecord) -> None:
        """A new job, which waits."""
        spec, counters = job.spec, self.counters
        job_id = spec.id
        self.by_id[job_id] = job
        self._undo.append(job_id)
        self.waiting += 1
        counters.enqueued += 1
        counters.sequence = job.sequence
        if spec.key is not None:
            self.keys[spec.key] = job_id
        if spec.zone is not None:
            self._join_zone(spec)
        if job.state is DELAYED:
            self.ready.push_delayed(job)
        else:
            self.ready.push(job)
        if spec.expires_ms is not None:
            self.lapses.push(job)
        if self.shard.view is not None:
            self.shard.places.add(spec)

    def put_run(self, jobs: list[JobRecord]) -> None:
        """What `put` does with each of them, for jobs that are alike, due and without keys: in a third of the time."""
        self._enter(jobs)
        for job in jobs:
            if job.spec.zone is not None:
                self._join_zone(job.spec)
        self.ready.push_run(jobs)

    def put_all(self, jobs: list[JobRecord]) -> None:
        """The same for any that come in their order and are new together: a run for each kind of them."""
        self._enter(jobs)
        runs: dict[tuple[str, int], list[JobRecord]] = {}
        keys = self.keys
        for job in jobs:
            spec = job.spec
            if spec.key is not None:
                keys[spec.key] = spec.id
            if spec.zone is not None:
                self._join_zone(spec)
            if job.state is DELAYED:
                self.ready.push_delayed(job)
                continue
            kind = spec.entrypoint, spec.priority
            if (run := runs.get(kind)) is None:
                run = runs[kind] = []
            run.append(job)
        for run in runs.values():
            self.ready.push_run(run)

    def _enter(self, jobs: list[JobRecord]) -> None:
        ids = [job.spec.id for job in jobs]
        self.by_id.update(zip(ids, jobs, strict=True))
        self._undo += ids
        self.waiting += len(jobs)
        self.counters.enqueued += len(jobs)
        self.counters.sequence = jobs[-1].sequence
        for job in jobs:
            if job.spec.expires_ms is not None:
                self.lapses.push(job)
        if self.shard.view is not None:
            for job in jobs:
                self.shard.places.add(job.spec)

    def claim(self, job: JobRecord, event: Claimed, at_ms: int) -> JobRecord:
        """The job has left the ready index already."""
        claimed = _claimed(job, event.token, event.worker, event.lease_ms, at_ms)
        self.by_id[event.job_id] = claimed
        self._undo.append(job)
        self.waiting -= 1
        self.running += 1
        self.counters.tokens = event.token
        if claimed.spec.zone is not None:
            self.ready.fair.started(claimed)
        return claimed

    def claim_run(
        self, jobs: list[JobRecord], lease_ms: int, worker: str | None, at_ms: int
    ) -> tuple[list[JobRecord], list[Claimed]]:
        """What `claim` does with each of them, in half the time; and the events, which take the ids and tokens too."""
        first = self.counters.tokens + 1
        ids = [job.spec.id for job in jobs]
        claimed = [_claimed(job, token, worker, lease_ms, at_ms) for token, job in enumerate(jobs, first)]
        self.by_id.update(zip(ids, claimed, strict=True))
        self._undo += jobs
        self.waiting -= len(jobs)
        self.running += len(jobs)
        self.counters.tokens += len(jobs)
        if self.ready.fair.on:
            for job in claimed:
                if job.spec.zone is not None:
                    self.ready.fair.started(job)
        return claimed, [Claimed(job_id, token, lease_ms, worker) for token, job_id in enumerate(ids, first)]

    def replace(self, job_id: str, **changes: Any) -> JobRecord:
        """The same job in the same place, with other fields."""
        old = self.by_id[job_id]
        new = replace(old, **changes)
        self.by_id[job_id] = new
        self._undo.append(old)
        return new

    def wait_again(
        self,
        job_id: str,
        due_ms: int,
        *,
        delayed: bool = False,
        attempts: int | None = None,
        error: str | None = None,
        tries: tuple[Attempt, ...] | None = None,
        crashes: int | None = None,
        declined: int | None = None,
    ) -> None:
        """The job waits; what is left out stays as it was. Spelled out, because to pass names on takes longer."""
        old = self.by_id[job_id]
        new = replace(
            old,
            state=DELAYED if delayed else READY,
            due_ms=due_ms,
            attempts=old.attempts if attempts is None else attempts,
            worker=None,
            beat_ms=None,
            error=old.error if error is None else error,
            tries=old.tries if tries is None else tries,
            crashes=old.crashes if crashes is None else crashes,
            progress=None,
            declined=old.declined if declined is None else declined,
        )
        self._uncount(old)
        self.by_id[job_id] = new
        self._undo.append(old)
        self.waiting += 1
        if delayed:
            self.ready.push_delayed(new)
        else:
            self.ready.push(new)
        if new.spec.expires_ms is not None:
            self.lapses.push(new)

    def remove(self, job_id: str) -> JobRecord:
        """It is finished."""
        job = self.by_id.pop(job_id)
        self._undo.append(job)
        if job.state is RUNNING:
            self.running -= 1
            if job.spec.zone is not None:
                self.ready.fair.started(job, -1)
        else:
            self.waiting -= 1
            self.forget_waiting(job)
        self._give_up_place(job.spec)
        return job

    def remove_run(self, jobs: list[JobRecord]) -> None:
        """What `remove` does with each of them, which are running: in half the time."""
        self._undo += jobs
        for job in jobs:
            del self.by_id[job.spec.id]
        self.running -= len(jobs)
        if self.keys or self.zone_jobs or self.shard.view is not None:
            for job in jobs:
                if job.spec.zone is not None:
                    self.ready.fair.started(job, -1)
                self._give_up_place(job.spec)

    def purge(self, job_id: str) -> None:
        """A dead job leaves. Its key was free already."""
        job = self.by_id.pop(job_id)
        self._undo.append(job)
        self._uncount(job)
        if job.spec.zone is not None:
            self._leave_zone(job.spec)
        if self.shard.view is not None:
            self.shard.places.drop(job.spec)

    def bury(self, job: JobRecord, error: str | None, tries: tuple[Attempt, ...]) -> None:
        """The job stays as a dead one, and its key is free."""
        self._uncount(job)
        if job.spec.key is not None:
            del self.keys[job.spec.key]
        self._count(
            self.replace(job.spec.id, state=DEAD, worker=None, error=error, beat_ms=None, tries=tries, progress=None)
        )

    def move(self, job_id: str, spec: JobSpec, due_ms: int, *, delayed: bool) -> None:
        """A waiting job takes another place in the order."""
        old = self.by_id[job_id]
        new = self.replace(job_id, spec=spec, state=DELAYED if delayed else READY, due_ms=due_ms)
        self.forget_waiting(old)
        if delayed:
            self.ready.push_delayed(new)
        else:
            self.ready.push(new)

    def _list(self, job: JobRecord) -> None:
        """It takes its place in the order, if it waits."""
        if job.state is READY:
            self.ready.push(job)
        elif job.state is DELAYED:
            self.ready.push_delayed(job)
        else:
            return
        if job.spec.expires_ms is not None:
            self.lapses.push(job)

    def _give_up_place(self, spec: JobSpec) -> None:
        """It has left: its key is free, and its zone holds one less."""
        if spec.key is not None:
            del self.keys[spec.key]
        if spec.zone is not None:
            self._leave_zone(spec)
        if self.shard.view is not None:
            self.shard.places.drop(spec)

    def _join_zone(self, spec: JobSpec) -> None:
        zone = spec.zone
        assert zone is not None
        self.zone_jobs[zone] = self.zone_jobs.get(zone, 0) + 1
        if spec.fifo and zone not in self.ready.fair.fifos:
            self.ready.fair.fifos[zone] = FifoLine()

    def _leave_zone(self, spec: JobSpec) -> None:
        zone = spec.zone
        assert zone is not None
        left = self.zone_jobs[zone] - 1
        if left:
            self.zone_jobs[zone] = left
        else:
            del self.zone_jobs[zone]
            self.ready.fair.fifos.pop(zone, None)

    def forget_waiting(self, job: JobRecord) -> None:
        """Take it out of the order, if it waits."""
        if job.state is READY or job.state is DELAYED:
            self.ready.forget(job, was_delayed=job.state is DELAYED)

    def _count(self, job: JobRecord) -> None:
        if job.state is RUNNING:
            self.running += 1
            if job.spec.zone is not None:
                self.ready.fair.started(job)
        elif job.state is DEAD:
            self.dead[job.spec.id] = None
        else:
            self.waiting += 1

    def _uncount(self, job: JobRecord | None) -> None:
        if job is None:
            return
        if job.state is RUNNING:
            self.running -= 1
            if job.spec.zone is not None:
                self.ready.fair.started(job, -1)
        elif job.state is DEAD:
            del self.dead[job.spec.id]
        else:
            self.waiting -= 1


def _claimed(job: JobRecord, token: int, worker: str | None, lease_ms: int, at_ms: int) -> JobRecord:
    return replace(
        job,
        state=RUNNING,
        token=token,
        attempts=job.attempts + 1,
        worker=worker,
        lease_ms=lease_ms,
        claimed_ms=at_ms,
        beat_ms=at_ms,
        progress=None,
    )
