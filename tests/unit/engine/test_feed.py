"""The change feed: every event once, in order, from any position that is kept; and clear words where one is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import msgspec
import pytest

from casque import (
    CorruptQueueError,
    EventKind,
    HistoryGoneError,
    InvalidInputError,
    NoHistoryError,
    Queue,
    QueueEvent,
    QueueReplacedError,
    SyncQueue,
)
from casque.clock import Random
from casque.codec.head import Owner
from casque.codec.log import Mode, decode_head, digest, encode_head, encode_segment, segment_key
from casque.journal.log import contention, pace
from casque.state import Added
from casque.storage.memory import MemoryStore
from casque.storage.port import Read, Stored, Won
from casque.testing.clock import ManualClock, settle
from casque.testing.gated import GatedStore
from casque.types import JobSpec

START_MS = 1_700_000_000_000
SEEDS = count(1)


@asynccontextmanager
async def opened(store: Any, clock: ManualClock | None = None, **settings: Any) -> AsyncIterator[Queue[bytes]]:
    async with Queue.open(
        store, layout="log", rng=Random(next(SEEDS)), clock=clock or ManualClock(), **settings
    ) as queue:
        yield queue


def watching(store: Any, clock: ManualClock | None = None, **settings: Any) -> Queue[bytes]:
    """A queue that is never entered: it only follows."""
    return Queue.open(store, rng=Random(next(SEEDS)), clock=clock or ManualClock(), **settings)


async def collected(events: AsyncIterator[QueueEvent]) -> list[tuple[int, int, str]]:
    return [(event.position, event.index, event.kind.value) async for event in events]


async def hear(events: AsyncIterator[QueueEvent], heard: list[QueueEvent]) -> None:
    async for event in events:
        heard.append(event)  # noqa: PERF401  one by one, as they come


@pytest.fixture
def quick_to_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 5)


async def grow(store: Any, clock: ManualClock, commits: int) -> None:
    """Commits far apart, so that the retention passes and old ones are collected."""
    async with opened(store, clock, retention=timedelta(seconds=1)) as q:
        for n in range(commits):
            await q.enqueue("send", b"%d" % n)
            await clock.advance(10)


async def floor_of(store: MemoryStore) -> int:
    read = await store.get("queue.json")
    assert isinstance(read, Stored)
    return decode_head("queue.json", read.body).floor


async def test_the_feed_tells_everything_from_the_beginning() -> None:
    store = MemoryStore()
    async with opened(store, worker="w") as q:
        first, _ = await q.enqueue_many([("send", b"1"), ("send", b"2")])
        [job] = await q.dequeue("send", lease=60)
        await job.heartbeat()
        await job.nack(delay=5, error="no")
        await q.cancel(first.id, request_id="r-1")

        events = [event async for event in q.events(from_position=0, follow=False)]

    assert [(e.position, e.index, e.kind) for e in events] == [
        (1, 0, EventKind.ADDED),
        (1, 1, EventKind.ADDED),
        (2, 0, EventKind.CLAIMED),
        (3, 0, EventKind.BEATEN),
        (4, 0, EventKind.NACKED),
        (5, 0, EventKind.CANCELLED),
        (5, 1, EventKind.REMEMBERED),
    ]
    assert all(e.at == datetime.fromtimestamp(START_MS / 1000, UTC) for e in events)
    added, _, claimed, _, nacked, cancelled, remembered = events
    assert (added.job_id, claimed.job_id, cancelled.job_id, remembered.job_id) == (first.id, first.id, first.id, None)
    assert added.fields["entrypoint"] == "send"
    assert added.fields["payload"] == b"1"
    assert dict(claimed.fields) == {"token": 1, "lease_ms": 60_000, "worker": "w"}
    assert (nacked.fields["error"], nacked.fields["due_ms"]) == ("no", START_MS + 5000)
    assert remembered.fields["request_id"] == "r-1"


async def test_a_program_goes_on_where_it_stopped() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        for n in range(100):
            await q.enqueue("send", b"%d" % n)
    everything = await collected(watching(store).events(from_position=0, follow=False))

    assert [position for position, _, _ in everything][:3] == [1, 2, 3]
    for position in (0, 1, 50, everything[-1][0]):
        rest = await collected(watching(store).events(from_position=position, follow=False))
        assert rest == [event for event in everything if event[0] > position]


async def test_the_feed_waits_for_what_happens_next_and_never_writes() -> None:
    memory, clock = MemoryStore(), ManualClock()
    watched = GatedStore(memory)
    async with opened(memory, clock) as q:
        for n in range(40):
            await q.enqueue("send", b"before %d" % n)
        heard: list[QueueEvent] = []

        listening = asyncio.create_task(hear(watching(watched, clock).events(), heard))
        await clock.advance(5)
        assert heard == []
        job = await q.enqueue("send", b"after")
        await clock.advance(2)
        assert [(e.kind, e.job_id) for e in heard] == [(EventKind.ADDED, job.id)]

        before = watched.requests["get"]
        await clock.advance(600)
        idle = watched.requests["get"] - before
        assert 600 * 2 <= idle <= 1300 * 2, "two small reads about every poll_max while nothing happens"
        assert watched.writes == watched.requests["delete"] == watched.requests["list"] == 0
        listening.cancel()


async def test_the_feed_of_a_queue_that_is_not_there_yet_begins_with_it() -> None:
    store, clock = MemoryStore(), ManualClock()
    assert await collected(watching(store, clock).events(follow=False)) == []
    heard: list[QueueEvent] = []
    listening = asyncio.create_task(hear(watching(store, clock).events(), heard))
    await clock.advance(3)
    async with opened(store) as q:
        await q.enqueue("send", b"first")
    await clock.advance(3)
    listening.cancel()
    assert [event.position for event in heard] == [1]


async def test_fences_are_passed_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "ALONE_COMMITS", 2)
    store = MemoryStore()
    async with opened(store) as one, opened(store) as two:
        for n in range(6):
            await one.enqueue("send", b"%d" % n)
        await two.enqueue("send", b"company")
    fences = [key async for key in store.list("log/") if b'"events":[]' in await body(store, key)]
    assert fences

    events = await collected(watching(store).events(from_position=0, follow=False))

    assert len(events) == 7
    last = await collected(watching(store).events(from_position=int(fences[0][4:]), follow=False))
    assert last == [event for event in events if event[0] > int(fences[0][4:])]


async def test_a_led_queue_can_be_followed() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await q.enqueue("send", b"1")
    read = await store.get("queue.json")
    assert isinstance(read, Stored)
    head = decode_head("queue.json", read.body)
    led = msgspec.structs.replace(head, mode=Mode.LED, owner=Owner("broker", "nonce", "host:1"), epoch=1)
    await store.replace("queue.json", encode_head(led), expected=read.etag)

    assert await collected(watching(store).events(from_position=0, follow=False)) == [(1, 0, "added")]


async def body(store: MemoryStore, key: str) -> bytes:
    read = await store.get(key)
    assert isinstance(read, Stored)
    return read.body


# --- What is not there ---


async def test_a_document_has_no_feed() -> None:
    async with Queue.open(MemoryStore(), layout="document") as q:
        await q.enqueue("send", b"1")
        with pytest.raises(NoHistoryError, match="casque queue convert"):
            await collected(q.events())


async def test_a_position_in_the_future_is_refused() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        for n in range(3):
            await q.enqueue("send", b"%d" % n)
    with pytest.raises(InvalidInputError, match="last commit of this queue is 3"):
        await collected(watching(store).events(from_position=4, follow=False))
    for wrong in (-1, "start", True):
        with pytest.raises(InvalidInputError, match="from_position"):
            await collected(watching(store).events(from_position=wrong))  # type: ignore[arg-type]


@pytest.mark.usefixtures("quick_to_collect")
async def test_history_that_is_gone_is_said_to_be_gone() -> None:
    store = MemoryStore()
    await grow(store, ManualClock(), 40)
    floor = await floor_of(store)
    assert floor > 1

    with pytest.raises(HistoryGoneError, match="retention") as caught:
        await collected(watching(store).events(from_position=0, follow=False))

    assert caught.value.oldest == floor
    rest = await collected(watching(store).events(from_position=caught.value.oldest, follow=False))
    assert rest[0][0] == floor + 1
    with pytest.raises(HistoryGoneError):
        await collected(watching(store).events(from_position=floor - 1, follow=False))


@pytest.mark.usefixtures("quick_to_collect")
async def test_a_follower_that_is_overtaken_by_the_collector_gets_no_silent_gap() -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, clock) as q:
        await q.enqueue("send", b"first")
    events = watching(store, clock).events(from_position=0)
    assert (await anext(events)).position == 1
    await grow(store, clock, 40)

    with pytest.raises(HistoryGoneError, match="followed position 1"):
        await anext(events)


@pytest.mark.usefixtures("quick_to_collect")
async def test_a_slot_that_was_collected_and_won_again_is_not_taken_for_history() -> None:
    """Somebody overslept, and put other bytes where a segment had been. Only the head can tell."""
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, clock) as q:
        await q.enqueue("send", b"first")
        await q.enqueue("send", b"second")
    second = await body(store, segment_key(2))
    events = watching(store, clock).events(from_position=0)
    assert (await anext(events)).position == 1
    assert (await anext(events)).position == 2
    again = watching(store, clock).events(from_position=1)
    await grow(store, clock, 40)
    assert isinstance(await store.create(segment_key(2), second), Won)

    with pytest.raises(HistoryGoneError):
        await anext(again)


@pytest.mark.usefixtures("quick_to_collect")
async def test_a_commit_that_follows_and_yet_is_no_history_is_not_told() -> None:
    """The slot was used and collected; then somebody who overslept won it, with a segment that fits in every way."""
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, clock) as q:
        await q.enqueue("send", b"first")
    first = await body(store, segment_key(1))
    events = watching(store, clock).events(from_position=0)
    await anext(events)
    await grow(store, clock, 40)
    queue_id = decode_head("queue.json", await body(store, "queue.json")).queue_id
    assert queue_id is not None
    late = encode_segment(
        queue_id=queue_id,
        position=2,
        epoch=0,
        writer="asleep",
        batch=2,
        prev=digest(first),
        at_ms=START_MS,
        events=[Added(JobSpec("late", "send", b"late"), 2, START_MS)],
    )
    assert isinstance(await store.create(segment_key(2), late), Won)

    with pytest.raises(HistoryGoneError):
        await anext(events)


@pytest.mark.usefixtures("quick_to_collect")
async def test_the_head_is_read_after_the_slots() -> None:
    """A collection between the two must be noticed, so this order and no other."""

    class Ordered(GatedStore):
        def __init__(self, store: MemoryStore) -> None:
            super().__init__(store)
            self.keys: list[str] = []

        async def get(self, key: str, *, unless: str | None = None) -> Read:
            self.keys.append(key)
            return await super().get(key, unless=unless)

    memory, clock = MemoryStore(), ManualClock()
    async with opened(memory, clock) as q:
        await q.enqueue("send", b"first")
    store = Ordered(memory)
    events = watching(store, clock).events(from_position=0)
    await anext(events)

    assert store.keys[-2:] == [segment_key(1), "queue.json"]
    await events.aclose()


@pytest.mark.usefixtures("quick_to_collect")
async def test_a_segment_that_is_lost_just_before_the_follower_is_not_waited_for() -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, clock) as q:
        await q.enqueue("send", b"first")
        events = watching(store, clock).events(from_position=0)
        await anext(events)
        for n in range(9):
            await q.enqueue("send", b"%d" % n)
            await settle()
    await store.delete(segment_key(2))

    with pytest.raises(CorruptQueueError) as caught:
        await anext(events)

    assert caught.value.key == segment_key(2)


@pytest.mark.parametrize("damage", ["missing", "cut"])
async def test_damage_is_named_after_all_that_came_before_it(damage: str) -> None:
    store = MemoryStore()
    async with opened(store) as q:
        for n in range(12):
            await q.enqueue("send", b"%d" % n)
    key = segment_key(6)
    whole = await body(store, key)
    await store.delete(key)
    if damage == "cut":
        await store.create(key, whole[:-9])
    heard: list[QueueEvent] = []

    with pytest.raises(CorruptQueueError) as caught:
        await hear(watching(store).events(from_position=0, follow=False), heard)

    assert [event.position for event in heard] == [1, 2, 3, 4, 5]
    assert caught.value.key == key


async def test_a_queue_that_is_converted_ends_its_feed_with_an_error() -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, clock) as q:
        await q.enqueue("send", b"1")
    events = watching(store, clock).events(from_position=0)
    assert (await anext(events)).position == 1
    read = await store.get("queue.json")
    assert isinstance(read, Stored)
    document = b'{"format": 1, "layout": "document", "queue_id": "q", "version": 9, "counters": {}, "jobs": []}'
    await store.replace("queue.json", document, expected=read.etag)

    with pytest.raises(QueueReplacedError, match="Open it again"):
        await anext(events)


def test_the_feed_without_asyncio() -> None:
    with SyncQueue.open("memory://sync-feed", layout="log") as q:
        q.enqueue("send", b"1")
        q.enqueue("send", b"2")
        assert [e.position for e in q.events(from_position=0, follow=False)] == [1, 2]
        for event in q.events(from_position=1):
            assert event.position == 2
            break
        q.enqueue("send", b"3")


async def test_settling_leaves_nothing_running() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await q.enqueue("send", b"1")
        events = q.events(from_position=0)
        await anext(events)
        await events.aclose()
        await settle()
        assert (await q.stats()).totals.ready == 1
