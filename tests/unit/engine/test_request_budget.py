"""A queue with a budget of requests: calls wait for their commits, and no answer comes before."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from casque import InMemoryStorage, Queue
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.clock import Random
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock, settle
from casque.testing.gated import GatedStore

SEEDS = count(1)
LAYOUTS = pytest.mark.parametrize("layout", ["log", "document"])


def a_queue(store: Any, clock: ManualClock, *, layout: str = "log", **settings: Any) -> Queue[bytes]:
    return Queue.open(store, layout=layout, clock=clock, rng=Random(next(SEEDS)), archive=False, **settings)


@LAYOUTS
async def test_a_steady_load_keeps_its_budget_and_every_call_is_carried_out(layout: str) -> None:
    clock, store = ManualClock(), GatedStore(MemoryStore())
    calls: list[asyncio.Task[Any]] = []
    async with a_queue(store, clock, layout=layout, requests_per_minute=120) as queue:
        begun = sum(store.requests.values())
        for number in range(590):  # ten a second, for not quite a minute
            calls.append(asyncio.create_task(queue.enqueue("send", b"%d" % number)))
            await clock.advance(0.1)
        used = sum(store.requests.values()) - begun
        assert 60 < used <= 120, "it is used, and it is kept"
        await clock.advance(60)
        jobs = await asyncio.gather(*calls)
        assert len({job.id for job in jobs}) == 590


@LAYOUTS
async def test_no_call_is_answered_before_its_delayed_commit_has_landed(layout: str) -> None:
    clock, store = ManualClock(), GatedStore(MemoryStore())
    async with a_queue(store, clock, layout=layout, requests_per_minute=10) as queue:
        while not await _waits(queue, clock):
            pass
        adding = asyncio.create_task(queue.enqueue("late", b""))
        await settle()
        assert not adding.done()
        store.shut()
        advancing = asyncio.create_task(clock.advance(61))
        await store.arrived.wait()
        assert not adding.done()
        store.open()
        await advancing
        assert (await adding).entrypoint == "late"


async def _waits(queue: Queue[bytes], clock: ManualClock) -> bool:
    """Add a job; whether the next one would have to wait."""
    adding = asyncio.create_task(queue.enqueue("first", b""))
    await settle()
    if adding.done():
        return False
    await clock.advance(61)
    await adding
    # A new minute: use half of it up again.
    for _ in range(20):
        another = asyncio.create_task(queue.enqueue("first", b""))
        await settle()
        if not another.done():
            another.cancel()
            await asyncio.gather(another, return_exceptions=True)
            return True
    raise AssertionError("the budget is never used up")


async def test_closing_does_not_wait_for_the_budget() -> None:
    clock = ManualClock()
    async with a_queue(MemoryStore(), clock, requests_per_minute=4) as queue:
        calls = [asyncio.create_task(queue.enqueue("send", b"%d" % number)) for number in range(3)]
        await settle()
        calls.append(asyncio.create_task(queue.enqueue("last", b"")))
        await settle()
        assert not calls[-1].done()
    assert [(await call).entrypoint for call in calls] == ["send", "send", "send", "last"]


async def test_shards_of_a_ring_share_the_budget_of_their_process() -> None:
    parts = Parts(MemoryStore(), DEFAULTS.with_changes({"requests_per_day": 1_000}), clock=ManualClock())
    await parts.shard(0).store.get("queue.json")
    await parts.shard(1).store.get("queue.json")
    await parts.store.get("queue.json")
    [usage] = parts.budget.usage()
    assert usage.used == 3


class Counting(InMemoryStorage):
    requests = 0

    async def read(self) -> tuple[bytes, str | None]:
        self.requests += 1
        return await super().read()

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        self.requests += 1
        return await super().write(content, if_match)


async def test_requests_to_a_storage_of_one_object_count() -> None:
    storage, changed = Counting(), DEFAULTS.with_changes({"requests_per_day": 1_000})
    parts = Parts(as_store(storage), changed, clock=ManualClock())
    await parts.create()
    [usage] = parts.budget.usage()
    assert usage.used == storage.requests > 1
