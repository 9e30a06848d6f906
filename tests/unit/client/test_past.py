"""A queue as it was, by position and by time, as far back as it is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from casque import (
    CorruptQueueError,
    HistoryGoneError,
    InvalidInputError,
    Job,
    JobState,
    NewJob,
    NoHistoryError,
    Queue,
    ReadOnlyError,
    SyncQueue,
)
from casque.clock import Random
from casque.codec.log import decode_head, segment_key
from casque.journal.log import pace
from casque.storage.memory import MemoryStore
from casque.storage.port import Read, Stored
from casque.testing.clock import ManualClock, settle
from casque.testing.gated import GatedStore
from casque.types import Totals

START = datetime.fromtimestamp(1_700_000_000, UTC)
SEEDS = count(1)

Seen = tuple[list[Job[bytes]], Totals]


@asynccontextmanager
async def opened(store: Any, clock: ManualClock | None = None, **more: Any) -> AsyncIterator[Queue[bytes]]:
    async with Queue.open(store, rng=Random(next(SEEDS)), clock=clock or ManualClock(), **more) as queue:
        yield queue


async def seen(q: Queue[bytes]) -> Seen:
    return await q.jobs(), (await q.stats()).totals


async def history(store: Any, clock: ManualClock, commits: int, **settings: Any) -> dict[int, tuple[datetime, Seen]]:
    """A life of ten seconds per commit, and what the queue looked like after each."""
    moments: dict[int, tuple[datetime, Seen]] = {}
    async with opened(store, clock, stale_timeout=timedelta(days=1), **settings) as q:
        while len(moments) < commits:
            n = len(moments)
            if n % 4 == 2:
                await q.dequeue("send")
            elif n % 4 == 3 and (running := await q.jobs(states=[JobState.RUNNING])):
                await q.ack(running[0].id, running[0].token)
            else:
                await q.enqueue("send", b"%d" % n, delay=15 if n % 5 == 0 else None)
            moments[(await q.stats()).position] = (_now(clock), await seen(q))
            await clock.advance(10)
    return moments


def _now(clock: ManualClock) -> datetime:
    return datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)


@pytest.fixture(params=[0, 6], ids=["segments", "snapshots"])
def often(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without snapshots on the way."""
    if request.param:
        monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", request.param)


@pytest.mark.usefixtures("often")
async def test_the_past_looks_as_it_looked() -> None:
    store, clock = MemoryStore(), ManualClock()
    moments = await history(store, clock, 40, retention=timedelta(days=1))
    watched = GatedStore(store)
    for position, (moment, then) in moments.items():
        async with opened(watched, clock, as_of=position) as q:
            assert await seen(q) == then
            assert (await q.stats()).position == position
            for job in then[0]:
                assert await q.find(job.id) == job
        async with opened(watched, clock, as_of=moment) as q:
            assert (await q.stats()).position == position
        async with opened(watched, clock, as_of=moment + timedelta(seconds=9)) as q:
            assert (await q.stats()).position == position
    assert watched.writes == watched.requests["list"] == watched.requests["delete"] == 0


async def test_the_very_beginning_is_an_empty_queue() -> None:
    store, clock = MemoryStore(), ManualClock()
    await history(store, clock, 3)
    for as_of in (0, START - timedelta(days=1)):
        async with opened(store, clock, as_of=as_of) as q:
            assert await q.jobs() == []
            assert (await q.stats()).position == 0


async def test_now_is_the_end_of_the_past() -> None:
    store, clock = MemoryStore(), ManualClock()
    moments = await history(store, clock, 12)
    async with opened(store, clock, as_of=_now(clock)) as q:
        assert (await q.stats()).position == max(moments)


async def test_a_commit_by_a_slow_clock_counts_by_its_place() -> None:
    """The last commit whose time is not later, whatever the times of those before it."""
    store, clock, behind = MemoryStore(), ManualClock(), ManualClock()
    await clock.advance(60)
    async with opened(store, clock) as ahead, opened(store, behind) as slow:
        await ahead.enqueue("send", b"1")
        await slow.enqueue("send", b"2")
        await ahead.enqueue("send", b"3")
    async with opened(store, clock, as_of=START + timedelta(seconds=30)) as q:
        assert [job.payload for job in await q.jobs()] == [b"1", b"2"]


@pytest.mark.parametrize("verb", range(11))
async def test_the_past_cannot_be_changed(verb: int) -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, clock) as q:
        job = await q.enqueue("send", b"1")
        await q.enqueue("send", b"2")
    watched = GatedStore(store)
    async with opened(watched, clock, as_of=1) as q:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: q.enqueue("send", b"3"),
            lambda: q.enqueue_many([NewJob("send", b"3")]),
            lambda: q.dequeue("send"),
            lambda: q.dequeue("send", wait=10),
            lambda: q.ack(job.id),
            lambda: q.nack(job.id),
            lambda: q.heartbeat(job.id),
            lambda: q.cancel(job.id),
            lambda: q.retry(job.id),
            q.purge,
            lambda: q.dequeue(None, batch_size=5, request_id="r"),
        ]
        with pytest.raises(ReadOnlyError, match="as_of"):
            await calls[verb]()
        assert len(await q.jobs()) == 1
    assert watched.writes == 0


# --- What is not there ---


async def test_what_is_too_old_is_named_with_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 5)
    store, clock = MemoryStore(), ManualClock()
    moments = await history(store, clock, 60, retention=timedelta(seconds=100))
    read = await store.get("queue.json")
    assert isinstance(read, Stored)
    head = decode_head("queue.json", read.body)
    oldest = head.kept[0]
    assert head.floor > 10

    with pytest.raises(HistoryGoneError, match=f"begins at position {oldest.position}.*retention") as caught:
        async with opened(store, clock, as_of=oldest.position - 1):
            pass
    assert caught.value.oldest == oldest.position
    with pytest.raises(HistoryGoneError, match="oldest moment left is"):
        async with opened(store, clock, as_of=START):
            pass
    for position in (oldest.position, oldest.position + 1, max(moments)):
        async with opened(store, clock, as_of=position) as q:
            assert await seen(q) == moments[position][1]


async def test_a_past_that_is_collected_while_it_is_read_is_gone_and_not_the_future(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 5)

    class Collected(GatedStore):
        """Others go on for a while just before the first segment is read."""

        done = False

        async def get(self, key: str, *, unless: str | None = None) -> Read:
            if key.startswith("log/") and not self.done:
                self.done = True
                await history(memory, clock, 60, retention=timedelta(seconds=1))
            return await super().get(key, unless=unless)

    memory, clock = MemoryStore(), ManualClock()
    await history(memory, clock, 4)
    store = Collected(memory)
    with pytest.raises(HistoryGoneError):
        async with opened(store, clock, as_of=3):
            pass
    assert store.done


async def test_the_future_is_named_with_the_range_that_is_there() -> None:
    store, clock = MemoryStore(), ManualClock()
    moments = await history(store, clock, 8)
    with pytest.raises(InvalidInputError, match=f"0 to {max(moments)}"):
        async with opened(store, clock, as_of=max(moments) + 1):
            pass
    with pytest.raises(InvalidInputError, match="in the future"):
        async with opened(store, clock, as_of=_now(clock) + timedelta(seconds=1)):
            pass


async def test_a_document_has_no_past() -> None:
    store = MemoryStore()
    async with opened(store, layout="document") as q:
        await q.enqueue("send", b"1")
    with pytest.raises(NoHistoryError, match="casque queue convert"):
        async with opened(store, as_of=1):
            pass


async def test_arguments_that_make_no_sense_are_refused() -> None:
    for as_of, says in [(-1, "as_of"), (True, "as_of"), (datetime(2026, 1, 1), "time zone"), (0, "no queue")]:  # noqa: DTZ001
        with pytest.raises(InvalidInputError, match=says):
            async with opened(MemoryStore(), as_of=as_of):
                pass


@pytest.mark.parametrize("damage", ["segment missing", "segment cut", "kept snapshot missing", "kept snapshot cut"])
async def test_damage_in_the_past_is_named(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 6)
    store, clock = MemoryStore(), ManualClock()
    await history(store, clock, 40, retention=timedelta(days=1))
    read = await store.get("queue.json")
    assert isinstance(read, Stored)
    kept = decode_head("queue.json", read.body).kept[1]
    key = kept.key if "snapshot" in damage else segment_key(kept.position + 1)
    whole = await store.get(key)
    assert isinstance(whole, Stored)
    await store.delete(key)
    if "cut" in damage:
        await store.create(key, whole.body[:-20])
    with pytest.raises(CorruptQueueError) as caught:
        async with opened(store, clock, as_of=kept.position + 3):
            pass
    assert caught.value.key == key
    async with opened(store, clock):
        await settle()  # what is newer is not touched by it


def test_the_past_without_asyncio() -> None:
    with SyncQueue.open("memory://sync-past") as q:
        q.enqueue("send", b"1")
        q.enqueue("send", b"2")
    with SyncQueue.open("memory://sync-past", as_of=1) as q:
        assert [job.payload for job in q.jobs()] == [b"1"]
        with pytest.raises(ReadOnlyError):
            q.enqueue("send", b"3")
