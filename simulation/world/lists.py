"""Those who list the jobs and read the archive of a simulated queue through brokers: of a ring, shard by shard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from copy import deepcopy
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from casque.clock import Random
from casque.codec.archive import archived_jobs, hour_of
from casque.errors import CasqueError
from casque.ring.numbers import archived_of, inner, record_of
from casque.service import ArchivedJob
from casque.state import Admitted, Event, State
from casque.types import Finished, JobRecord, JobState, from_ms
from simulation.world.history import History
from simulation.world.invariants import Invariant
from simulation.world.shelves import Finish, Shelves

if TYPE_CHECKING:
    from casque.client.queue import Queue
    from simulation.world.life import Life
    from simulation.world.readers import Readers

LISTED: tuple[frozenset[JobState] | None, ...] = (
    None,
    None,
    frozenset({JobState.READY, JobState.DELAYED}),
    frozenset({JobState.RUNNING}),
    frozenset({JobState.DEAD, JobState.RUNNING}),
)
"""Which of a delayed and a ready job one is depends on a clock: they are asked for together."""
ARCHIVED: tuple[frozenset[JobState] | None, ...] = (
    None,
    None,
    frozenset({JobState.DONE}),
    frozenset({JobState.DEAD, JobState.CANCELLED}),
)


class Listing(NamedTuple):
    """What somebody wants to see."""

    states: frozenset[JobState] | None
    entrypoint: str | None
    limit: int | None
    after: int

    def of(self, records: list[JobRecord]) -> list[JobRecord]:
        fits = [
            job
            for job in records
            if job.sequence > self.after
            and self.entrypoint in (None, job.spec.entrypoint)
            and (self.states is None or job.state in self.states)
        ]
        return fits[: self.limit]


class Reading(NamedTuple):
    """What somebody wants to read in the archive."""

    since: datetime | None
    until: datetime | None
    entrypoint: str | None
    states: frozenset[JobState] | None

    def wants(self, one: Finished) -> bool:
        at = from_ms(one.at_ms)
        return (
            (self.since is None or at >= self.since)
            and (self.until is None or at < self.until)
            and self.entrypoint in (None, one.job.spec.entrypoint)
            and (self.states is None or one.state in self.states)
        )


class Part(NamedTuple):
    """A queue, or a shard of a ring, as it was when somebody asked."""

    shard: int | None
    history: History
    shelves: Shelves
    landed: int
    archived: int
    gone: frozenset[Finish]
    """What had been erased by then."""

    def holds(self, number: int) -> bool:
        """Whether a job with this number, or a commit with this position, is one of its own."""
        return self.shard is None or inner(number)[1] == self.shard

    def shown(self, job: JobRecord) -> JobRecord:
        """As readers know it."""
        bare = _without_payload(job)
        return bare if self.shard is None else record_of(bare, self.shard)

    def is_gone(self, job: ArchivedJob) -> bool:
        return (job.id, job.position) in self.gone

    def archived_as(self, jobs: list[Finished]) -> list[ArchivedJob]:
        kept = archived_jobs(jobs)
        return kept if self.shard is None else [archived_of(job, self.shard) for job in kept]


class Lists:
    """Those of one process."""

    def __init__(self, life: Life, readers: Readers) -> None:
        self._life = life
        self._readers = readers
        self._world = life.world
        self._rng = Random(f"{life.world.seed}/{life.name}/lists")

    def _parts(self) -> list[Part]:
        return [
            Part(shard, history, shelves, history.position, shelves.archived, frozenset(shelves.gone))
            for shard, history, shelves in self._world.parts()
        ]

    # --- Jobs ---

    async def list_jobs(self, queue: Queue[bytes]) -> None:
        while await self._readers.pause(0.7):
            asked, parts = self._listing(), self._parts()
            try:
                jobs = await queue.jobs(**asked._asdict())
            except CasqueError as error:
                await self._readers.refused("lists jobs", error)
                continue
            records = [job.record for job in jobs]
            numbers = [job.sequence for job in records]
            with self._world.watching():
                self._demand(numbers == sorted(set(numbers)), f"is shown jobs out of order: {numbers}")
                for part in parts:
                    self._check_listed([job for job in records if part.holds(job.sequence)], asked, part)
                self._check_payloads(records)

    def _listing(self) -> Listing:
        rng = self._rng
        states, entrypoint = rng.choice(LISTED), rng.choice((None, None, "mail"))
        limit, after = rng.choice((None, None, 3)), 0
        known = [job.sequence for job in self._world.history.state.jobs.values()]
        if known and rng.random() < 0.3:
            after = rng.choice(known)
        # Of a ring a page is some jobs of each shard.
        return Listing(states, entrypoint, None if self._world.layout.ring else limit, after)

    def _check_listed(self, jobs: list[JobRecord], asked: Listing, part: Part) -> None:
        history = part.history
        if part.landed and part.landed not in history.states:
            return  # it took so long that nobody remembers what there was
        found = [_without_payload(job) for job in jobs]
        shown_ids = {job.id for job in jobs}

        def seen(records: list[JobRecord]) -> list[JobRecord]:
            """Without large ones that ended while their payloads were read."""
            return [
                part.shown(job)
                for job in asked.of(records)
                if job.spec.blob is None or job.id in shown_ids or job.id in history.state.jobs
            ]

        self._demand(
            any(found == seen(records) for records in _states_since(history, part.landed)),
            f"is shown {[job.id[:8] for job in jobs]}, and from {part.landed} to {history.position} that was never so",
        )

    def _check_payloads(self, jobs: list[JobRecord]) -> None:
        history = self._world.history
        for job in jobs:
            expected = history.payloads.get(job.id)
            history.demand(
                expected is None or job.spec.payload == expected,
                Invariant.PAYLOADS,
                lambda: f"{self._life.name} is shown job {job.id[:8]} with {job.spec.payload!r}: {expected!r}",  # noqa: B023
            )

    # --- The archive ---

    async def read_archive(self, queue: Queue[bytes]) -> None:
        while await self._readers.pause(1.5):
            asked, parts = self._reading(), self._parts()
            jobs: list[ArchivedJob] = []
            whole = False
            try:
                async with aclosing(queue.archive(**asked._asdict())) as archive:
                    async for job in archive:
                        jobs.append(job)  # noqa: PERF401  what comes before an error counts
                whole = True
            except CasqueError as error:
                await self._readers.refused("reads the archive", error)
            with self._world.watching():
                for part in parts:
                    self._check_archive([job for job in jobs if part.holds(job.position)], asked, part, whole=whole)

    def _reading(self) -> Reading:
        rng = self._rng
        finished = [one for part in self._parts() for one in part.shelves.finished]
        moments = sorted(from_ms(one.at_ms) for one in rng.sample(finished, min(2, len(finished))))
        since = moments[0] if moments and rng.random() < 0.3 else None
        until = moments[-1] if moments and rng.random() < 0.3 else None
        return Reading(since, until, rng.choice((None, None, "mail")), rng.choice(ARCHIVED))

    def _check_archive(self, jobs: list[ArchivedJob], asked: Reading, part: Part, *, whole: bool) -> None:
        """Each is one that was finished, in order and once. Between them, and up to the end of an answer that was
        whole, nothing is left out that had been archived when it was asked for."""
        wanted = [one for one in part.shelves.finished if asked.wants(one)]
        wanted.sort(key=lambda one: (hour_of(one.at_ms), one.position))
        expected = part.archived_as(wanted)
        back = [job.id[:8] for job in jobs if part.is_gone(job)]
        self._demand(not back, f"reads {back} in the archive, which were erased")
        at = 0
        for job in jobs:
            begin = at
            while at < len(expected) and expected[at] != job:
                at += 1
            self._demand(
                at < len(expected), f"reads {job.id[:8]} of {job.position} in the archive, wrong or out of order"
            )
            self._check_none_left_out(wanted[begin:at], part)
            at += 1
        if whole:
            self._check_none_left_out(wanted[at:], part)

    def _check_none_left_out(self, passed_over: list[Finished], part: Part) -> None:
        missing = [
            one.position for one in passed_over if one.position <= part.archived and not part.shelves.may_be_erased(one)
        ]
        self._demand(not missing, f"reads the archive without what was finished by {missing}")

    def _demand(self, holds: bool, detail: str) -> None:
        self._world.history.demand(holds, Invariant.SHOWN, lambda: f"{self._life.name} {detail}")


def _without_payload(job: JobRecord) -> JobRecord:
    """It lies beside the queue if it is large, and is read later."""
    return msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, payload=b"", blob=None, blob_bytes=0))


def _states_since(history: History, landed: int) -> Iterator[list[JobRecord]]:
    """All jobs at this position and at every step from there on: a look in the middle of a batch sees what the calls
    before it in the batch have done."""
    kept = history.states[landed] if landed else State()
    assert isinstance(kept, State)
    state = deepcopy(kept)
    yield list(state.listed())
    for position in range(landed + 1, history.position + 1):
        commit = history.segments[position]
        for events in _steps(commit.events):
            state.replay(events, writer=commit.writer, batch=commit.batch, at_ms=commit.at)
            yield list(state.listed())


def _steps(events: list[Event]) -> Iterator[list[Event]]:
    """Event by event, but an admission with all of its jobs."""
    at = 0
    while at < len(events):
        event = events[at]
        end = at + 1 + (event.added if isinstance(event, Admitted) else 0)
        yield events[at:end]
        at = end
