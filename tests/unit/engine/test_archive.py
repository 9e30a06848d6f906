"""The archive: what is finished gets there once, whoever finishes it and whatever fails meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from typing import Any

import msgspec
import pytest

from casque import (
    ArchivedJob,
    CorruptQueueError,
    DirectQueue,
    Ending,
    InMemoryStorage,
    InvalidInputError,
    JobState,
    Queue,
    StorageError,
    SyncQueue,
)
from casque.clock import Random
from casque.codec.archive import Range, archive_key, parse_key
from casque.codec.log import decode_head, encode_head
from casque.environment import Environment
from casque.journal import document
from casque.journal.convert import Converter
from casque.journal.log import archiver, pace
from casque.journal.verify import Verifier
from casque.service.requests import Dequeue, Enqueue, Nack
from casque.state import State
from casque.state.job_life import LEASE_RAN_OUT
from casque.storage.memory import MemoryStore
from casque.storage.port import Outcome, Read, Store, Stored
from casque.testing.clock import ManualClock
from casque.testing.gated import GatedStore
from casque.types import TRIES_MAX, JobSpec

NEARLY_ELEVEN_MS = int(datetime(2026, 2, 15, 10, 59, 50, tzinfo=UTC).timestamp() * 1000)
SEEDS = count(1)
"""Every queue gets chance of its own: two with the same would take each other for themselves."""
BOTH = pytest.mark.parametrize("layout", ["log", "document"])


class Barred:
    """A store that refuses whatever is written below some prefix, until it is let."""

    def __init__(self, store: Store, prefix: str = "archive/") -> None:
        self._store = store
        self._prefix = prefix
        self.bars = True

    async def create(self, key: str, body: bytes) -> Outcome:
        if self.bars and key.startswith(self._prefix):
            raise StorageError("no room there")
        return await self._store.create(key, body)

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        return await self._store.replace(key, body, expected=expected)

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        return await self._store.get(key, unless=unless)

    async def delete(self, key: str) -> None:
        await self._store.delete(key)

    def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        return self._store.list(prefix, after=after)

    async def close(self) -> None:
        await self._store.close()


def opened(store: Store, layout: str = "log", clock: ManualClock | None = None, **settings: Any) -> Queue[bytes]:
    return Queue.open(store, layout=layout, clock=clock, rng=Random(next(SEEDS)), **settings)


async def finish(queue: Queue[bytes], *payloads: bytes, entrypoint: str = "send") -> None:
    """The first bytes of the payload, in capitals, are the result."""
    await queue.enqueue_many([(entrypoint, payload) for payload in payloads])
    for job in await queue.dequeue(entrypoint, batch_size=len(payloads)):
        await job.ack(result=job.payload[:10].upper())


async def archive_of(store: Store, **chosen: Any) -> list[ArchivedJob]:
    return [job async for job in Queue.open(store).archive(**chosen)]


async def names(store: Store, prefix: str = "archive/") -> list[str]:
    return [key async for key in store.list(prefix)]


async def body_of(store: Store, key: str) -> bytes:
    read = await store.get(key)
    assert isinstance(read, Stored)
    return read.body


async def marks(store: Store, layout: str) -> tuple[int | None, int | None]:
    told = json.loads(await body_of(store, "queue.json"))
    assert told["layout"] == layout
    return told.get("archived"), told.get("archiving")


# --- When ---


@BOTH
async def test_what_is_finished_is_archived_within_the_interval_though_nobody_calls(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, layout, clock, archive_interval=timedelta(seconds=10)) as q:
        await finish(q, b"a", b"b")
        await clock.advance(9)
        assert await names(store) == []
        await clock.advance(4)
        assert [job.payload for job in await archive_of(store)] == [b"a", b"b"]
        assert (await marks(store, layout))[1] is None


@BOTH
async def test_an_idle_queue_writes_nothing_once_everything_is_archived(layout: str) -> None:
    store, clock = GatedStore(MemoryStore()), ManualClock()
    async with opened(store, layout, clock) as q:
        await finish(q, b"a")
        await clock.advance(30)
        writes, reads = store.writes, store.requests["get"]
        await clock.advance(3600)
        assert (store.writes, store.requests["get"]) == (writes, reads)


@BOTH
async def test_a_short_program_leaves_its_archive_behind(layout: str) -> None:
    store = MemoryStore()
    async with opened(store, layout) as q:
        await finish(q, b"a")
    [job] = await archive_of(store)
    assert (job.payload, job.result, job.state) == (b"a", b"A", JobState.DONE)
    before = await names(store, "")
    async with opened(store, layout) as q:
        await q.stats()
    assert await names(store, "") == before


@BOTH
async def test_many_do_not_wait_for_the_interval(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casque.journal.archive.ARCHIVE_JOBS", 10)
    monkeypatch.setattr(document, "ARCHIVE_JOBS", 10)
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, layout, clock) as q:
        await finish(q, *(b"%d" % n for n in range(12)))
        await q.enqueue("send", b"one more turn")
        await clock.advance(0.01)
        assert len(await archive_of(store)) >= 10


@BOTH
async def test_large_payloads_do_not_wait_for_the_interval(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, layout, clock, payload_max=4_000_000) as q:
        await finish(q, bytes(3_000_000), bytes(3_000_000))
        await q.enqueue("send", b"one more turn")
        await clock.advance(0.01)
        assert len(await archive_of(store)) == 2


# --- What ---


@BOTH
async def test_each_way_to_end_is_archived_with_what_led_to_it(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock(NEARLY_ELEVEN_MS)
    async with opened(store, layout, clock, worker="w1") as q:
        done = await q.enqueue("send", b"done", priority=2, headers={"trace": "7f"}, key="k", zone="acme")
        dead = await q.enqueue("send", b"dead", max_attempts=1)
        cancelled = await q.enqueue("send", b"cancelled", run_at=datetime(2030, 1, 1, tzinfo=UTC))
        await clock.advance(1)
        first, second = sorted(await q.dequeue("send", batch_size=2), key=lambda job: job.priority, reverse=True)
        await clock.advance(1)
        await first.ack(result=b"\x00fine")
        await second.nack(error="no such user")
        await q.cancel(cancelled.id)
    found = {job.id: job for job in await archive_of(store)}
    assert found.keys() == {done.id, dead.id, cancelled.id}
    job = found[done.id]
    assert (job.state, job.attempts, job.worker, job.result, job.error) == (JobState.DONE, 1, "w1", b"\x00fine", None)
    assert (job.priority, job.headers, job.key, job.zone, job.max_attempts) == (2, {"trace": "7f"}, "k", "acme", 25)
    times = [job.created_at, job.due_at, job.claimed_at, job.finished_at]
    assert [moment and moment.second for moment in times] == [50, 50, 51, 52]
    assert all(moment is not None and moment.tzinfo is UTC for moment in times)
    assert (found[dead.id].state, found[dead.id].error, found[dead.id].worker) == (JobState.DEAD, "no such user", "w1")
    assert found[cancelled.id].state is JobState.CANCELLED
    assert found[cancelled.id].run_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert found[cancelled.id].claimed_at is None


@BOTH
async def test_a_dead_job_that_is_given_fresh_attempts_may_end_again(layout: str) -> None:
    store = MemoryStore()
    async with opened(store, layout) as q:
        job = await q.enqueue("send", b"", max_attempts=1)
        [claimed] = await q.dequeue("send")
        await claimed.nack(error="first")
        await q.retry(job.id)
        [claimed] = await q.dequeue("send")
        await claimed.ack()
    ends = await archive_of(store)
    assert [(one.id, one.state) for one in ends] == [(job.id, JobState.DEAD), (job.id, JobState.DONE)]
    assert len({one.position for one in ends}) == 2


@BOTH
async def test_the_archive_tells_the_story_of_every_attempt(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock(NEARLY_ELEVEN_MS)
    async with opened(store, layout, clock, worker="w1", stale_timeout=timedelta(seconds=5)) as q:
        await q.enqueue("send", b"", max_attempts=3)
        [job] = await q.dequeue("send", lease=3600)  # token 1
        await clock.advance(1)
        await job.nack(delay=0, error="first")
        await clock.advance(1)
        await q.dequeue("send")  # 2: forgotten, and its lease runs out
        await clock.advance(10)
        [job] = await q.dequeue("send", lease=3600)  # 3: the last of three
        await job.nack(error="third")
        await q.retry(job.id)
        [job] = await q.dequeue("send", lease=3600)  # 4
        await job.nack(delay=0)
    async with opened(store, layout, clock, worker="w2") as q:
        await clock.advance(1)
        [job] = await q.dequeue("send")  # 5
        await clock.advance(1)
        assert [one.token for one in job.tries] == [1, 2, 3, 4]
        await job.ack()
    dead, done = await archive_of(store)
    assert [(one.token, one.how, one.error) for one in done.tries] == [
        (1, Ending.FAILED, "first"),
        (2, Ending.EXPIRED, LEASE_RAN_OUT),
        (3, Ending.FAILED, "third"),
        (4, Ending.FAILED, None),
    ]
    assert dead.tries == done.tries[:2], "the attempt that ended it is told by its own fields"
    assert (dead.token, dead.error, done.token, done.worker) == (3, "third", 5, "w2")
    assert {one.worker for one in done.tries} == {"w1"}
    moments = [moment for one in done.tries for moment in (one.claimed_at, one.ended_at)]
    assert all(moment is not None and moment.tzinfo is UTC for moment in moments)
    assert [moment.second for moment in moments[:3] if moment is not None] == [50, 51, 52]
    assert await verified(store) == len(await names(store))


@BOTH
async def test_a_job_that_was_waiting_when_it_ended_says_so(layout: str) -> None:
    store = MemoryStore()
    async with opened(store, layout) as q:
        waiting, given_back, running = await q.enqueue_many([(name, b"") for name in ("a", "b", "c")])
        [job] = await q.dequeue("b")
        await q._service.give_back(job.id, token=job.token)
        await q.dequeue("c")
        for one in (waiting, given_back, running):
            await q.cancel(one.id)
    assert [(one.entrypoint, one.waiting, one.claimed_at is None) for one in await archive_of(store)] == [
        ("a", True, True),
        ("b", True, False),
        ("c", False, False),
    ]


def test_only_so_many_tries_are_kept_and_they_are_the_last() -> None:
    state = State()
    state.execute(Enqueue((JobSpec("1", "a", b""),)), 0)
    for now in range(1, TRIES_MAX + 11):
        [job] = state.execute(Dequeue(None, 1, 1000, "w"), now)
        state.execute(Nack("1", job.token, error=str(now)), now)
    tries = state.jobs["1"].tries
    assert [tried.error for tried in tries] == [str(now) for now in range(11, TRIES_MAX + 11)]
    assert (tries[0].claimed_ms, tries[0].ended_ms, tries[0].token) == (11, 11, 11)


async def test_what_a_release_without_tries_archived_is_taken_for_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """It may have begun the very range that this one goes on with; and what it archived is not damaged."""
    store, clock = MemoryStore(), ManualClock(NEARLY_ELEVEN_MS)
    async with opened(store, "log", clock) as q:
        await q.enqueue("send", b"a")
        [job] = await q.dequeue("send")
        await job.nack(delay=0, error="once")
        await clock.advance(1)
        [job] = await q.dequeue("send")
        await job.ack()
    [key] = await names(store)
    [told] = await archive_of(store)
    assert [one.error for one in told.tries] == ["once"]
    await store.delete(key)
    older = json.loads(msgspec.json.encode(told))
    del older["tries"]
    await store.create(key, json.dumps(older).encode() + b"\n")
    assert await verified(store) == 1

    head = decode_head("queue.json", await body_of(store, "queue.json"))
    read = await store.get("queue.json")
    assert isinstance(read, Stored)
    again = head.next("somebody", archived=0, archiving=head.archived)
    await store.replace("queue.json", encode_head(again), expected=read.etag)
    async with opened(store, "log", clock) as q:
        await finish(q, b"b")
    assert [(job.payload, job.tries) for job in await archive_of(store)] == [(b"a", ()), (b"b", ())]
    assert not caplog.records
    assert await verified(store) == 2

    await store.delete(key)
    await store.create(key, json.dumps(older | {"attempts": 7}).encode() + b"\n")
    with pytest.raises(CorruptQueueError, match="not what the log says"):
        await verified(store)


@BOTH
async def test_a_purged_job_was_archived_when_it_died_and_is_not_again(layout: str) -> None:
    store = MemoryStore()
    async with opened(store, layout) as q:
        await q.enqueue("send", b"", max_attempts=1)
        [job] = await q.dequeue("send")
        await job.nack()
        assert await q.purge() == 1
    assert [one.state for one in await archive_of(store)] == [JobState.DEAD]


@BOTH
async def test_a_range_that_spans_two_hours_has_an_object_in_each(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock(NEARLY_ELEVEN_MS)
    async with opened(store, layout, clock, archive_interval=timedelta(minutes=5)) as q:
        await finish(q, b"before")
        await clock.advance(20)
        await finish(q, b"after")
    one, other = await names(store)
    assert one.startswith("archive/2026-02-15T10/")
    assert other.startswith("archive/2026-02-15T11/")
    assert one.rpartition("/")[2] == other.rpartition("/")[2]
    assert [job.payload for job in await archive_of(store)] == [b"before", b"after"]


@BOTH
async def test_a_hundred_concurrent_completions_leave_a_hundred_records(layout: str) -> None:
    store = MemoryStore()
    async with opened(store, layout) as q:
        await q.enqueue_many([("send", b"%d" % n) for n in range(100)])
        await asyncio.gather(*(job.ack() for job in await q.dequeue("send", batch_size=100)))
    assert sorted(int(job.payload) for job in await archive_of(store)) == list(range(100))


# --- Several writers ---


def disjoint(keys: list[str]) -> bool:
    parsed = [found for key in keys if (found := parse_key(key)) is not None]
    ranges = sorted({range_ for _, range_ in parsed})
    return all(a.last < b.first for a, b in pairwise(ranges)) and len(parsed) == len(keys)


@BOTH
async def test_several_writers_archive_each_job_once(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casque.journal.archive.ARCHIVE_JOBS", 5)
    monkeypatch.setattr(document, "ARCHIVE_JOBS", 5)
    monkeypatch.setattr(archiver, "RANGE_JOBS", 7)
    store = MemoryStore()

    async def work(number: int) -> None:
        async with opened(store, layout, archive_interval=timedelta(milliseconds=5)) as q:
            for n in range(10):
                await finish(q, b"%d" % (100 * number + 2 * n), b"%d" % (100 * number + 2 * n + 1))

    await asyncio.gather(*(work(number) for number in range(4)))
    found = sorted(int(job.payload) for job in await archive_of(store))
    assert found == sorted(100 * number + n for number in range(4) for n in range(20))
    assert disjoint(await names(store))


@BOTH
async def test_what_a_process_left_behind_is_archived_by_whoever_comes_next(layout: str) -> None:
    store = MemoryStore()
    barred = Barred(store)
    async with opened(barred, layout, storage_patience=timedelta(milliseconds=1)) as q:
        await finish(q, b"a", b"b")
    archived, archiving = await marks(store, layout)
    assert archiving is not None, "it was claimed"
    assert await names(store) == []
    async with opened(store, layout) as q:
        await finish(q, b"c")
    first, *_ = await names(store)
    assert parse_key(first) is not None
    assert first.endswith(archive_key("", Range((archived or 0) + 1, archiving)).rpartition("/")[2])
    assert [job.payload for job in await archive_of(store)] == [b"a", b"b", b"c"]


async def test_an_object_that_is_there_already_is_taken_for_ones_own_if_it_is_the_same() -> None:
    """As after a lost reply, or when somebody else was faster."""
    store = MemoryStore()
    async with opened(store) as q:
        await finish(q, b"a")
    [key] = await names(store)
    head = decode_head("queue.json", await body_of(store, "queue.json"))
    again = head.next("somebody", archived=0, archiving=head.archived)
    read = await store.get("queue.json")
    assert isinstance(read, Stored)
    await store.replace("queue.json", encode_head(again), expected=read.etag)
    async with opened(store) as q:
        await finish(q, b"b")
    assert (await names(store))[0] == key
    assert [job.payload for job in await archive_of(store)] == [b"a", b"b"]


@BOTH
async def test_something_else_in_the_place_of_an_object_loses_nothing(
    layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, clock = MemoryStore(), ManualClock(NEARLY_ELEVEN_MS)
    position = 4 if layout == "log" else 5
    squatter = archive_key("2026-02-15T10", Range(1 if layout == "log" else 3, position))
    await store.create(squatter, b"{}\n")
    async with opened(store, layout, clock) as q:
        await q.enqueue_many([("send", b"a"), ("send", b"b")])
        jobs = await q.dequeue("send", batch_size=2)
        for job in jobs:
            await job.ack()
    assert "something else in the place" in caplog.text
    await store.delete(squatter)
    async with opened(store, layout, clock) as q:
        await q.stats()
    assert [job.payload for job in await archive_of(store)] == [b"a", b"b"]


# --- Failures ---


@BOTH
async def test_a_store_that_takes_no_archive_fails_no_caller(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    barred = Barred(store)
    async with opened(barred, layout, clock, storage_patience=timedelta(milliseconds=1)) as q:
        for n in range(5):
            await finish(q, b"%d" % n)
            await clock.advance(20)
        assert await names(store) == []
        barred.bars = False
        await clock.advance(30)
        assert len(await archive_of(store)) == 5


async def test_a_snapshot_keeps_what_could_not_be_archived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 4)
    store = MemoryStore()
    barred = Barred(store)
    quick: dict[str, Any] = {"storage_patience": timedelta(milliseconds=1), "retention": timedelta(milliseconds=1)}
    async with opened(barred, **quick) as q:
        for n in range(20):
            await finish(q, b"%d" % n)
    head = decode_head("queue.json", await body_of(store, "queue.json"))
    assert head.snapshot is not None
    assert head.floor <= head.archived_to == 0, "nothing is collected before it is archived"
    async with opened(store, **quick) as q:
        await q.stats()
    assert sorted(int(job.payload) for job in await archive_of(store)) == list(range(20))


async def test_a_queue_in_which_nothing_is_ever_finished_is_collected_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 4)
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, clock=clock, retention=timedelta(seconds=1)) as q:
        for n in range(40):
            await q.enqueue("send", b"%d" % n)
            await clock.advance(1)
    assert decode_head("queue.json", await body_of(store, "queue.json")).floor > 20
    assert await names(store) == []


# --- Without an archive ---


@BOTH
async def test_a_queue_without_an_archive_writes_none_and_may_have_one_later(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 4)
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, layout, clock, archive=False, retention=timedelta(seconds=1)) as q:
        for n in range(20):
            await finish(q, b"%d" % n)
            await clock.advance(2)
    assert await names(store) == []
    assert b'"finished"' not in await body_of(store, "queue.json")
    if layout == "log":
        assert decode_head("queue.json", await body_of(store, "queue.json")).floor > 20
    async with opened(store, layout, clock) as q:
        await finish(q, b"later")
    assert (await archive_of(store))[-1].payload == b"later"


async def test_a_storage_of_one_object_has_no_archive() -> None:
    storage = InMemoryStorage()
    async with Queue.open(storage) as q:
        await finish(q, b"a")
    content, _ = await storage.read()
    assert json.loads(content).keys() >= {"jobs", "counters"}
    assert b"finished" not in content
    assert [job async for job in Queue.open(storage).archive()] == []


@BOTH
async def test_a_direct_queue_archives_when_it_is_closed_and_with_calls_that_come_late(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    q = DirectQueue(store, layout=layout, clock=clock, rng=Random(1))
    for n in range(2):
        await q.enqueue("send", b"%d" % n)
        [job] = await q.dequeue("send")
        await q.ack(job.id, result=b"r")
    assert await names(store) == []
    await clock.advance(13)
    await q.read_state()
    await q.requeue_stale(timedelta(0))
    assert len(await archive_of(store)) == 2
    await q.enqueue("send", b"2")
    [job] = await q.dequeue("send")
    await q.ack(job.id)
    await q.close()
    assert len(await archive_of(store)) == 3


# --- Reading ---


@BOTH
async def test_the_archive_is_read_by_time_entrypoint_and_state(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock(NEARLY_ELEVEN_MS)
    eleven = datetime(2026, 2, 15, 11, tzinfo=UTC)
    async with opened(store, layout, clock) as q:
        await finish(q, b"before")
        await clock.advance(10)
        await finish(q, b"at eleven", entrypoint="mail")
        await clock.advance(7200)
        job = await q.enqueue("mail", b"much later")
        await q.cancel(job.id)

    async def read(**chosen: Any) -> list[bytes]:
        return [one.payload for one in await archive_of(store, **chosen)]

    assert await read() == [b"before", b"at eleven", b"much later"]
    assert await read(since=eleven) == [b"at eleven", b"much later"]
    assert await read(until=eleven) == [b"before"]
    assert await read(since=eleven, until=eleven + timedelta(hours=2)) == [b"at eleven"]
    assert await read(since=eleven + timedelta(seconds=1), entrypoint="mail") == [b"much later"]
    assert await read(entrypoint="send") == [b"before"]
    assert await read(states=[JobState.CANCELLED]) == [b"much later"]
    assert await read(states=[JobState.DEAD]) == []


async def test_a_question_that_makes_no_sense_is_refused() -> None:
    q = Queue.open(MemoryStore())
    for wrong, what in [
        ({"since": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"until": "today"}, "datetime"),
        ({"states": [JobState.RUNNING]}, "only finished jobs"),
        ({"entrypoint": ""}, "entrypoint"),
    ]:
        with pytest.raises(InvalidInputError, match=what):
            async for _ in q.archive(**wrong):  # type: ignore[arg-type]
                pass


async def test_a_result_is_bytes_and_not_too_many() -> None:
    async with opened(MemoryStore()) as q:
        await q.enqueue("send", b"")
        [job] = await q.dequeue("send")
        with pytest.raises(InvalidInputError, match="result must be bytes"):
            await job.ack(result="fine")  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="at most 262,144 bytes"):
            await job.ack(result=bytes(262_145))
        await job.ack(result=bytes(262_144))


async def test_an_entered_queue_reads_its_archive_too() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await finish(q, b"a")
    async with opened(store) as q:
        assert [job.payload async for job in q.archive()] == [b"a"]


def test_the_archive_without_asyncio() -> None:
    with SyncQueue.open("memory://archive-sync") as q:
        q.enqueue("send", b"hello")
        for job in q.dequeue("send"):
            job.ack(result=b"sent")
    with SyncQueue.open("memory://archive-sync") as q:
        assert [(job.payload, job.result) for job in q.archive()] == [(b"hello", b"sent")]


async def test_what_is_no_part_of_an_archive_is_passed_over_or_named() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await finish(q, b"a")
    await store.create("archive/README", b"mine")
    await store.create("archive/2026-02-15T10/notes.jsonl", b"mine")
    assert [job.payload for job in await archive_of(store)] == [b"a"]
    broken = archive_key("2026-02-15T10", Range(1, 2))
    await store.create(broken, b"not json\n")
    with pytest.raises(CorruptQueueError) as caught:
        await archive_of(store)
    assert caught.value.key == broken


async def test_a_reader_that_leaves_early_leaves_nothing_running() -> None:
    store = MemoryStore()
    for n in range(10):
        async with opened(store) as q:
            await finish(q, b"%d" % n)
    jobs = Queue.open(store).archive()
    assert (await anext(jobs)).payload == b"0"
    await jobs.aclose()


# --- How long ---


@BOTH
async def test_whole_hours_that_are_too_old_are_deleted_by_whoever_archives(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock(NEARLY_ELEVEN_MS - 1_800_000)
    keep: dict[str, Any] = {"archive_retention": timedelta(hours=2)}
    async with opened(store, layout, clock, **keep) as q:
        await finish(q, b"10:29")
        await clock.advance(3600)
        await finish(q, b"11:29")
        await clock.advance(3600)
        await finish(q, b"12:29")
        await clock.advance(15)
        assert [job.payload for job in await archive_of(store)] == [b"10:29", b"11:29", b"12:29"]
        await clock.advance(3600)
        await finish(q, b"13:29")
        await clock.advance(15)
    assert [job.payload for job in await archive_of(store)] == [b"11:29", b"12:29", b"13:29"]


@BOTH
@pytest.mark.parametrize("ahead_s", [2 * 24 * 3600, 366 * 24 * 3600])
async def test_a_clock_that_is_far_ahead_deletes_no_hours(layout: str, ahead_s: int) -> None:
    store, clock = MemoryStore(), ManualClock(NEARLY_ELEVEN_MS)
    keep: dict[str, Any] = {"archive_retention": timedelta(hours=2)}
    async with opened(store, layout, clock, **keep) as q:
        await finish(q, b"by a clock that is right")
        await clock.advance(15)
        clock.jump_wall(ahead_s)
        await clock.advance(1200)
        await finish(q, b"after a step")
        await clock.advance(15)
    wrong = ManualClock(NEARLY_ELEVEN_MS + (ahead_s + 100 * 24 * 3600) * 1000)
    async with opened(store, layout, wrong, **keep) as q:
        for _ in range(3):
            await finish(q, b"by a machine that took over")
            await wrong.advance(1200)
    payloads = [job.payload for job in await archive_of(store)]
    assert payloads[:2] == [b"by a clock that is right", b"after a step"]


@BOTH
async def test_a_process_that_follows_others_deletes_what_was_archived_before_it(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock(NEARLY_ELEVEN_MS)
    keep: dict[str, Any] = {"archive_retention": timedelta(hours=2)}
    for hour in (b"first", b"second", b"third", b"fourth"):
        async with opened(store, layout, clock, **keep) as q:
            await finish(q, hour)
            await clock.advance(15)
        await clock.advance(3600 * 1.5)
    assert [job.payload for job in await archive_of(store)] == [b"third", b"fourth"]


# --- Converting and verifying ---


async def converted(store: Store, layout: str) -> None:
    converter = Converter(store, Environment(clock=ManualClock(), rng=Random(layout)), say=lambda _: None)
    assert (await converter.convert(layout)).changed


async def verified(store: Store) -> int:
    return (await Verifier(store, Environment(clock=ManualClock(), rng=Random(3))).verify()).archived


@BOTH
async def test_a_conversion_loses_nothing_that_is_yet_to_be_archived(layout: str) -> None:
    other = {"log": "document", "document": "log"}[layout]
    store = MemoryStore()
    async with opened(Barred(store), layout, storage_patience=timedelta(milliseconds=1)) as q:
        await finish(q, b"a", b"b")
    claimed = await marks(store, layout)
    assert claimed[1] is not None
    await converted(store, other)
    assert await marks(store, other) == claimed, "a range that was begun stays that range"
    await converted(store, layout)
    await verified(store)
    async with opened(store, layout) as q:
        await finish(q, b"c")
    await converted(store, other)
    async with opened(store, other) as q:
        await finish(q, b"d")
    assert [job.payload for job in await archive_of(store)] == [b"a", b"b", b"c", b"d"]
    assert disjoint(await names(store))
    assert await verified(store) == len(await names(store))


async def test_verify_names_what_is_wrong_with_an_archive() -> None:
    store = MemoryStore()
    for n in range(3):
        async with opened(store) as q:
            await finish(q, b"%d" % n)
    keys = await names(store)
    assert await verified(store) == len(keys) == 3
    good = await body_of(store, keys[1])

    await store.delete(keys[1])
    # One range less is no damage to see: it may have been archived by nobody. But what lies in its place is.
    await store.create(keys[1], good.replace(b'"state":"done"', b'"state":"dead"'))
    with pytest.raises(CorruptQueueError, match="not what the log says") as caught:
        await verified(store)
    assert caught.value.key == keys[1]
    await store.delete(keys[1])
    await store.create(keys[1], good)

    hour = keys[1].split("/")[1]
    found = parse_key(keys[1])
    assert found is not None
    twice = archive_key(hour, Range(found[1].first, found[1].last + 1))
    await store.create(twice, good)
    with pytest.raises(CorruptQueueError, match="overlaps"):
        await verified(store)
    await store.delete(twice)

    await store.create(archive_key(hour, Range(1000, 1001)), good)
    with pytest.raises(CorruptQueueError, match="an old queue"):
        await verified(store)
