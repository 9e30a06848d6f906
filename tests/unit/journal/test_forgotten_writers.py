"""Writers that sleep over the answer to a commit until the queue has forgotten them."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from casque import DirectQueue, Queue, UnknownOutcomeError
from casque.clock import Random
from casque.codec.document import DocumentCodec
from casque.codec.head import KEY
from casque.codec.log import SnapshotRef, Tip, View, digest
from casque.codec.snapshot import decode_snapshot, encode_jobs, encode_snapshot
from casque.environment import Environment
from casque.journal.convert import Converter
from casque.journal.log import pace
from casque.service.requests import Enqueue
from casque.state import Limits, State
from casque.storage.memory import MemoryStore
from casque.storage.port import Outcome, Stored, Unknown, Won
from casque.testing.clock import ManualClock, settle
from casque.testing.gated import GatedStore
from casque.types import JobSpec

SEEDS = count(1)
REMEMBERED = Limits().writers_max
SETTINGS: dict[str, Any] = {"retention": timedelta(milliseconds=1), "storage_patience": timedelta(days=1)}


class Sleeper(GatedStore):
    """The store of a process whose next commit arrives and whose answer it sleeps over."""

    def __init__(self, store: MemoryStore, *, lands: bool = True, answered: bool = True) -> None:
        super().__init__(store)
        self.asleep = asyncio.Event()
        self.awake = asyncio.Event()
        self._lands = lands
        self._answered = answered
        self.sleepy = False

    async def create(self, key: str, body: bytes) -> Outcome:
        if key == KEY and not self.sleepy:
            return await super().create(key, body)
        return await self._sleep(key, body, None)

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        return await self._sleep(key, body, expected)

    async def _sleep(self, key: str, body: bytes, expected: str | None) -> Outcome:
        async def write() -> Outcome:
            if expected is None:
                return await self._store.create(key, body)
            return await self._store.replace(key, body, expected=expected)

        if not self.sleepy:
            return await write()
        self.sleepy = False
        outcome: Outcome = await write() if self._lands else Unknown(TimeoutError("no answer"))
        assert isinstance(outcome, (Won, Unknown))
        self.asleep.set()
        await self.awake.wait()
        return outcome if self._answered and key != KEY else Unknown(TimeoutError("no answer"))


def direct(store: Any, layout: str, clock: ManualClock) -> DirectQueue:
    return DirectQueue(store, layout=layout, clock=clock, rng=Random(next(SEEDS)), **SETTINGS)


async def others(store: MemoryStore, layout: str, clock: ManualClock, processes: int) -> None:
    """Short-lived processes, each of which finishes what is there and leaves a job of its own."""
    for n in range(processes):
        q = direct(store, layout, clock)
        await q.enqueue("other", b"%d" % n)
        for job in await q.dequeue("send"):
            await q.ack(job.id)
        await settle()
        await clock.advance(1)


async def payloads(store: MemoryStore, layout: str, clock: ManualClock) -> list[bytes]:
    return [job.payload for job in (await direct(store, layout, clock).read_state()).jobs]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 5)


async def floor(store: MemoryStore) -> int:
    read = await store.get(KEY)
    assert isinstance(read, Stored)
    return int(json.loads(read.body).get("floor", 0))


@pytest.mark.parametrize("layout", ["log", "document"])
@pytest.mark.parametrize("earlier", [0, 1], ids=["first batch", "second batch"])
async def test_a_batch_that_the_queue_has_forgotten_is_unknown_and_not_done_again(layout: str, earlier: int) -> None:
    store, clock = MemoryStore(), ManualClock()
    await direct(store, layout, clock).enqueue("first", b"")
    line = Sleeper(store)
    sleeper = direct(line, layout, clock)
    for _ in range(earlier):
        await sleeper.enqueue("first", b"")
    line.sleepy = True
    call = asyncio.create_task(sleeper.enqueue("send", b"slept over"))
    await line.asleep.wait()

    await others(store, layout, clock, REMEMBERED + 1)
    assert layout == "document" or await floor(store) > 2 + earlier
    line.awake.set()
    with pytest.raises(UnknownOutcomeError):
        await call_ended(call, clock)

    assert b"slept over" not in await payloads(store, layout, clock), "another worker has finished it"
    await sleeper.enqueue("send", b"next")
    assert (await payloads(store, layout, clock)).count(b"next") == 1


async def test_a_batch_that_landed_and_is_remembered_is_answered() -> None:
    store, clock = MemoryStore(), ManualClock()
    await direct(store, "log", clock).enqueue("first", b"")
    line = Sleeper(store)
    sleeper = direct(line, "log", clock)
    line.sleepy = True
    call = asyncio.create_task(sleeper.enqueue("send", b"slept over"))
    await line.asleep.wait()

    await others(store, "log", clock, 20)
    assert await floor(store) > 2
    line.awake.set()
    job = await call_ended(call, clock)

    assert job.payload == b"slept over"
    assert b"slept over" not in await payloads(store, "log", clock)


@pytest.mark.parametrize("layout", ["log", "document"])
async def test_a_batch_that_surely_did_not_land_is_done_now(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    await direct(store, layout, clock).enqueue("first", b"")
    line = Sleeper(store, lands=False)
    sleeper = direct(line, layout, clock)
    line.sleepy = True
    call = asyncio.create_task(sleeper.enqueue("send", b"slept over"))
    await line.asleep.wait()

    await others(store, layout, clock, 20)
    line.awake.set()
    job = await call_ended(call, clock)

    assert job.payload == b"slept over"
    assert (await payloads(store, layout, clock)).count(b"slept over") == 1


async def test_a_holder_that_slept_over_its_answer_is_told_that_it_is_unknown() -> None:
    """It had the queue for itself; a dead process's late write stands in the slot that was collected."""
    store, clock = MemoryStore(), ManualClock()
    line = Sleeper(store, answered=False)
    async with Queue.open(line, layout="log", clock=clock, rng=Random(next(SEEDS)), **SETTINGS) as q:
        for n in range(40):
            await q.enqueue("first", b"%d" % n)
            await settle()
        read = await store.get(KEY)
        assert isinstance(read, Stored)
        assert json.loads(read.body)["mode"] == "exclusive"
        line.sleepy = True
        call = asyncio.create_task(q.enqueue("send", b"slept over"))
        await line.asleep.wait()
        slot = max([key async for key in store.list("log/")])

        await others(store, "log", clock, REMEMBERED + 1)
        assert isinstance(await store.create(slot, b"late"), Won), "it was collected"
        line.awake.set()
        with pytest.raises(UnknownOutcomeError):
            await call_ended(call, clock)
    assert b"slept over" not in await payloads(store, "log", clock)


async def call_ended(call: asyncio.Task[Any], clock: ManualClock) -> Any:
    while not call.done():
        await clock.advance(1)
    return await call


# --- What is stored ---


def crowded(writers: int) -> State:
    state = State(Limits())
    for n in range(writers):
        state.execute(Enqueue((JobSpec(f"j{n}", "send", b""),)), now_ms=1)
        state.commit(writer=f"w{n}", batch=1, at_ms=1)
    return state


def snapshot_of(state: State) -> bytes:
    return encode_snapshot("q", View.of(state, Tip()), list(encode_jobs(state.jobs.values())))


def from_snapshot(body: bytes, position: int) -> State:
    ref = SnapshotRef(position, "snapshots/1", digest(body), len(body))
    return decode_snapshot(ref, body, queue_id="q", limits=Limits())[0]


def test_a_missing_writer_is_absent_above_what_was_forgotten_and_unknown_below() -> None:
    state = crowded(REMEMBERED + 3)
    assert state.writers_forgotten == 3
    assert state.fate("w2", 1, tried=3) is None
    assert state.fate("w2", 2, tried=4) is False
    assert state.fate("w3", 1, tried=4) is True
    assert state.fate("w3", 2, tried=5) is False
    assert crowded(REMEMBERED).fate("nobody", 1, tried=1) is False


def test_snapshots_and_documents_keep_what_was_forgotten() -> None:
    state = crowded(REMEMBERED + 3)
    assert from_snapshot(snapshot_of(state), state.position).writers_forgotten == 3
    codec = DocumentCodec(KEY, "q")
    codec.touch(state.jobs)
    body = codec.encode(state, version=state.position, writers=state.writers)
    assert DocumentCodec(KEY, "").decode(body, Limits()).writers_forgotten == 3


@pytest.mark.parametrize(("writers", "forgotten"), [(REMEMBERED - 1, 0), (REMEMBERED + 3, 3)])
def test_a_full_table_of_an_older_release_counts_as_having_forgotten(writers: int, forgotten: int) -> None:
    state = crowded(writers)
    body = b"".join(line for line in snapshot_of(state).splitlines(keepends=True) if b"writers_forgotten" not in line)
    assert from_snapshot(body, state.position).writers_forgotten == forgotten
    codec = DocumentCodec(KEY, "q")
    codec.touch(state.jobs)
    whole = codec.encode(state, version=state.position, writers=state.writers)
    older = b"".join(line for line in whole.splitlines(keepends=True) if b"writers_forgotten" not in line)
    assert DocumentCodec(KEY, "").decode(older, Limits()).writers_forgotten == forgotten


async def test_a_conversion_keeps_what_was_forgotten() -> None:
    store, clock = MemoryStore(), ManualClock()
    await others(store, "log", clock, REMEMBERED + 5)
    converter = Converter(store, Environment(clock=clock, rng=Random(1)), say=lambda _: None)
    await converter.convert("document")
    read = await store.get(KEY)
    assert isinstance(read, Stored)
    forgotten = json.loads(read.body)["writers_forgotten"]
    assert forgotten > 0
    await converter.convert("log")
    [key] = [key async for key in store.list("snapshots/")]
    read = await store.get(key)
    assert isinstance(read, Stored)
    assert json.loads(read.body)["writers_forgotten"] == forgotten


def test_what_jqueue_dropped_counts_as_forgotten_once_casque_writes_again() -> None:
    codec = DocumentCodec(KEY, "q")
    state = codec.decode(b'{"version": 7, "jobs": []}', Limits())
    writers, forgotten = state.writers_with("w", 1)
    body = codec.encode(state, version=8, writers=writers, writers_forgotten=forgotten)
    assert DocumentCodec(KEY, "").decode(body, Limits()).writers_forgotten == 7
