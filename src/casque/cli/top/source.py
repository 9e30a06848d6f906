"""Where a board reads its queue: from the bucket, beside those who write it, or from a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol, Self

import msgspec

from casque.cli.target import open_brokers
from casque.cli.top.board import Board, Contents, Picture
from casque.client.config import QueueConfig
from casque.client.head import RING, require_head
from casque.client.leading import leader_of
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS, Queue
from casque.clock import Clock, SystemClock
from casque.errors import CasqueError, CorruptQueueError, HistoryGoneError, NoHistoryError
from casque.ring.numbers import record_of
from casque.ring.service import SCHEDULES_AT, strictest, total
from casque.service import QueueEvent
from casque.storage.port import Store
from casque.storage.url import is_address
from casque.types import JobRecord

PAGE = 5_000
JOBS_MAX = 200_000
"""Jobs that are read from a broker. Others are only counted, until an event names them."""
RETRY_S = 1.0


class Source(Protocol):
    """A queue to watch."""

    layout: str | None

    async def read(self) -> Contents: ...

    def events(self, position: int) -> AsyncGenerator[QueueEvent]: ...

    async def leader(self) -> str | None: ...

    async def close(self) -> None: ...


async def open_source(place: QueueConfig) -> Source:
    """
    Raises:
        InvalidInputError: there is no queue.
    """
    if is_address(place.url):
        queue = open_brokers(place, "casque top", **place.changes())
        return BrokerSource(await queue.__aenter__())
    store = as_store(place.url, place.options)
    try:
        hint = f". Is {place.url} right? `casque queue create` makes one"
        layout = (await require_head(store, hint)).layout
    except BaseException:
        await store.close()
        raise
    parts = Parts(store, DEFAULTS.with_changes(place.changes()))
    return RingSource(store, parts) if layout == RING else BucketSource(store, parts, layout)


class BucketSource:
    """Reads a bucket. Never writes: it expires no lease, and does not count as another process."""

    def __init__(self, store: Store, parts: Parts, layout: str) -> None:
        self._store = store
        self._parts = parts
        self.layout: str | None = layout

    async def read(self) -> Contents:
        state = await self._parts.read()
        totals = state.totals(self._parts.clock.wall_ms())
        jobs, schedules = list(state.jobs.values()), list(state.schedules.values())
        return Contents(state.position, totals, jobs, schedules, state.gates)

    def events(self, position: int) -> AsyncGenerator[QueueEvent]:
        return self._parts.history().events(from_position=position)

    async def leader(self) -> str | None:
        return (await leader_of(self._store)).address

    async def close(self) -> None:
        await self._store.close()


class RingSource:
    """Reads the shards of a ring. Its position is the sum of theirs, and rises with every commit of any."""

    layout: str | None = RING

    def __init__(self, store: Store, parts: Parts) -> None:
        self._store = store
        self._parts = parts
        self._positions: dict[int, int] = {}

    async def read(self) -> Contents:
        head = await self._parts.root().read()
        states = await asyncio.gather(*(self._parts.shard(token).read() for token in range(head.shards)))
        self._positions = {token: state.position for token, state in enumerate(states)}
        now_ms = self._parts.clock.wall_ms()
        return Contents(
            sum(self._positions.values()),
            total([state.totals(now_ms) for state in states]),
            [record_of(job, token) for token, state in enumerate(states) for job in state.jobs.values()],
            list(states[SCHEDULES_AT].schedules.values()),
            strictest([state.gates for state in states]),
        )

    async def events(self, position: int) -> AsyncGenerator[QueueEvent]:
        async with aclosing(Queue.open(self._store).events(from_position=dict(self._positions))) as events:
            async for event in events:
                if event.position > self._positions.get(event.shard, 0):
                    position += 1
                    self._positions[event.shard] = event.position
                yield msgspec.structs.replace(event, position=position)

    async def leader(self) -> str | None:
        return None

    async def close(self) -> None:
        await self._store.close()


class BrokerSource:
    """Asks the broker that leads."""

    layout: str | None = None

    def __init__(self, queue: Queue[bytes]) -> None:
        self._queue = queue

    async def read(self) -> Contents:
        stats = await self._queue.stats()
        jobs: list[JobRecord] = []
        while len(jobs) < JOBS_MAX:
            after = jobs[-1].sequence if jobs else 0
            page = [job.record for job in await self._queue.jobs(limit=PAGE, after=after)]
            jobs += page
            if len(page) < PAGE:
                break
        return Contents(stats.position, stats.totals, jobs, await self._queue.schedules(), stats.gates)

    def events(self, position: int) -> AsyncGenerator[QueueEvent]:
        return self._queue.events(from_position=position)

    async def leader(self) -> str | None:
        return self._queue.leader

    async def close(self) -> None:
        await self._queue.__aexit__(None, None, None)


class Watch:
    """A board that is kept up to date. To be entered with `async with`.

    Once it is open, a source that fails is asked again; meanwhile its last answer is shown, with the error.
    """

    def __init__(self, source: Source, url: str, *, retry_s: float = RETRY_S, clock: Clock | None = None) -> None:
        self._source = source
        self._url = url
        self._retry_s = retry_s
        self._clock: Clock = clock or SystemClock()
        self._board: Board | None = None
        self._following: asyncio.Task[None] | None = None
        self._problem: str | None = None
        self._leader: str | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._read()
            self._leader = await self._source.leader()
        except BaseException:
            await self._source.close()
            raise
        self._following = asyncio.create_task(self._follow(), name="casque top")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._following is not None
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        await self._source.close()

    async def look(self) -> Picture:
        """The queue as it is now.

        Raises:
            CorruptQueueError: it is damaged.
        """
        assert self._board is not None
        assert self._following is not None
        if self._following.done():
            self._following.result()  # it only ends by an error that cannot be retried
        problem = self._problem
        try:
            self._leader = await self._source.leader()
        except CasqueError as error:
            problem = problem or str(error)
        return self._board.picture(
            self._url,
            now_ms=self._clock.wall_ms(),
            layout=self._source.layout,
            leader=self._leader,
            problem=problem,
        )

    async def _follow(self) -> None:
        while True:
            try:
                await self._listen()
            except NoHistoryError:
                assert self._board is not None
                self._board.without_events()
                await self._clock.sleep(self._retry_s)
            except HistoryGoneError:
                pass
            except CorruptQueueError:
                raise
            except CasqueError as error:
                self._problem = str(error)
                await self._clock.sleep(self._retry_s)
            await self._read_again()

    async def _listen(self) -> None:
        assert self._board is not None
        async with aclosing(self._source.events(self._board.position)) as events:
            async for event in events:
                self._board.take(event, now_ms=self._clock.wall_ms())

    async def _read_again(self) -> None:
        """Missed events cannot be read again, and may have been half a commit."""
        try:
            await self._read()
            self._problem = None
        except CorruptQueueError:
            raise
        except CasqueError as error:
            self._problem = str(error)
            await self._clock.sleep(self._retry_s)

    async def _read(self) -> None:
        read = await self._source.read()
        now_ms = self._clock.wall_ms()
        if self._board is None:
            self._board = Board(read, now_ms=now_ms)
        else:
            self._board.refill(read, now_ms=now_ms)
