"""A ring of shards behind the same verbs as a single queue."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from copy import copy
from itertools import islice
from typing import Any, Self, TypeVar, Unpack, cast

import msgspec

from casque.codec.ring import RingHead
from casque.environment import Environment
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
from casque.ring.walker import Walker
from casque.service import ArchivedJob, ArchiveFilter, QueueEvent, QueueService, ShardService, Stats
from casque.service.requests import (
    Ack,
    Admit,
    Dequeue,
    DropSchedule,
    Enqueue,
    Find,
    GetStats,
    GiveBack,
    Heartbeat,
    Heartbeats,
    HeartbeatZone,
    LeaseZone,
    ListJobs,
    ListSchedules,
    ListZones,
    Nack,
    PauseSchedule,
    PeekZones,
    Purge,
    ReleaseZone,
    Request,
    RequeueStale,
    SetGate,
    SetSchedule,
    Settle,
    SetZone,
)
from casque.types import (
    ALL_OPEN,
    Admission,
    Gate,
    Gates,
    JobRecord,
    PeekedZone,
    Reach,
    Totals,
    ZoneLease,
    ZoneStanding,
)

A = TypeVar("A")
R = TypeVar("R")

STRAGGLING_S = 10.0
"""A heartbeat without an answer may still arrive within this time; by then it has been sent again."""
SCHEDULES_AT = 0
"""The shard that has the schedules: it exists in every size, so that no resize moves them."""


class RingService(QueueService):
    """Satisfies `QueueService`, over shards that are open in this process, or led by brokers.

    docs/explanation/the-ring.md describes how its guarantees differ from those of a single queue.
    """

    def __init__(self, shards: Shards, env: Environment, *, books: Books, feeds: bool = True) -> None:
        """`feeds`: whether shards can be followed. Not over a wire: a reader that is cut off there resumes with one
        number, and each shard has its own."""
        self._feeds = feeds
        self._shards = shards
        self._clock = env.clock
        self._admitter = Admitter(shards, books)
        self._enqueuer = Enqueuer(shards, env)
        self._walker = Walker(shards, env)
        self._leaser = Leaser(shards, env)
        self._late: dict[asyncio.Future[None], None] = {}
        """Heartbeats that a shard has not answered in time: they may still arrive."""
        self._reach: Reach | None = None

    def within(self, reach: Reach) -> Self:
        """The same ring, for a caller limited to some of its jobs: each shard checks its own."""
        scoped = copy(self)
        scoped._reach = reach  # noqa: SLF001  a copy of this very object
        return scoped

    def _at(self, shard: Shard) -> ShardService:
        """A shard, for requests that name a job or a schedule."""
        return shard.service if self._reach is None else shard.service.within(self._reach)

    async def start(self) -> None:
        await self._shards.start()

    async def refresh(self) -> RingHead:
        """Check whether the ring has changed, also without calls."""
        return await self._shards.refresh()

    async def stop(self) -> None:
        for call in self._late:
            call.cancel()
        await self._walker.close()
        await self._shards.stop()

    def call(self, request: Request[A]) -> Awaitable[A]:
        return cast("Awaitable[A]", getattr(self, _METHODS.get(type(request), "_at_job"))(request))

    # --- Producing ---

    async def _enqueue(self, request: Enqueue) -> Sequence[JobRecord]:
        """Each zone's jobs are added together or not at all; jobs without a zone go to one shard together."""
        return await self._enqueuer.enqueue(request.specs, request.request_id) if request.specs else ()

    def _admit(self, request: Admit) -> Awaitable[Admission]:
        """Each shard admits its own jobs, all or none; the batch is complete when all have, however often it takes."""
        return self._admitter.admit(request.source, request.batch, request.parts, skip_known=request.skip_known)

    # --- Working ---

    def _dequeue(self, request: Dequeue) -> Awaitable[list[JobRecord]]:
        if request.zone_lease is not None:
            return self._leaser.dequeue(request, *request.zone_lease)
        return self._walker.dequeue(request)

    async def _settle(self, request: Settle) -> list[CasqueError | None]:
        """One commit in each shard concerned."""
        outcomes = request.outcomes
        if not outcomes:
            return []
        by_shard = await self._by_shard([outcome.token for outcome in outcomes])

        async def settled(number: int, rows: list[int]) -> list[CasqueError | None]:
            shard = await self._shards.shard(number)
            own = tuple([msgspec.structs.replace(outcomes[row], token=inner(outcomes[row].token)[0]) for row in rows])
            answers = await self._at(shard).call(Settle(own, request.request_id))
            return [None if answer is None else error_of(answer, number) for answer in answers]

        answers: list[CasqueError | None] = [JobNotFoundError(outcome.job_id) for outcome in outcomes]
        numbers = list(by_shard)
        for number, some in zip(numbers, await _all(settled(n, by_shard[n]) for n in numbers), strict=True):
            for row, answer in zip(by_shard[number], some, strict=True):
                answers[row] = answer
        missing = [row for row, answer in enumerate(answers) if isinstance(answer, JobNotFoundError)]
        # Report what was done, even if the jobs cannot be looked up any more.
        with suppress(CasqueError):
            there = await self._present([outcomes[row].job_id for row in missing]) if missing else set()
            for row in missing:
                if outcomes[row].job_id in there:  # the token belongs to another shard
                    answers[row] = LeaseLostError(outcomes[row].job_id, outcomes[row].token)
        return answers

    async def _heartbeats(self, request: Heartbeats) -> list[JobRecord | CasqueError]:
        """Call each shard by itself, with a time limit: a worker with leases in several shards must not lose those in
        healthy ones because of one without a leader. A lease whose shard has not answered in time gets NoLeaderError.
        """
        leases = request.leases
        by_shard = await self._by_shard([-1 if lease.token is None else lease.token for lease in leases])
        answers: list[JobRecord | CasqueError | None] = [None] * len(leases)

        async def beaten(number: int, rows: list[int]) -> None:
            shard = await self._shards.shard(number)
            own = tuple([msgspec.structs.replace(leases[row], token=inner(leases[row].token or 0)[0]) for row in rows])
            for row, answer in zip(rows, await self._at(shard).call(Heartbeats(own)), strict=True):
                answers[row] = _beat_of(answer, number)

        async def looked_for(row: int) -> None:
            lease = leases[row]
            shard, own = await self._holder(lease.job_id, None, None)
            [answer] = await self._at(shard).call(Heartbeats((msgspec.structs.replace(lease, token=own),)))
            answers[row] = _beat_of(answer, shard.token)

        async def looked_at_again(row: int) -> None:
            """The token belongs to another shard: the lease is lost if the job is elsewhere."""
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
        """A failed call is the answer for its rows. A slow call goes on for a while."""
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

    async def _give_back(self, request: GiveBack) -> None:
        own, number = inner(request.token)
        if number < await self._count(number):
            await self._at(await self._shards.shard(number)).call(GiveBack(request.job_id, own))

    def _peek_zones(self, request: PeekZones) -> Awaitable[list[PeekedZone]]:
        """From one shard after the other, until there are enough."""
        return self._leaser.peek(request)

    def _lease_zone(self, request: LeaseZone) -> Awaitable[ZoneLease | None]:
        return self._leaser.lease(request)

    def _heartbeat_zone(self, request: HeartbeatZone) -> Awaitable[ZoneLease]:
        return self._leaser.heartbeat(request.zone, request.token)

    def _release_zone(self, request: ReleaseZone) -> Awaitable[None]:
        return self._leaser.release(request.zone, request.token)

    # --- Managing ---

    async def _at_job(self, request: Any) -> JobRecord | None:
        """Handle a request that names one job, and no lease."""
        shard, _ = await self._holder(request.job_id, None, request.request_id)
        return _shown(await self._at(shard).call(request), shard)

    async def _counted(self, request: Purge | RequeueStale) -> int:
        """The sum over all shards."""
        return sum(await _all(one.service.call(request) for one in await self._shards.every()))

    async def _everywhere(self, request: SetGate | SetZone) -> None:
        """Write it to every shard that exists, the first one first: a resize copies from it. So a setting is in each
        shard before the ring lets jobs into it.

        Raises:
            UnknownOutcomeError: some shards carried it out, and others did not.
        """
        called = 0
        try:
            while True:
                shards = await self._shards.every()
                if not called:
                    await shards[0].service.call(request)
                    called = 1
                await _all(one.service.call(request) for one in shards[called:])
                called = len(shards)
                if (await self._shards.refresh()).shards == called:
                    return
        except CasqueError as error:
            if not called or isinstance(error, UnknownOutcomeError):
                raise
            raise UnknownOutcomeError(
                f"some shards have done it, others have not: {error}. Repeat the call with the same request_id"
            ) from error

    async def _scheduled(self, request: Request[A]) -> A:
        """Requests about schedules."""
        if isinstance(request, SetSchedule) and (request.spec.job.zone is not None or request.spec.job.key is not None):
            raise InvalidInputError(
                "on a ring of shards the job of a schedule has no zone and no unique key: let it enqueue, when it "
                "runs, what has one"
            )
        return await self._at(await self._shards.shard(SCHEDULES_AT)).call(request)

    # --- Looking ---

    async def _list_zones(self, request: ListZones) -> list[ZoneStanding]:
        shards = await self._shards.every()
        answers = await asyncio.gather(*(one.service.call(request) for one in shards))
        found: dict[str, ZoneStanding] = {}
        for shard, several in zip(shards, answers, strict=True):
            for standing in several:
                # All shards know its rules; the one that has its jobs, or its lease, knows the rest.
                if standing.zone not in found or _jobs_of(standing) or standing.lease is not None:
                    lease = None if standing.lease is None else lease_of(standing.lease, shard.token)
                    found[standing.zone] = msgspec.structs.replace(standing, lease=lease)
        return sorted(found.values(), key=lambda one: (one.next_ms is None, one.next_ms or 0, one.zone))[
            : request.limit
        ]

    async def _find(self, request: Find) -> JobRecord | None:
        while True:
            shards = await self._shards.every()
            found = await asyncio.gather(*(self._at(one).call(request) for one in shards))
            for shard, job in zip(shards, found, strict=True):
                if job is not None:
                    return record_of(job, shard.token)
            if not await self._has_grown(len(shards)):
                return None

    async def _list_jobs(self, request: ListJobs) -> list[JobRecord]:
        """Jobs of each shard in enqueue order, the shards in turns."""

        async def listed(shard: Shard) -> list[JobRecord]:
            own = msgspec.structs.replace(request, after=after_of(request.after, shard.token))
            return [record_of(job, shard.token) for job in await shard.service.call(own)]

        several = await asyncio.gather(*map(listed, await self._shards.every()))
        return list(islice(heapq.merge(*several, key=lambda job: job.sequence), request.limit))

    async def _stats(self, request: GetStats) -> Stats:
        """The sums over all shards, including the position, which rises with every commit of any of them."""
        return summed(await asyncio.gather(*(shard.service.call(request) for shard in await self._shards.every())))

    def events(self, *, from_position: Begin = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        """The events of all shards, each with its shard."""
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

    async def archive(self, **asked: Unpack[ArchiveFilter]) -> AsyncGenerator[ArchivedJob]:
        archives = {shard.token: shard.service.archive(**asked) for shard in await self._shards.every()}
        async with aclosing(merged(archives)) as jobs:
            async for job in jobs:
                yield job

    # --- Which shard ---

    async def _at_lease(self, request: Ack | Nack | Heartbeat) -> JobRecord | None:
        """Call the shard of the lease, with the shard's own token."""
        job_id, token = request.job_id, request.token
        request_id = None if isinstance(request, Heartbeat) else request.request_id
        shard, own = await self._holder(job_id, token, request_id)
        try:
            return _shown(await self._at(shard).call(msgspec.structs.replace(request, token=own)), shard)
        except LeaseLostError as error:
            raise error_of(error, shard.token) from None
        except JobNotFoundError:
            if token is not None and await self._present([job_id]):
                raise LeaseLostError(job_id, token) from None
            raise

    async def _holder(self, job_id: str, token: int | None, request_id: str | None) -> tuple[Shard, int | None]:
        """The shard of a token; without one, the shard that remembers the request, or else has the job: another job may
        have its id by now.

        Raises:
            JobNotFoundError: none has it.
            LeaseLostError: no shard has issued such a token.
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
                if knows.jobs and (self._reach is None or await self._at(shard).call(Find(job_id)) is not None):
                    return shard, None
            if not await self._has_grown(len(shards)):
                raise JobNotFoundError(job_id)

    async def _has_grown(self, asked: int) -> bool:
        """True if there are more shards than were asked. A caller that knows a job may know a newer ring than this
        process."""
        return (await self._shards.refresh()).shards > asked

    async def _count(self, number: int) -> int:
        """The number of shards. A caller that names an unknown one may know a newer ring."""
        if number >= self._shards.head.shards:
            await self._shards.refresh()
        return self._shards.head.shards

    async def _by_shard(self, tokens: list[int]) -> dict[int, list[int]]:
        """The rows of each shard. Invalid tokens are in none of them."""
        by_shard: dict[int, list[int]] = {}
        for row, token in enumerate(tokens):
            if token > 0:
                by_shard.setdefault(inner(token)[1], []).append(row)
        count = await self._count(max(by_shard, default=0))
        return {number: rows for number, rows in by_shard.items() if number < count}

    async def _present(self, job_ids: list[str]) -> set[str]:
        """Which of these jobs are in the queue, for this caller."""
        if self._reach is not None:
            records = await asyncio.gather(*(self._find(Find(job_id)) for job_id in job_ids))
            return {job.id for job in records if job is not None}
        found = await self._shards.known(await self._shards.every(), job_ids)
        return set[str]().union(*(one.jobs for one in found))


def _shown(job: JobRecord | None, shard: Shard) -> JobRecord | None:
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
    """Gates are set one shard after the other: an entrypoint that one shard keeps closed is not open."""
    merged = ALL_OPEN
    for gates in several:
        for entrypoint, gate in [(None, gates.queue), *gates.entrypoints.items()]:
            if merged.of(entrypoint) is Gate.OPEN and gate is not Gate.OPEN:
                merged = merged.with_gate(entrypoint, gate)
    return merged


_METHODS: dict[type[Request[Any]], str] = {
    Enqueue: "_enqueue",
    Admit: "_admit",
    Dequeue: "_dequeue",
    Ack: "_at_lease",
    Nack: "_at_lease",
    Heartbeat: "_at_lease",
    Heartbeats: "_heartbeats",
    Settle: "_settle",
    GiveBack: "_give_back",
    PeekZones: "_peek_zones",
    LeaseZone: "_lease_zone",
    HeartbeatZone: "_heartbeat_zone",
    ReleaseZone: "_release_zone",
    Purge: "_counted",
    RequeueStale: "_counted",
    SetGate: "_everywhere",
    SetZone: "_everywhere",
    SetSchedule: "_scheduled",
    PauseSchedule: "_scheduled",
    DropSchedule: "_scheduled",
    ListSchedules: "_scheduled",
    Find: "_find",
    ListJobs: "_list_jobs",
    ListZones: "_list_zones",
    GetStats: "_stats",
}
"""The other requests name one job, and go to its shard."""
