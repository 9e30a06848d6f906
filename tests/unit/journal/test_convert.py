"""Conversion between layouts: everything is kept, and whoever writes or sleeps meanwhile loses and breaks nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from casque import CASConflictError, InvalidInputError, JobState, Queue, QueueLedError, QueueReplacedError
from casque.clock import Random, yield_once
from casque.codec import snapshot
from casque.codec.digest import state_digest
from casque.codec.head import Owner
from casque.codec.log import Mode, decode_head, encode_head, segment_key
from casque.environment import Environment
from casque.errors import UnknownOutcomeError
from casque.journal.convert import Converted, Converter
from casque.journal.log import LogJournal, contention, pace, snapshots
from casque.journal.opening import open_journal
from casque.journal.verify import Verifier
from casque.settings import QueueSettings
from casque.state import Limits, State
from casque.storage.memory import MemoryStore
from casque.storage.port import Outcome, Read, Stored, Unknown
from casque.testing.clock import ManualClock
from casque.testing.gated import GatedStore
from casque.types import Finished

SEEDS = count(1)
KEPT = Path(__file__).parents[2] / "compat"
OTHER = {"log": "document", "document": "log"}


@asynccontextmanager
async def opened(store: Any, layout: str = "log", **settings: Any) -> AsyncIterator[Queue[bytes]]:
    async with Queue.open(store, layout=layout, rng=Random(next(SEEDS)), clock=ManualClock(), **settings) as queue:
        yield queue


async def convert(store: Any, layout: str, **settings: Any) -> Converted:
    env = Environment(QueueSettings(**settings), ManualClock(), Random(next(SEEDS)))
    return await Converter(store, env, say=lambda _: None).convert(layout)


async def verify(store: Any) -> None:
    await Verifier(store, Environment(clock=ManualClock(), rng=Random(next(SEEDS)))).verify()


async def state_of(store: Any) -> State:
    opened = await open_journal(store, Environment(clock=ManualClock(), rng=Random(next(SEEDS))), layout="log")
    return opened.state


async def layout_of(store: MemoryStore) -> str:
    read = await store.get("queue.json")
    assert isinstance(read, Stored)
    return str(json.loads(read.body)["layout"])


async def fill(q: Queue[bytes]) -> None:
    """A job in every state, a key, remembered requests, and jobs that are gone."""
    await q.enqueue("ready", b"1", key="k", headers={"a": "b"}, zone="acme", priority=-3)
    await q.enqueue("later", b"2", delay=3600)
    await q.enqueue("dying", b"3", max_attempts=1)
    [dying] = await q.dequeue("dying")
    await dying.nack(error="broken")
    await q.enqueue("held", b"4", request_id="enqueue-1")
    await q.dequeue("held", request_id="dequeue-1", lease=90)
    await q.enqueue_many([("done", b"5")] * 3, request_id="many")
    for job in await q.dequeue("done", batch_size=2):
        await job.ack()


@pytest.mark.parametrize("layout", ["log", "document"])
async def test_everything_is_there_afterwards_and_works(layout: str) -> None:
    store = MemoryStore()
    async with opened(store, layout) as q:
        await fill(q)
        jobs, totals = await q.jobs(), (await q.stats()).totals
    before = await state_of(store)

    done = await convert(store, OTHER[layout])

    after = await state_of(store)
    assert (done.layout, done.jobs, done.digest) == (OTHER[layout], len(jobs), state_digest(before))
    assert await layout_of(store) == OTHER[layout]
    assert state_digest(after) == state_digest(before)
    assert (after.counters, after.writers, after.requests) == (before.counters, before.writers, before.requests)
    assert after.position == done.position >= before.position
    await verify(store)
    async with opened(store) as q:
        assert await q.jobs() == jobs
        assert (await q.stats()).totals == totals
        held = await q.find(next(job.id for job in jobs if job.entrypoint == "held"))
        assert held is not None
        [same] = await q.dequeue("held", request_id="dequeue-1")
        assert (same.id, same.token) == (held.id, held.token)
        await q.ack(held.id, held.token)
        assert (await q.enqueue("ready", b"again", key="k")).id == jobs[0].id
        assert (await q.enqueue("held", b"4", request_id="enqueue-1")).id == held.id


async def test_there_and_back_many_times() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await fill(q)
    last = 0
    for round_ in range(6):
        done = await convert(store, "log" if round_ % 2 else "document")
        assert done.position >= last
        last = done.position
        await verify(store)
        async with opened(store) as q:
            await q.enqueue("more", b"%d" % round_)
            [job] = await q.dequeue("more")
            await job.ack()
            last = (await q.stats()).position
    assert (await state_of(store)).counters.done == 2 + 6


@pytest.mark.parametrize("name", ["worked", "in-progress", "empty", "unicode"])
async def test_a_jqueue_document_converts(name: str) -> None:
    store = MemoryStore()
    await store.create("queue.json", (KEPT / "jqueue-1.0" / f"{name}.json").read_bytes())
    before = await state_of(store)

    await convert(store, "log")

    after = await state_of(store)
    assert state_digest(after) == state_digest(before)
    await verify(store)
    async with opened(store) as q:
        await q.enqueue("send", b"1")
    await verify(store)


async def test_a_queue_that_has_the_layout_is_left_alone() -> None:
    for layout in ("log", "document"):
        store = MemoryStore()
        async with opened(store, layout) as q:
            await q.enqueue("send", b"1")
        read = await store.get("queue.json")
        done = await convert(store, layout)
        assert not done.changed
        assert await store.get("queue.json") == read


async def test_what_cannot_be_converted_is_said_to_be_so() -> None:
    with pytest.raises(InvalidInputError, match="no queue"):
        await convert(MemoryStore(), "log")
    with pytest.raises(InvalidInputError, match="log or document"):
        await convert(MemoryStore(), "scroll")


async def test_a_queue_that_a_broker_leads_is_not_converted() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await q.enqueue("send", b"1")
    read = await store.get("queue.json")
    assert isinstance(read, Stored)
    led = decode_head("queue.json", read.body)
    led = type(led)(
        format=1, queue_id=led.queue_id, version=2, mode=Mode.LED, epoch=1, owner=Owner("b", "n", "10.0.0.7:7700")
    )
    await store.replace("queue.json", encode_head(led), expected=read.etag)

    with pytest.raises(QueueLedError, match=r"10\.0\.0\.7"):
        await convert(store, "document")


# --- Those who have it open ---


@pytest.mark.parametrize("alone", [False, True], ids=["open", "exclusive"])
@pytest.mark.parametrize("layout", ["log", "document"])
async def test_a_process_that_has_it_open_is_told_and_loses_nothing(
    layout: str, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if alone:
        monkeypatch.setattr(contention, "ALONE_COMMITS", 2)
    store = MemoryStore()
    async with opened(store, layout) as q:
        await q.enqueue("send", b"0", request_id="r0")
    async with opened(store) as q:
        for n in range(1, 5):
            await q.enqueue("send", b"%d" % n, request_id=f"r{n}")
        await convert(store, OTHER[layout])
        for _ in range(3):
            with pytest.raises(QueueReplacedError, match="Open it again"):
                await q.enqueue("send", b"too late", request_id="late")
        with pytest.raises(QueueReplacedError):
            await q.stats()
    async with opened(store) as q:
        assert [job.payload for job in await q.jobs()] == [b"0", b"1", b"2", b"3", b"4"]
        await q.enqueue("send", b"too late", request_id="late")
        assert len(await q.jobs()) == 6
    await verify(store)


@pytest.mark.parametrize("alone", [False, True], ids=["open", "exclusive"])
async def test_a_writer_that_slept_through_two_conversions_never_believes_its_commit(
    alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot may have been swept, or hold a fence, or lie in another log by now: it is told, and harms nothing."""
    if alone:
        monkeypatch.setattr(contention, "ALONE_COMMITS", 2)
    memory = MemoryStore()
    gate = GatedStore(memory)
    async with opened(gate) as sleeper:
        for n in range(5):
            await sleeper.enqueue("send", b"%d" % n)
        gate.shut()
        call = asyncio.create_task(sleeper.enqueue("send", b"asleep", request_id="asleep"))
        await gate.arrived.wait()
        await convert(memory, "document")
        async with opened(memory) as q:
            await q.enqueue("send", b"as a document")
        await convert(memory, "log")
        async with opened(memory) as q:
            for n in range(3):
                await q.enqueue("send", b"as a log %d" % n)
        before = await state_of(memory)
        gate.open()
        with pytest.raises(QueueReplacedError):
            await call
    after = await state_of(memory)
    assert state_digest(after) == state_digest(before)
    await verify(memory)
    async with opened(memory) as q:
        await q.enqueue("send", b"asleep", request_id="asleep")
        assert (await q.stats()).totals.ready == 5 + 1 + 3 + 1


async def test_a_write_that_wins_the_race_makes_the_conversion_refuse() -> None:
    """Somebody commits at the worst moment: between the reading and the switch."""
    for layout in ("log", "document"):
        memory = MemoryStore()
        async with opened(memory, layout) as q:
            await q.enqueue("send", b"1")

        async def meanwhile(memory: MemoryStore = memory) -> None:
            async with opened(memory) as other:
                await other.enqueue("send", b"2")

        with pytest.raises(CASConflictError, match="nothing was changed"):
            await convert(Meddled(memory, meanwhile, body=OTHER[layout].encode()), OTHER[layout])
        assert await layout_of(memory) == layout
        assert (await state_of(memory)).counters.enqueued == 2
        await verify(memory)
        assert (await convert(memory, OTHER[layout])).changed


async def test_a_write_right_after_the_fence_makes_the_conversion_refuse() -> None:
    """The log is closed, and somebody opens it again before the converter looks at what it is to replace."""

    class Reopened(GatedStore):
        closed = done = False

        async def create(self, key: str, body: bytes) -> Outcome:
            self.closed = self.closed or b'"events":[]' in body
            return await super().create(key, body)

        async def get(self, key: str, *, unless: str | None = None) -> Read:
            if self.closed and not self.done and key == "queue.json" and unless is None:
                self.done = True
                async with opened(memory) as other:
                    await other.enqueue("send", b"2")
            return await super().get(key, unless=unless)

    memory = MemoryStore()
    async with opened(memory) as q:
        await q.enqueue("send", b"1")
    store = Reopened(memory)

    with pytest.raises(CASConflictError, match="nothing was changed"):
        await convert(store, "document")

    assert store.done
    assert (await state_of(memory)).counters.enqueued == 2
    await verify(memory)


async def test_tidying_up_spares_a_conversion_that_is_under_way() -> None:
    """Its snapshot is written and not named yet."""
    memory = MemoryStore()
    async with opened(memory) as q:
        await fill(q)
    await convert(memory, "document")
    expected = state_digest(await state_of(memory))

    async def tidy() -> None:
        assert not (await convert(memory, "document")).changed

    assert (await convert(Meddled(memory, tidy, body=b"log"), "log")).changed

    assert state_digest(await state_of(memory)) == expected
    await verify(memory)


# --- Crashes ---


class CrashError(Exception):
    """The process ended here."""


class Meddled(GatedStore):
    """Something happens just before the switch to a layout."""

    def __init__(self, store: MemoryStore, what: Callable[[], Awaitable[None]], *, body: bytes) -> None:
        super().__init__(store)
        self._what = what
        self._body = body
        self._done = False

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        if b'"layout": "%b"' % self._body in body and not self._done:
            self._done = True
            await self._what()
        return await super().replace(key, body, expected=expected)


class Mortal(GatedStore):
    """The process dies at its n-th request, before or after it took effect."""

    def __init__(self, store: MemoryStore, dies_at: int, *, after: bool) -> None:
        super().__init__(store)
        self._left = dies_at
        self._after = after

    async def _tick(self, call: Awaitable[Any]) -> Any:
        self._left -= 1
        if self._left == 0 and self._after:
            await call
            raise CrashError
        if self._left <= 0:
            call.close()  # type: ignore[attr-defined]
            raise CrashError
        return await call

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        read: Read = await self._tick(super().get(key, unless=unless))
        return read

    async def create(self, key: str, body: bytes) -> Outcome:
        outcome: Outcome = await self._tick(super().create(key, body))
        return outcome

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        outcome: Outcome = await self._tick(super().replace(key, body, expected=expected))
        return outcome

    async def delete(self, key: str) -> None:
        await self._tick(super().delete(key))


async def copied(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    async for key in store.list():
        read = await store.get(key)
        assert isinstance(read, Stored)
        await copy.create(key, read.body)
    return copy


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("layout", ["log", "document"])
@pytest.mark.parametrize("part_bytes", [500, snapshots.PART_BYTES], ids=["parts", "whole"])
async def test_a_crash_at_any_request_leaves_a_whole_queue(
    layout: str, after: bool, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PART_BYTES", part_bytes)
    monkeypatch.setattr(snapshot, "PIECE_JOBS", 2)
    original = MemoryStore()
    async with opened(original, layout) as q:
        await fill(q)
    expected = state_digest(await state_of(original))
    survived = False
    for dies_at in range(1, 200):
        store = await copied(original)
        try:
            await convert(Mortal(store, dies_at, after=after), OTHER[layout])
            survived = True
        except CrashError:
            pass
        assert state_digest(await state_of(store)) == expected, dies_at
        await verify(store)
        # Whoever runs it again gets there, and what the dead one left is no obstacle.
        assert (await convert(store, OTHER[layout])).layout == OTHER[layout]
        assert state_digest(await state_of(store)) == expected, dies_at
        await verify(store)
        async with opened(store) as q:
            await q.enqueue("send", b"on it goes")
        if survived:
            break
    assert survived


@pytest.mark.parametrize("layout", ["log", "document"])
async def test_a_switch_whose_reply_is_lost_is_settled_by_reading_back(layout: str) -> None:
    class Deaf(GatedStore):
        lost = 0

        async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
            outcome = await super().replace(key, body, expected=expected)
            if b'"layout": "%b"' % OTHER[layout].encode() in body and not self.lost:
                self.lost += 1
                return Unknown(ConnectionResetError("lost"))
            return outcome

    memory = MemoryStore()
    async with opened(memory, layout) as q:
        await fill(q)
    expected = state_digest(await state_of(memory))
    clock = ManualClock()

    converter = Converter(Deaf(memory), Environment(clock=clock, rng=Random(next(SEEDS))), say=lambda _: None)
    converting = asyncio.create_task(converter.convert(OTHER[layout]))
    await clock.advance(5)
    assert (await converting).changed
    assert state_digest(await state_of(memory)) == expected
    await verify(memory)


async def test_a_switch_that_nobody_answers_is_unknown_and_the_queue_is_whole() -> None:
    class Silent(GatedStore):
        async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
            return Unknown(ConnectionResetError("lost"))

    memory = MemoryStore()
    async with opened(memory, "document") as q:
        await fill(q)
    clock = ManualClock()

    converter = Converter(Silent(memory), Environment(clock=clock, rng=Random(next(SEEDS))), say=lambda _: None)
    converting = asyncio.create_task(converter.convert("log"))
    await clock.advance(60)
    with pytest.raises(UnknownOutcomeError):
        await converting
    await verify(memory)


# --- What an earlier log left ---


async def test_a_new_log_begins_above_everything_that_an_old_one_left() -> None:
    """A document from a backup, older than the log that lies beside it."""
    store = MemoryStore()
    async with opened(store, "document") as q:
        await q.enqueue("send", b"1")
    other = MemoryStore()
    async with opened(other) as q:
        for n in range(7):
            await q.enqueue("send", b"%d" % n)
    async for key in other.list("log/"):
        read = await other.get(key)
        assert isinstance(read, Stored)
        await store.create(key, read.body)

    done = await convert(store, "log")

    assert done.position == 7
    async with opened(store) as q:
        await q.enqueue("send", b"2")
        assert (await q.stats()).position == 8
        assert (await q.stats()).totals.ready == 2
    await verify(store)


async def test_fences_of_every_log_outlive_all_conversions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "ALONE_COMMITS", 2)
    store = MemoryStore()
    async with opened(store) as q:
        for n in range(6):
            await q.enqueue("send", b"%d" % n)
    await convert(store, "document")
    fences = [key async for key in store.list("log/")]
    assert segment_key(3) in fences, "that of the holder"
    assert len(fences) == 2, "and that of the conversion"
    assert [key async for key in store.list("snapshots/")] == []

    await convert(store, "log")
    async with opened(store) as q:
        await q.enqueue("send", b"as a log")
    await convert(store, "document")

    left = [key async for key in store.list("log/")]
    assert set(fences) < set(left)


async def test_fences_of_an_earlier_log_are_not_collected_by_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "ALONE_COMMITS", 2)
    store = MemoryStore()
    async with opened(store) as q:
        for n in range(6):
            await q.enqueue("send", b"%d" % n)
    await convert(store, "document")
    fences = {key async for key in store.list("log/")}
    await convert(store, "log")

    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 4)
    clock, rng = ManualClock(), Random(next(SEEDS))
    async with Queue.open(store, clock=clock, rng=rng, retention=timedelta(seconds=1)) as q:
        for n in range(30):
            await q.enqueue("send", b"%d" % n)
            await clock.advance(5)
        position = (await q.stats()).position

    left = {key async for key in store.list("log/")}
    assert len(left) < position - 8, "much was collected"
    assert fences < left
    await verify(store)


async def test_jobs_that_run_keep_their_leases() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await q.enqueue("send", b"1")
        [job] = await q.dequeue("send")
    await convert(store, "document")
    async with opened(store) as q:
        [running] = await q.jobs(states=[JobState.RUNNING])
        assert (running.token, running.lease) == (job.token, job.lease)
        await q.heartbeat(job.id, job.token)
        await q.ack(job.id, job.token)


async def test_a_job_that_is_archived_before_it_is_read_does_not_stay_in_the_state() -> None:
    """The head is read after the log: it may call archived what this reader has not read yet. Such a job stayed among
    those that are yet to be archived, and a conversion found that the document did not have it."""
    store = MemoryStore()
    async with opened(store, archive_interval=timedelta(hours=1), archive=True) as queue:
        await queue.enqueue("work", b"")
        [job] = await queue.dequeue()
        await job.ack()
    read, last = await store.get("queue.json"), (await state_of(store)).position
    acked = segment_key(last)
    segment = await store.get(acked)
    assert isinstance(read, Stored)
    assert isinstance(segment, Stored)
    head = decode_head("queue.json", read.body).next("other", archived=last, archiving=None)
    await store.replace("queue.json", encode_head(head), expected=read.etag)
    await store.delete(acked)
    journal = LogJournal(
        store,
        Environment(clock=ManualClock(), rng=Random(next(SEEDS))),
        limits=Limits(finished=True),
    )
    state = await journal.load()
    await store.create(acked, segment.body)

    state = (await journal.refresh(state)).state

    assert state.position == last
    assert state.finished == []
    assert (await convert(store, "document")).layout == "document"


def test_what_is_archived_leaves_the_state_also_if_the_mark_was_there_before() -> None:
    state = State(Limits(finished=True))
    state.facets.finished.archived = 7
    finished = [Finished(position, None, None, 0) for position in (6, 7, 8)]  # type: ignore[arg-type]
    state.facets.finished.restore(state, finished)

    state.shed(7)

    assert [one.position for one in state.finished] == [8]


@pytest.mark.parametrize("layout", ["log", "document"])
@pytest.mark.parametrize("seed", range(12))
async def test_two_converters_at_once_blame_each_other_and_never_the_store(layout: str, seed: int) -> None:
    store = MemoryStore()
    async with opened(store, layout=layout) as queue:
        for n in range(5):
            await queue.enqueue("work", b"%d" % n)
    rng = Random(seed)
    slow = [SlowStore(store, rng) for _ in range(3)]

    ends = await asyncio.gather(*(convert(one, OTHER[layout]) for one in slow), return_exceptions=True)

    assert [end for end in ends if not isinstance(end, Converted | CASConflictError)] == []
    assert any(isinstance(end, Converted) for end in ends)
    assert await layout_of(store) == OTHER[layout]
    await verify(store)
    assert len((await state_of(store)).jobs) == 5


@pytest.mark.parametrize("seed", range(12))
async def test_converters_that_want_the_opposite_blame_each_other_and_never_the_store(seed: int) -> None:
    store = MemoryStore()
    async with opened(store, layout="log") as queue:
        for n in range(5):
            await queue.enqueue("work", b"%d" % n)
    rng = Random(seed)
    wishes = ["document", "log", "document", "log"]

    for _ in range(3):
        ends = await asyncio.gather(
            *(convert(SlowStore(store, rng), layout) for layout in wishes), return_exceptions=True
        )
        assert [end for end in ends if not isinstance(end, Converted | CASConflictError)] == []
    await verify(store)
    assert len((await state_of(store)).jobs) == 5


class SlowStore:
    """Lets others go first now and then, by chance."""

    def __init__(self, store: MemoryStore, rng: Random) -> None:
        self._store = store
        self._rng = rng

    async def _wait(self) -> None:
        for _ in range(self._rng.randrange(20)):
            await yield_once()

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        await self._wait()
        return await self._store.get(key, unless=unless)

    async def create(self, key: str, body: bytes) -> Outcome:
        await self._wait()
        return await self._store.create(key, body)

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        await self._wait()
        return await self._store.replace(key, body, expected=expected)

    async def delete(self, key: str) -> None:
        await self._wait()
        await self._store.delete(key)

    async def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        await self._wait()
        async for key in self._store.list(prefix, after=after):
            yield key

    async def close(self) -> None: ...
