"""Jobs that expire, through the engine: though no worker asks, in every layout, with any form of the argument."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from casque import App, InvalidInputError, JobState, NewJob, Queue, SyncQueue
from casque.client.opening import Parts
from casque.clock import Random
from casque.settings import QueueSettings
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock
from casque.types import NOT_CLAIMED_IN_TIME

SEEDS = count(170)
START = datetime(2026, 2, 15, 10, 0, 30, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
MINUTE = timedelta(minutes=1)


@pytest.fixture(params=["log", "document"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def opened(store: Any, clock: ManualClock, layout: str, **settings: Any) -> AsyncIterator[Queue[bytes]]:
    queue = Queue.open(store, layout=layout, clock=clock, rng=Random(next(SEEDS)), **settings)
    await through(clock, asyncio.ensure_future(queue.__aenter__()))
    try:
        yield queue
    finally:
        await through(clock, asyncio.ensure_future(queue.__aexit__(None, None, None)))


async def through(clock: ManualClock, work: asyncio.Future[Any]) -> Any:
    for _ in range(1000):
        if work.done():
            break
        await clock.advance(0.01)
    return await work


async def stored(store: MemoryStore, clock: ManualClock, layout: str) -> list[str]:
    return list((await Parts(store, QueueSettings(), layout=layout, clock=clock).read()).jobs)


async def test_a_job_is_cancelled_when_its_time_is_up_though_nobody_asks(layout: str) -> None:
    clock, store = ManualClock(START_MS), MemoryStore()
    async with opened(store, clock, layout) as queue:
        job = await queue.enqueue("send", b"hello", expires=MINUTE)
        stays = await queue.enqueue("send", b"stays")
        assert job.expires_at == job.created_at + MINUTE
        assert stays.expires_at is None
        await clock.advance(59.9)
        assert await stored(store, clock, layout) == [job.id, stays.id]
        await clock.advance(0.5)
        assert await stored(store, clock, layout) == [stays.id]
        assert (await queue.stats()).totals.cancelled == 1


async def test_the_archive_says_why(layout: str) -> None:
    clock, store = ManualClock(START_MS), MemoryStore()
    async with opened(store, clock, layout, archive=True, archive_interval=timedelta(seconds=1)) as queue:
        await queue.enqueue("send", b"hello", expires=30)
        await clock.advance(40)
        archived = [one async for one in queue.archive()]
        assert [(one.state, one.error, one.expires_ms) for one in archived] == [
            (JobState.CANCELLED, NOT_CLAIMED_IN_TIME, 30_000)
        ]


async def test_who_waits_for_a_job_is_not_given_one_that_has_expired(layout: str) -> None:
    clock, store = ManualClock(START_MS), MemoryStore()
    async with opened(store, clock, layout) as queue:
        await queue.pause("send")
        await queue.enqueue("send", b"late", expires=MINUTE)
        waiting = asyncio.ensure_future(queue.dequeue("send", wait=600))
        await clock.advance(70)
        await queue.resume("send")
        in_time = await queue.enqueue("send", b"in time", expires=MINUTE)
        assert [job.id for job in await through(clock, waiting)] == [in_time.id]


async def test_a_process_without_upkeep_does_not_hand_it_out_either(layout: str) -> None:
    clock, store = ManualClock(START_MS), MemoryStore()
    async with opened(store, clock, layout, ticks=False) as queue:
        job = await queue.enqueue("send", b"hello", expires=MINUTE)
        await clock.advance(70)
        assert await stored(store, clock, layout) == [job.id]
        assert await queue.dequeue("send") == []
        assert await stored(store, clock, layout) == []


async def test_processes_side_by_side_cancel_it_once(layout: str) -> None:
    clock, store = ManualClock(START_MS), MemoryStore()
    async with opened(store, clock, layout) as one, opened(store, clock, layout) as other:
        await through(clock, asyncio.ensure_future(one.enqueue("send", b"hello", expires=MINUTE)))
        await through(clock, asyncio.ensure_future(other.stats()))  # it has seen it
        await clock.advance(120)
        for queue in (one, other):
            totals = (await through(clock, asyncio.ensure_future(queue.stats()))).totals
            assert (totals.enqueued, totals.cancelled) == (1, 1)


async def test_a_moment_is_taken_as_the_time_until_then() -> None:
    clock = ManualClock(START_MS)
    async with opened(MemoryStore(), clock, "log") as queue:
        job = await queue.enqueue("send", b"hello", expires=START + MINUTE)
        assert job.expires_at == START + MINUTE
        many = await queue.enqueue_many([NewJob("send", b"%d" % n, expires=5) for n in range(3)])
        assert [one.record.spec.expires_ms for one in many] == [5_000] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expires": 0}, "expires must be longer than 0 seconds"),
        ({"expires": -1}, "expires must be from 0 to"),
        ({"expires": "10m"}, "expires must be a timedelta or a number of seconds"),
        ({"expires": START - MINUTE}, "expires must be later than now"),
        ({"expires": datetime(2030, 1, 1)}, "expires must name its time zone"),  # noqa: DTZ001
        ({"expires": 60, "delay": 60}, "expires must be later than delay or run_at"),
        ({"expires": 60, "run_at": START + 2 * MINUTE}, "expires must be later than delay or run_at"),
    ],
)
async def test_an_end_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    async with opened(MemoryStore(), ManualClock(START_MS), "log") as queue:
        with pytest.raises(InvalidInputError, match=message):
            await queue.enqueue("send", b"hello", **options)
        assert (await queue.stats()).totals.enqueued == 0


async def test_the_job_of_each_tick_has_its_own_time() -> None:
    clock, store = ManualClock(START_MS), MemoryStore()
    async with opened(store, clock, "log") as queue:
        with pytest.raises(InvalidInputError, match="expires must be a span"):
            await queue.set_schedule("often", "*/5 * * * *", NewJob("report", b"", expires=START + MINUTE))
        await queue.set_schedule("often", "*/5 * * * *", NewJob("report", b"", expires=2 * MINUTE))
        await clock.advance(300)
        assert await stored(store, clock, "log") == ["often@2026-02-15T10:05:00Z"]
        await clock.advance(285)
        assert await stored(store, clock, "log") == ["often@2026-02-15T10:10:00Z"]


async def test_a_function_has_a_default_and_a_call_may_change_it() -> None:
    app = App("memory://expiring-functions")

    @app.job(expires=timedelta(minutes=10))
    def quote(symbol: str) -> None: ...

    @app.job()
    def settle(symbol: str) -> None: ...

    assert quote.bind(symbol="A").new.expires == timedelta(minutes=10)
    assert quote.using(expires=5).bind(symbol="A").new.expires == timedelta(seconds=5)
    assert settle.bind(symbol="A").new.expires is None
    with pytest.raises(InvalidInputError, match="expires must be longer than 0 seconds"):
        quote.using(expires=0)
    with pytest.raises(InvalidInputError, match="expires must be longer than 0 seconds"):
        app.job(expires=0)


async def test_whoever_waits_for_the_result_of_a_function_hears_that_it_expired() -> None:
    app = App("memory://expired-results")

    @app.job(expires=0.05)
    def quote(symbol: str) -> None: ...

    async with app:
        handle = await quote.enqueue(symbol="A")
        with pytest.raises(Exception, match="expired: no worker claimed it in time"):
            await handle.result(timeout=20)


def test_a_queue_without_asyncio_takes_it_too() -> None:
    with SyncQueue.open("memory://expiring-sync") as queue:
        job = queue.enqueue("send", b"hello", expires=MINUTE).job
        assert job.expires_at == job.created_at + MINUTE
