"""Opening a journal: for the first time, and again after a failure."""

from __future__ import annotations

import pytest

from casque import CorruptQueueError, Queue, QueueReplacedError
from casque.clock import Random
from casque.codec.head import KEY, Head
from casque.environment import Environment
from casque.journal.convert import Converter
from casque.journal.opening import open_journal
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock

LAYOUTS = ["document", "log"]


def env(seed: int = 1) -> Environment:
    return Environment(clock=ManualClock(), rng=Random(seed))


async def a_queue(store: MemoryStore, layout: str, seed: int = 2) -> Head:
    async with Queue.open(store, layout=layout, clock=ManualClock(), rng=Random(seed), archive=False) as queue:
        await queue.enqueue("send", b"1")
    head = (await open_journal(store, env(), layout=layout)).head
    assert head is not None
    return head


async def objects(store: MemoryStore) -> list[str]:
    return sorted([key async for key in store.list("")])


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_the_same_queue_is_opened_again(layout: str) -> None:
    store = MemoryStore()
    before = await a_queue(store, layout)
    opened = await open_journal(store, env(), before, layout="log")
    assert opened.head == before
    assert [job.spec.payload for job in opened.state.listed()] == [b"1"]


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_another_queue_in_its_place_is_not_opened_for_those_who_had_the_first(layout: str) -> None:
    store, other = MemoryStore(), MemoryStore()
    before = await a_queue(store, layout)
    await a_queue(other, layout, seed=3)
    with pytest.raises(QueueReplacedError):
        await open_journal(other, env(), before, layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_converted_queue_is_opened_anew_and_not_again(layout: str) -> None:
    store = MemoryStore()
    before = await a_queue(store, layout)
    target = "log" if layout == "document" else "document"
    await Converter(store, env(), say=lambda _: None).convert(target)
    with pytest.raises(QueueReplacedError):
        await open_journal(store, env(), before, layout=layout)
    opened = await open_journal(store, env(), layout=layout)
    assert opened.head is not None
    assert opened.head.layout == target


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_queue_that_was_deleted_is_not_taken_for_a_new_one_by_those_who_had_it(layout: str) -> None:
    store = MemoryStore()
    before = await a_queue(store, layout)
    await store.delete(KEY)
    left = await objects(store)
    with pytest.raises(CorruptQueueError, match="deleted"):
        await open_journal(store, env(), before, layout=layout)
    assert await objects(store) == left
