"""A ring of shards behind the same verbs as a single queue."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from copy import copy
from datetime import datetime
from itertools import islice
from typing import Any, Self, TypeVar, cast

import msgspec

from casque.clock import Clock, Random
from casque.codec.ring import RingHead
from casque.errors import (
    CasqueError,
    InvalidInputError,
    JobNotFoundError,
    LeaseLostError,
    NoLeaderError,
    RingError,
    UnknownOutcomeError,
)
from casque.ring.admissions import Books
from casque.ring.admitter import Admitter
from casque.ring.archives import merged
from casque.ring.enqueuer import Enqueuer
from casque.ring.feeds import Begin, merged_feed
from casque.ring.leaser import Leaser
from casque.ring.numbers import after_of, error_of, inner, lease_of, record_of
from casque.ring.shards import Shard, Shards, cut_off, in_time, together, worst
from casque.ring.walker import Asked, Walker
from casque.service import ArchivedJob, Lease, Outcome, QueueEvent, QueueService, ShardService, Stats
from casque.types import (
    ALL_OPEN,
    Admission,
    Backoff,
    Gate,
    Gates,
    JobRecord,
    JobSpec,
    JobState,
    PeekedZone,
    Reach,
    Schedule,
    ScheduleSpec,
    StagedPart,
    Totals,
    ZoneLease,
    ZoneRules,
    ZoneStanding,
)

R = TypeVar("R")

STRAGGLING_S = 10.0
"""A heartbeat that was not answered in time may still arrive within this; by then it has been sent again."""
SCHEDULES_AT = 0
"""The shard that has the schedules: it is there whatever the size, so that no resize moves them."""


class RingService:
    """Satisfies `QueueService`, over shards that are open in this process, or led by brokers.

    What the ring adds to the promises of a queue, and what it takes from them, is in docs/explanation/the-ring.md.
    """

    def __init__(self, shards: Shards, *, clock: Clock, rng: Random, books: Books, feeds: bool = True) -> None:
        """`feeds`: whether the shards are followed. Over a wire they are not: whoever is cut off there says by one
        number where to go on, and each shard has its own."""
        self._feeds = feeds
        self._shards = shards
        self._clock = clock
        self._admitter = Admitter(shards, books)
        self._enqueuer = Enqueuer(shards, rng=rng)
        self._walker = Walker(shards, clock=clock, rng=rng)
        self._leaser = Leaser(shards, clock=clock, rng=rng)
        self._late: dict[asyncio.Future[None], None] = {}
        """Heartbeats that a shard has not answered in time: they may still arrive."""
        self._reach: Reach | None = None

    def within(self, reach: Reach) -> Self:
        """The same ring, for a caller who may name only some of its jobs: each shard judges its own."""
        scoped = copy(self)
        scoped._reach = reach  # noqa: SLF001  a copy of this very object
        return scoped

    def _at(self, shard: Shard) -> ShardService:
        """A shard, for what names a job or a schedule."""
        return shard.service if self._reach is None else shard.service.within(self._reach)

    async def start(self) -> None:
        await self._shards.start()

    async def refresh(self) -> RingHead:
        """Look whether the ring has changed, also when nobody asks for anything."""
        return await self._shards.refresh()

    async def stop(self) -> None:
        for call in self._late:
            call.cancel()
        await self._walker.close()
        await self._shards.stop()

    # --- Producing ---

    async def enqueue(self, specs: Sequence[JobSpec], *, request_id: str | None = None) -> Sequence[JobRecord]:
        """Each zone's jobs are added together or not at all; what has no zone goes to one shard together."""
        return await self._enqueuer.enqueue(specs, request_id) if specs else ()

    async def admit(
        self, source: str, batch: int, parts: Sequence[StagedPart], *, skip_known: bool = False
    ) -> Admission:
        """Each shard admits its own jobs, all or none; the batch is complete when all have, however often it takes."""
        return await self._admitter.admit(source, batch, parts, skip_known=skip_known)

    # --- Working ---

    async def dequeue(
        self,
        *,
        entrypoints: tuple[str, ...] | None,
        limit: int,
        first: bool = False,
        lease_ms: int | None = None,
        worker: str | None = None,
        wait_s: float = 0.0,
        request_id: str | None = None,
        zones: tuple[str, ...] | None = None,
        zone_lease: ZoneLease | None = None,
    ) -> list[JobRecord]:
        asked = Asked(entrypoints, limit, lease_ms, worker, request_id, zones, first=first)
        if zone_lease is not None:
            return await self._leaser.dequeue(asked, zone_lease, wait_s=wait_s)
        return await self._walker.dequeue(asked, wait_s=wait_s)

    async def ack(
        self, job_id: str, *, token: int | None = None, result: bytes | None = None, request_id: str | None = None
    ) -> None:
        await self._at_lease(
            job_id,
            token,
            request_id,
            lambda shard, own: self._at(shard).ack(job_id, token=own, result=result, request_id=request_id),
        )

    async def nack(
        self,
        job_id: str,
        *,
        token: int | None = None,
        delay_ms: int | None = None,
        backoff: Backoff | None = None,
        error: str | None = None,
        request_id: str | None = None,
    ) -> JobRecord | None:
        return await self._at_lease(
            job_id,
            token,
            request_id,
            lambda shard, own: _told(
                shard,
                self._at(shard).nack(
                    job_id, token=own, delay_ms=delay_ms, backoff=backoff, error=error, request_id=request_id
                ),
            ),
        )

    async def heartbeat(self, job_id: str, *, token: int | None = None) -> JobRecord:
        async def beat(shard: Shard, own: int | None) -> JobRecord:
            return record_of(await self._at(shard).heartbeat(job_id, token=own), shard.token)

        return await self._at_lease(job_id, token, None, beat)

    async def settle(self, outcomes: Sequence[Outcome], *, request_id: str | None = None) -> list[CasqueError | None]:
        """One commit in each shard that is concerned."""
        if not outcomes:
            return []
        by_shard = await self._by_shard([outcome.token for outcome in outcomes])

        async def settled(number: int, rows: list[int]) -> list[CasqueError | None]:
            shard = await self._shards.shard(number)
            own = [msgspec.structs.replace(outcomes[row], token=inner(outcomes[row].token)[0]) for row in rows]
            answers = await self._at(shard).settle(own, request_id=request_id)
            return [None if answer is None else error_of(answer, number) for answer in answers]

        answers: list[CasqueError | None] = [JobNotFoundError(outcome.job_id) for outcome in outcomes]
        numbers = list(by_shard)
        for number, some in zip(numbers, await _all(settled(n, by_shard[n]) for n in numbers), strict=True):
            for row, answer in zip(by_shard[number], some, strict=True):
                answers[row] = answer
        missing = [row for row, answer in enumerate(answers) if isinstance(answer, JobNotFoundError)]
        # What was done is done and is told, also if nobody can look any more.
        with suppress(CasqueError):
            there = await self._present([outcomes[row].job_id for row in missing]) if missing else set()
            for row in missing:
                if outcomes[row].job_id in there:  # its token is none of its shard's
                    answers[row] = LeaseLostError(outcomes[row].job_id, outcomes[row].token)
        return answers

    async def heartbeats(self, leases: Sequence[Lease]) -> list[JobRecord | CasqueError]:
        """Each shard by itself, and none for long: whoever keeps leases in several must not lose those in healthy ones
        because of one that has no leader. A lease whose shard has not answered in time is told NoLeaderError."""
        by_shard = await self._by_shard([-1 if lease.token is None else lease.token for lease in leases])
        answers: list[JobRecord | CasqueError | None] = [None] * len(leases)

        async def beaten(number: int, rows: list[int]) -> None:
            shard = await self._shards.shard(number)
            own = [msgspec.structs.replace(leases[row], token=inner(leases[row].token or 0)[0]) for row in rows]
            for row, answer in zip(rows, await self._at(shard).heartbeats(own), strict=True):
                answers[row] = _beat_of(answer, number)

        async def looked_for(row: int) -> None:
            lease = leases[row]
            shard, own = await self._holder(lease.job_id, None, None)
            [answer] = await self._at(shard).heartbeats([msgspec.structs.replace(lease, token=own)])
            answers[row] = _beat_of(answer, shard.token)

        async def looked_at_again(row: int) -> None:
            """With a token that is none of its shard's: it is lost, if the job is elsewhere."""
            lease = leases[row]
            if lease.token is not None and await self._present([lease.job_id]):
                answers[row] = LeaseLostError(lease.job_id, lease.token)

        of_a_shard = {row for rows in by_shard.values() for row in rows}
        blind = [row for row, lease in enumerate(leases) if lease.token is None]
        for row, lease in enumerate(leases):
            if row not in of_a_shard and lease.token is not None:
                answers[row] = JobNotFoundError(lease.job_id)  # there is no such shard
        asked = [(rows, beaten(number, rows)) for number, rows in by_shard.items()]
        await self._in_time([*asked, *(([row], looked_for(row)) for row in blind)], answers)
        missing = [row for row, answer in enumerate(answers) if isinstance(answer, JobNotFoundError)]
        await self._in_time([([row], looked_at_again(row)) for row in missing], list(answers))
        return [NoLeaderError("its shard did not answer in time") if one is None else one for one in answers]

    async def _in_time(
        self,
        calls: Sequence[tuple[list[int], Coroutine[Any, Any, None]]],
        answers: list[JobRecord | CasqueError | None],
    ) -> None:
        """What fails is the answer of the rows that it is for. What takes long goes on for a while."""
        for (rows, _), call in zip(calls, await in_time((one for _, one in calls), clock=self._clock), strict=True):
            if not call.done():
                self._late[call] = None
                self._clock.call_later(STRAGGLING_S, call.cancel)
                call.add_done_callback(self._heard_late)
                continue
            error = cut_off() if call.cancelled() else call.exception()
            if error is not None:
                if not isinstance(error, CasqueError):
                    raise error
                for row in rows:
                    answers[row] = error

    def _heard_late(self, call: asyncio.Future[None]) -> None:
        self._late.pop(call, None)
        if not call.cancelled():
            call.exception()

    async def give_back(self, job_id: str, *, token: int) -> None:
        own, number = inner(token)
        if number < await self._count(number):
            await self._at(await self._shards.shard(number)).give_back(job_id, token=own)

    async def peek_zones(
        self,
        *,
        entrypoints: tuple[str, ...] | None = None,
        names: frozenset[str] | None = None,
        limit: int = 100,
    ) -> list[PeekedZone]:
        """Of one shard after the other, until there are enough."""
        return await self._leaser.peek(entrypoints, names, limit)

    async def lease_zone(
        self, zone: str, *, lease_ms: int | None = None, worker: str | None = None, request_id: str | None = None
    ) -> ZoneLease | None:
        return await self._leaser.lease(zone, lease_ms=lease_ms, worker=worker, request_id=request_id)

    async def heartbeat_zone(self, zone: str, *, token: int) -> ZoneLease:
        return await self._leaser.heartbeat(zone, token)

    async def release_zone(self, zone: str, *, token: int) -> None:
        await self._leaser.release(zone, token)

    # --- Managing ---

    async def cancel(self, job_id: str, *, request_id: str | None = None) -> None:
        shard, _ = await self._holder(job_id, None, request_id)
        await self._at(shard).cancel(job_id, request_id=request_id)

    async def retry(self, job_id: str, *, request_id: str | None = None) -> JobRecord | None:
        shard, _ = await self._holder(job_id, None, request_id)
        return await _told(shard, self._at(shard).retry(job_id, request_id=request_id))

    async def purge(
        self, *, entrypoint: str | None = None, request_id: str | None = None, zone: str | None = None
    ) -> int:
        shards = await self._shards.every()
        return sum(
            await _all(one.service.purge(entrypoint=entrypoint, request_id=request_id, zone=zone) for one in shards)
        )

    async def requeue_stale(
        self,
        older_ms: int,
        *,
        entrypoint: str | None = None,
        request_id: str | None = None,
        zone: str | None = None,
    ) -> int:
        shards = await self._shards.every()
        return sum(
            await _all(
                one.service.requeue_stale(older_ms, entrypoint=entrypoint, request_id=request_id, zone=zone)
                for one in shards
            )
        )

    async def set_gate(self, gate: Gate, *, entrypoint: str | None = None, request_id: str | None = None) -> None:
        await self._everywhere(lambda one: one.set_gate(gate, entrypoint=entrypoint, request_id=request_id))

    async def set_zone(self, zone: str, rules: ZoneRules, *, request_id: str | None = None) -> None:
        """In every shard: wherever the zone is, and will be, its rules are there before it."""
        await self._everywhere(lambda one: one.set_zone(zone, rules, request_id=request_id))

    async def _everywhere(self, work: Callable[[QueueService], Awaitable[None]]) -> None:
        """At every shard, the first one first: shards that are made meanwhile get theirs from it.

        Raises:
            UnknownOutcomeError: some were carried out, and others were not.
        """
        begun = False
        try:
            while True:
                generation = self._shards.head.generation
                first, *others = await self._shards.walked()
                await work(first.service)
                begun = True
                await _all(work(one.service) for one in others)
                if (await self._shards.refresh()).generation == generation:
                    return
        except CasqueError as error:
            if not begun or isinstance(error, UnknownOutcomeError):
                raise
            raise UnknownOutcomeError(
                f"some shards have done it, others have not: {error}. Repeat the call with the same request_id"
            ) from error

    async def set_schedule(self, spec: ScheduleSpec) -> Schedule:
        if spec.job.zone is not None or spec.job.key is not None:
            raise InvalidInputError(
                "on a ring of shards the job of a schedule has no zone and no unique key: let it enqueue, when it "
                "runs, what has one"
            )
        return await (await self._scheduler()).set_schedule(spec)

    async def schedules(self) -> list[Schedule]:
        return await (await self._scheduler()).schedules()

    async def pause_schedule(self, name: str, *, paused: bool) -> Schedule:
        return await (await self._scheduler()).pause_schedule(name, paused=paused)

    async def drop_schedule(self, name: str) -> None:
        await (await self._scheduler()).drop_schedule(name)

    async def _scheduler(self) -> QueueService:
        return self._at(await self._shards.shard(SCHEDULES_AT))

    # --- Looking ---

    async def zones(self, *, names: frozenset[str] | None = None, limit: int = 100) -> list[ZoneStanding]:
        shards = await self._shards.every()
        told = await asyncio.gather(*(one.service.zones(names=names, limit=limit) for one in shards))
        found: dict[str, ZoneStanding] = {}
        for shard, several in zip(shards, told, strict=True):
            for standing in several:
                # All of them know its rules; the one that has its jobs, or its lease, knows the rest.
                if standing.zone not in found or _jobs_of(standing) or standing.lease is not None:
                    lease = None if standing.lease is None else lease_of(standing.lease, shard.token)
                    found[standing.zone] = msgspec.structs.replace(standing, lease=lease)
        return sorted(found.values(), key=lambda one: (one.next_ms is None, one.next_ms or 0, one.zone))[:limit]

    async def find(self, job_id: str) -> JobRecord | None:
        while True:
            shards = await self._shards.every()
            found = await asyncio.gather(*(self._at(one).find(job_id) for one in shards))
            for shard, job in zip(shards, found, strict=True):
                if job is not None:
                    return record_of(job, shard.token)
            if not await self._has_grown(len(shards)):
                return None

    async def jobs(
        self,
        *,
        states: frozenset[JobState] | None = None,
        entrypoint: str | None = None,
        limit: int | None = None,
        after: int = 0,
    ) -> list[JobRecord]:
        """Those of each shard in enqueue order, the shards in turns."""

        async def listed(shard: Shard) -> list[JobRecord]:
            own = after_of(after, shard.token)
            found = await shard.service.jobs(states=states, entrypoint=entrypoint, limit=limit, after=own)
            return [record_of(job, shard.token) for job in found]

        several = await asyncio.gather(*map(listed, await self._shards.every()))
        return list(islice(heapq.merge(*several, key=lambda job: job.sequence), limit))

    async def stats(self) -> Stats:
        """The sums of all shards; the position too, which so rises with every commit of any of them."""
        return summed(await asyncio.gather(*(shard.service.stats() for shard in await self._shards.every())))

    def events(self, *, from_position: Begin = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        """Of all shards, each event with its own."""
        if not self._feeds:
            raise RingError(
                "through brokers its shards cannot be followed as one. Follow the ring by its own URL: the feed is "
                "read from the bucket"
            )

        async def feed_of(token: int, begin: int | None, wait: bool) -> AsyncGenerator[QueueEvent]:
            shard = await self._shards.shard(token)
            async with aclosing(shard.service.events(from_position=begin, follow=wait)) as events:
                async for event in events:
                    yield event

        async def count() -> int:
            return (await self._shards.refresh()).shards

        return merged_feed(count, feed_of, from_position, follow=follow, clock=self._clock)

    async def archive(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        entrypoint: str | None = None,
        states: frozenset[JobState] | None = None,
    ) -> AsyncGenerator[ArchivedJob]:
        archives = {
            shard.token: shard.service.archive(since=since, until=until, entrypoint=entrypoint, states=states)
            for shard in await self._shards.every()
        }
        async with aclosing(merged(archives)) as jobs:
            async for job in jobs:
                yield job

    # --- Which shard ---

    async def _at_lease(
        self,
        job_id: str,
        token: int | None,
        request_id: str | None,
        call: Callable[[Shard, int | None], Awaitable[R]],
    ) -> R:
        """Where the lease is, with the token that it has there."""
        shard, own = await self._holder(job_id, token, request_id)
        try:
            return await call(shard, own)
        except LeaseLostError as error:
            raise error_of(error, shard.token) from None
        except JobNotFoundError:
            if token is not None and await self._present([job_id]):
                raise LeaseLostError(job_id, token) from None
            raise

    async def _holder(self, job_id: str, token: int | None, request_id: str | None) -> tuple[Shard, int | None]:
        """The shard that a token is of; without one, the shard that remembers the request, or else has the job: another
        job may have its id by now.

        Raises:
            JobNotFoundError: none has it.
            LeaseLostError: no shard has given out such a token.
        """
        if token is not None:
            own, number = inner(token)
            if number < await self._count(number):
                return await self._shards.shard(number), own
            if await self._present([job_id]):
                raise LeaseLostError(job_id, token)
            raise JobNotFoundError(job_id)
        while True:
            shards = await self._shards.every()
            known = list(zip(shards, await self._shards.known(shards, [job_id], request_id), strict=True))
            for shard, knows in known:
                if knows.request:
                    return shard, None
            for shard, knows in known:
                if knows.jobs and (self._reach is None or await self._at(shard).find(job_id) is not None):
                    return shard, None
            if not await self._has_grown(len(shards)):
                raise JobNotFoundError(job_id)

    async def _has_grown(self, asked: int) -> bool:
        """Whether there are more shards than were asked. Who knows of a job may know a newer ring than this process."""
        return (await self._shards.refresh()).shards > asked

    async def _count(self, number: int) -> int:
        """How many shards there are. Whoever names one that is not known may know a newer ring."""
        if number >= self._shards.head.shards:
            await self._shards.refresh()
        return self._shards.head.shards

    async def _by_shard(self, tokens: list[int]) -> dict[int, list[int]]:
        """The rows of each shard. Tokens that are none are in none of them."""
        by_shard: dict[int, list[int]] = {}
        for row, token in enumerate(tokens):
            if token > 0:
                by_shard.setdefault(inner(token)[1], []).append(row)
        count = await self._count(max(by_shard, default=0))
        return {number: rows for number, rows in by_shard.items() if number < count}

    async def _present(self, job_ids: list[str]) -> set[str]:
        """Which of these jobs are in the queue, for this caller."""
        if self._reach is not None:
            records = await asyncio.gather(*map(self.find, job_ids))
            return {job.id for job in records if job is not None}
        found = await self._shards.known(await self._shards.every(), job_ids)
        return set[str]().union(*(one.jobs for one in found))


async def _told(shard: Shard, call: Awaitable[JobRecord | None]) -> JobRecord | None:
    job = await call
    return None if job is None else record_of(job, shard.token)


def _jobs_of(standing: ZoneStanding) -> int:
    return standing.ready + standing.delayed + standing.running + standing.dead


def _beat_of(answer: JobRecord | CasqueError, shard: int) -> JobRecord | CasqueError:
    return record_of(answer, shard) if isinstance(answer, JobRecord) else error_of(answer, shard)


async def _all(calls: Iterable[Awaitable[R]]) -> list[R]:
    """
    Raises:
        UnknownOutcomeError: some were carried out, and others were not.
    """
    answers = await together(calls)
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    if failures and len(failures) < len(answers):
        raise UnknownOutcomeError(
            f"{len(answers) - len(failures)} of {len(answers)} shards have done it, others have not: {failures[0]}. "
            "Repeat the call with the same request_id, or look first"
        ) from failures[0]
    if failures:
        raise worst(failures)
    return cast("list[R]", answers)


def summed(stats: Sequence[Stats]) -> Stats:
    totals, gates = total([one.totals for one in stats]), strictest([one.gates for one in stats])
    return Stats(sum(one.position for one in stats), totals, gates)


def total(several: list[Totals]) -> Totals:
    return Totals(*(sum(getattr(one, name) for one in several) for name in Totals.__struct_fields__))


def strictest(several: list[Gates]) -> Gates:
    """They are set one after the other: what one of them keeps out is not open."""
    merged = ALL_OPEN
    for gates in several:
        for entrypoint, gate in [(None, gates.queue), *gates.entrypoints.items()]:
            if merged.of(entrypoint) is Gate.OPEN and gate is not Gate.OPEN:
                merged = merged.with_gate(entrypoint, gate)
    return merged
