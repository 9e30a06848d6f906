"""A window between two writes: calls that come in it share the next commit."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from casque import InvalidInputError, Queue
from casque.clock import Random
from casque.settings import QueueSettings
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock, settle

SEEDS = count(1)
LAYOUTS = pytest.mark.parametrize("layout", ["log", "document"])


@asynccontextmanager
async def paced(layout: str, seconds: float, clock: ManualClock, **settings: Any) -> AsyncIterator[Queue[bytes]]:
    """Its window is open: it has just written."""
    store, interval = MemoryStore(), timedelta(seconds=seconds)
    async with Queue.open(
        store, layout=layout, clock=clock, rng=Random(next(SEEDS)), commit_interval=interval, **settings
    ) as queue:
        await queue.enqueue("first", b"")
        yield queue


async def position(queue: Queue[bytes]) -> int:
    return (await queue.stats()).position


@LAYOUTS
async def test_a_call_after_a_quiet_time_is_written_at_once(layout: str) -> None:
    clock = ManualClock()
    async with paced(layout, 10, clock) as queue:
        await clock.advance(10.5)
        await queue.enqueue("second", b"")


@LAYOUTS
async def test_calls_in_the_window_share_the_commit_at_its_end(layout: str) -> None:
    clock = ManualClock()
    async with paced(layout, 10, clock) as queue:
        before = await position(queue)
        calls = [asyncio.create_task(queue.enqueue("later", b"%d" % number)) for number in range(5)]
        await clock.advance(9)
        assert not any(call.done() for call in calls)
        assert await position(queue) == before
        await clock.advance(1.5)
        assert len(await asyncio.gather(*calls)) == 5
        assert await position(queue) == before + 1


@LAYOUTS
async def test_a_read_does_not_wait(layout: str) -> None:
    clock = ManualClock()
    async with paced(layout, 10, clock) as queue:
        call = asyncio.create_task(queue.enqueue("later", b""))
        await settle()
        assert [job.entrypoint for job in await queue.jobs()] == ["first"]
        assert not call.done()
        await clock.advance(10.5)
        await call


@LAYOUTS
async def test_closing_does_not_wait(layout: str) -> None:
    clock = ManualClock()
    async with paced(layout, 10, clock) as queue:
        call = asyncio.create_task(queue.enqueue("last", b""))
        await settle()
    assert (await call).entrypoint == "last"


@LAYOUTS
async def test_a_waiting_dequeue_gets_its_job_with_the_commit_that_adds_it(layout: str) -> None:
    clock = ManualClock()
    async with paced(layout, 10, clock) as queue:
        waiting = asyncio.create_task(queue.dequeue("later", wait=60))
        await clock.advance(10.5)
        added = asyncio.create_task(queue.enqueue("later", b""))
        await settle()
        await clock.advance(10.5)
        assert [job.id for job in await waiting] == [(await added).id]


@LAYOUTS
async def test_a_caller_that_leaves_in_the_window_adds_nothing(layout: str) -> None:
    clock = ManualClock()
    async with paced(layout, 10, clock) as queue:
        leaving = asyncio.create_task(queue.enqueue("gone", b""))
        await settle()
        leaving.cancel()
        await clock.advance(10.5)
        assert [job.entrypoint for job in await queue.jobs()] == ["first"]


@LAYOUTS
async def test_a_lease_that_runs_out_in_the_window_is_taken_back_after_it(layout: str) -> None:
    clock = ManualClock()
    async with paced(layout, 2, clock, stale_timeout=timedelta(seconds=8)) as queue:
        await clock.advance(3)
        [job] = await queue.dequeue("first", lease=1.0)
        waiting = asyncio.create_task(queue.dequeue("first", wait=60))
        await clock.advance(1.5)
        assert not waiting.done()
        await clock.advance(2)
        [again] = await waiting
        assert (again.id, again.attempts) == (job.id, 2)


@pytest.mark.parametrize("wrong", [timedelta(seconds=-1), timedelta(minutes=2), 5, None, "5s"])
def test_an_interval_that_cannot_be_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match=re.escape("from 0 to a quarter of stale_timeout")):
        QueueSettings(commit_interval=wrong)
