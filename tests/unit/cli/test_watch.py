"""What keeps the board of `casque top` up to date, when its source fails, forgets, or has nothing to tell."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

import pytest

from casque import Queue
from casque.cli.top.board import Contents
from casque.cli.top.source import Watch
from casque.clock import yield_once
from casque.errors import CorruptQueueError, HistoryGoneError, NoHistoryError, StorageError
from casque.service import QueueEvent
from casque.testing import ManualClock


class Troubled:
    """A queue in memory whose feed fails, as often and as told."""

    layout: str | None = "log"

    def __init__(self, queue: Queue[bytes], *troubles: Exception) -> None:
        self._queue = queue
        self.troubles = list(troubles)
        self.reads = 0
        self.closed = False

    async def read(self) -> Contents:
        self.reads += 1
        stats = await self._queue.stats()
        return Contents(stats.position, stats.totals, [job.record for job in await self._queue.jobs()])

    async def events(self, position: int) -> AsyncGenerator[QueueEvent]:
        if self.troubles:
            raise self.troubles.pop(0)
        async for event in self._queue.events(from_position=position):
            yield event

    async def leader(self) -> str | None:
        return None

    async def close(self) -> None:
        self.closed = True


async def until(happened: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if happened():
            return
        await yield_once()
    raise AssertionError("it never happened")


async def test_a_feed_that_was_collected_is_read_anew() -> None:
    clock = ManualClock()
    async with Queue.open("memory://watch-gone", clock=clock) as q:
        source = Troubled(q, HistoryGoneError("what followed position 1", 9))
        async with Watch(source, "memory://watch-gone", clock=clock):
            await until(lambda: source.reads == 2)
        assert source.closed


async def test_a_source_that_fails_is_asked_again_and_the_reason_is_shown_meanwhile() -> None:
    clock = ManualClock()
    async with Queue.open("memory://watch-fails", clock=clock) as q:
        source = Troubled(q, StorageError("the store is away"))
        async with Watch(source, "memory://watch-fails", clock=clock) as watch:
            await until(lambda: not source.troubles)
            assert (await watch.look()).problem == "the store is away"
            await q.enqueue("send", b"")
            await clock.advance(2)
            await until(lambda: source.reads == 2)
            picture = await watch.look()
            assert (picture.problem, picture.totals.ready) == (None, 1)


async def test_a_queue_without_events_is_read_at_every_look() -> None:
    clock = ManualClock()
    async with Queue.open("memory://watch-document", layout="document", clock=clock) as q:
        source = Troubled(q, *(NoHistoryError() for _ in range(3)))
        async with Watch(source, "memory://watch-document", retry_s=1, clock=clock) as watch:
            await until(lambda: len(source.troubles) == 2)
            await q.enqueue_many([("send", b"")] * 5)
            await clock.advance(1)
            await until(lambda: source.reads == 2)
            picture = await watch.look()
            assert picture.totals.ready == 5
            assert (picture.rates.enqueued, picture.rates.failed) == (5.0, None)


async def test_damage_ends_it() -> None:
    clock = ManualClock()
    async with Queue.open("memory://watch-damage", clock=clock) as q:
        source = Troubled(q, CorruptQueueError("log/7", "not what it was"))
        async with Watch(source, "memory://watch-damage", clock=clock) as watch:
            await until(lambda: not source.troubles)
            for _ in range(10):
                await yield_once()
            with pytest.raises(CorruptQueueError):
                await watch.look()
