"""The log layout: what a commit writes, what opening reads, and damage that must not pass for history."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from casque import CorruptQueueError, InMemoryStorage, InvalidInputError, JobState, Queue, UnknownOutcomeError
from casque.clock import Random
from casque.journal.log import contention, pace
from casque.storage.memory import MemoryStore
from casque.storage.port import Outcome, Read, Stored
from casque.testing.clock import ManualClock, settle
from casque.testing.gated import GatedStore

SEEDS = count(1)


@asynccontextmanager
async def opened(store: Any, **settings: Any) -> AsyncIterator[Queue[bytes]]:
    async with Queue.open(store, layout="log", rng=Random(next(SEEDS)), clock=ManualClock(), **settings) as queue:
        yield queue


async def keys(store: MemoryStore) -> list[str]:
    return [key async for key in store.list()]


async def body(store: MemoryStore, key: str) -> bytes:
    read = await store.get(key)
    assert isinstance(read, Stored)
    return read.body


async def overwrite(store: MemoryStore, key: str, content: bytes) -> None:
    await store.delete(key)
    await store.create(key, content)


async def test_a_commit_is_one_object_that_holds_its_events() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        job = await q.enqueue("send", b"hello", priority=3)
        [claimed] = await q.dequeue("send")
        await claimed.ack()
    found = [key for key in await keys(store) if not key.startswith("archive/")]
    assert found == [f"log/{n:020d}" for n in (1, 2, 3)] + ["queue.json"]
    segments = [json.loads(await body(store, f"log/{n:020d}")) for n in (1, 2, 3)]
    assert [segment["events"][0][0] for segment in segments] == ["added", "claimed", "acked"]
    spec = segments[0]["events"][0][1]
    assert (spec["id"], spec["entrypoint"], spec["payload"], spec["priority"]) == (job.id, "send", "aGVsbG8=", 3)
    head = json.loads(await body(store, "queue.json"))
    assert (head["layout"], head["mode"], head["queue_id"]) == ("log", "open", segments[0]["queue_id"])


async def test_what_a_commit_writes_does_not_grow_with_the_queue() -> None:
    class Weighed(GatedStore):
        weight = 0

        async def create(self, key: str, body: bytes) -> Outcome:
            self.weight += len(body)
            return await super().create(key, body)

    store = Weighed(MemoryStore())
    async with opened(store) as q:
        await q.enqueue("send", b"x" * 100)
        weights = []
        for depth in (0, 5000):
            if depth:
                await q.enqueue_many([("send", b"x" * 100)] * depth)
            before, writes = store.weight, store.writes
            await q.enqueue("send", b"x" * 100)
            weights.append((store.weight - before, store.writes - writes))
    assert abs(weights[0][0] - weights[1][0]) < 30  # a digit more here and there
    assert weights[0][1] == weights[1][1] == 1


async def test_an_empty_poll_and_an_idle_queue_write_nothing() -> None:
    store = GatedStore(MemoryStore())
    async with opened(store) as q:
        await q.enqueue("send", b"1")
        before, lists = store.writes, store.requests["list"]
        for _ in range(20):
            assert await q.dequeue("other") == []
        assert store.writes == before
        assert store.requests["list"] == lists, "listing is for opening a new queue only"


async def test_a_snapshot_and_its_tail_are_the_full_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 10)
    store = MemoryStore()
    async with opened(store) as q:
        for n in range(25):
            await q.enqueue("send", b"%d" % n, key=f"k{n}", delay=60 if n % 5 == 0 else None)
            if n % 3 == 0:
                for job in await q.dequeue("send"):
                    await (job.ack() if n % 2 else job.nack(error="no"))
            await settle()
        expected = await q.jobs()
        totals = (await q.stats()).totals
    snapshots = [key for key in await keys(store) if key.startswith("snapshots/")]
    assert len(snapshots) >= 2
    head = json.loads(await body(store, "queue.json"))
    assert head["snapshot"]["key"] == snapshots[-1]
    assert [ref["key"] for ref in head["kept"]] == snapshots[:-1]
    assert head["floor"] == 0, "within the retention nothing may be collected"

    async with opened(store) as q:  # snapshot and tail
        assert await q.jobs() == expected
        assert (await q.stats()).totals == totals
    head["snapshot"], head["floor"] = None, 0
    await overwrite(store, "queue.json", json.dumps(head).encode())
    async with opened(store) as q:  # every segment from the first
        assert await q.jobs() == expected
        assert (await q.stats()).totals == totals


async def test_several_queues_follow_each_other_without_reading_everything_again() -> None:
    store = GatedStore(MemoryStore())
    async with opened(store) as a, opened(store) as b:
        await a.enqueue_many([("send", b"%d" % n) for n in range(100)])
        assert len(await b.dequeue("send", batch_size=50)) == 50
        before = store.requests["get"]
        await a.enqueue("send", b"one more")
        [job] = await b.jobs(states=[JobState.READY], limit=1)
        assert job.payload == b"50"
        assert store.requests["get"] - before < 12


async def test_a_process_far_behind_catches_up_at_its_first_loss() -> None:
    store = MemoryStore()
    async with opened(store) as behind, opened(store) as busy:
        await behind.enqueue("send", b"early")
        for n in range(200):
            await busy.enqueue("send", b"%d" % n)
        await behind.enqueue("send", b"late")
        assert (await busy.stats()).totals.ready == 202


async def test_a_storage_of_one_object_cannot_hold_a_log() -> None:
    with pytest.raises(InvalidInputError, match="document layout"):
        Queue.open(InMemoryStorage(), layout="log")
    with pytest.raises(InvalidInputError, match="document, log"):
        Queue.open("memory://", layout="scroll")


async def test_a_queue_opens_in_the_layout_it_has() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await q.enqueue("send", b"1")
    async with Queue.open(store, layout="document") as q:
        await q.enqueue("send", b"2")
        assert (await q.stats()).totals.ready == 2
    assert f"log/{2:020d}" in await keys(store)


# --- Damage ---


async def cut(store: MemoryStore) -> None:
    key = f"log/{2:020d}"
    await overwrite(store, key, (await body(store, key))[:-30])


async def changed(store: MemoryStore) -> None:
    key = f"log/{2:020d}"
    await overwrite(store, key, (await body(store, key)).replace(b'"send"', b'"sent"'))


async def missing(store: MemoryStore) -> None:
    await store.delete(f"log/{2:020d}")


async def foreign(store: MemoryStore) -> None:
    other = MemoryStore()
    async with opened(other) as q:
        for n in range(3):
            await q.enqueue("send", b"%d" % n)
    await overwrite(store, f"log/{2:020d}", await body(other, f"log/{2:020d}"))


async def renamed(store: MemoryStore) -> None:
    await overwrite(store, f"log/{2:020d}", await body(store, f"log/{3:020d}"))


async def emptied(store: MemoryStore) -> None:
    await overwrite(store, f"log/{2:020d}", b"")


@pytest.mark.parametrize("damage", [cut, changed, missing, foreign, renamed, emptied])
async def test_a_damaged_segment_is_named_and_nothing_is_written(damage: Callable[[MemoryStore], Any]) -> None:
    store = MemoryStore()
    async with opened(store) as q:
        for n in range(5):
            await q.enqueue("send", b"%d" % n)
    await damage(store)
    before = await keys(store)
    with pytest.raises(CorruptQueueError) as caught:
        async with opened(store) as q:
            pass
    assert caught.value.key == f"log/{2:020d}"
    assert await keys(store) == before


async def test_a_swapped_segment_breaks_the_chain() -> None:
    """Two histories of one queue that differ in one commit: neither may continue with the other's segments."""
    store, twin = MemoryStore(), MemoryStore()
    async with opened(store) as q:
        await q.enqueue("send", b"0")
        for key in await keys(store):
            await twin.create(key, await body(store, key))
        await q.enqueue("send", b"1")
        await q.enqueue("send", b"2")
    async with opened(twin) as q:
        await q.enqueue("send", b"another 1")
    await overwrite(store, f"log/{2:020d}", await body(twin, f"log/{2:020d}"))
    with pytest.raises(CorruptQueueError, match="does not follow") as caught:
        async with opened(store):
            pass
    assert caught.value.key == f"log/{3:020d}"


@pytest.mark.parametrize("damage", ["swapped", "missing"])
async def test_a_damaged_snapshot_is_named(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 3)
    store = MemoryStore()
    async with opened(store) as q:
        for n in range(9):
            await q.enqueue("send", b"%d" % n)
            await settle()
    snapshots = [key for key in await keys(store) if key.startswith("snapshots/")]
    if damage == "swapped":
        await overwrite(store, snapshots[-1], await body(store, snapshots[0]))
    else:
        await store.delete(snapshots[-1])
    with pytest.raises(CorruptQueueError) as caught:
        async with opened(store):
            pass
    assert caught.value.key == snapshots[-1]


async def test_a_head_that_is_deleted_is_noticed_by_those_who_come() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await q.enqueue("send", b"1")
    await store.delete("queue.json")
    with pytest.raises(CorruptQueueError, match="deleted") as caught:
        async with opened(store):
            pass
    assert caught.value.key == "queue.json"
    assert await keys(store) == [f"log/{1:020d}"]


async def test_a_head_that_is_deleted_is_noticed_by_those_at_work() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await q.enqueue("send", b"1")
        head = await body(store, "queue.json")
        await store.delete("queue.json")
        # Its segment is there, and will count as soon as the head is: nobody may call that a failure.
        with pytest.raises(UnknownOutcomeError, match="deleted"):
            await q.enqueue("send", b"2")
        with pytest.raises(CorruptQueueError, match="deleted"):
            await q.enqueue("send", b"3")
        await store.create("queue.json", head)
        assert [job.payload for job in await q.jobs()] == [b"1", b"2"]


async def test_a_head_that_is_deleted_is_noticed_by_a_holder() -> None:
    store, clock = MemoryStore(), ManualClock()
    async with Queue.open(store, rng=Random(next(SEEDS)), clock=clock) as q:
        for _ in range(2 * contention.ALONE_COMMITS):
            await q.enqueue("send", b"1")
        head = await body(store, "queue.json")
        await store.delete("queue.json")
        await clock.advance(1)
        await q.enqueue("send", b"counts")  # its slot is its own, whatever becomes of the head; then it looks
        await settle()
        with pytest.raises(CorruptQueueError, match="deleted"):
            await q.enqueue("send", b"refused")
        await store.create("queue.json", head)
        assert [job.payload for job in await q.jobs()][-1] == b"counts"


async def test_a_queue_that_appears_while_it_is_being_opened_is_not_taken_for_damage() -> None:
    class Meanwhile(GatedStore):
        """Somebody makes the queue right after the first look."""

        done = False

        async def get(self, key: str, *, unless: str | None = None) -> Read:
            read = await super().get(key, unless=unless)
            if not self.done:
                self.done = True
                async with opened(memory) as other:
                    await other.enqueue("send", b"theirs")
            return read

    memory = MemoryStore()
    async with opened(Meanwhile(memory)) as q:
        await q.enqueue("send", b"ours")
        assert (await q.stats()).totals.ready == 2
