"""Who may write a log: many, one that is alone, or a leader; and what is collected behind them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest

from casque import LeadershipLostError, Queue, QueueLedError, StorageError
from casque.clock import Random
from casque.codec.head import Owner
from casque.codec.log import decode_head, encode_head
from casque.engine.committer import Committer
from casque.environment import Environment
from casque.journal.log import LogJournal, pace, snapshots
from casque.journal.log.contention import ALONE_COMMITS
from casque.journal.log.journal import HOLDS_MAX
from casque.journal.opening import open_journal
from casque.journal.port import Batch, Landed
from casque.service.requests import Enqueue
from casque.state import State
from casque.storage.memory import MemoryStore
from casque.storage.port import Outcome, Store, Stored
from casque.testing.clock import ManualClock, settle
from casque.testing.gated import GatedStore
from casque.types import JobSpec

SEEDS = count(100)


@asynccontextmanager
async def opened(store: Any, clock: ManualClock | None = None, **settings: Any) -> AsyncIterator[Queue[bytes]]:
    async with Queue.open(store, rng=Random(next(SEEDS)), clock=clock or ManualClock(), **settings) as queue:
        yield queue


async def head_of(store: MemoryStore) -> dict[str, Any]:
    read = await store.get("queue.json")
    assert isinstance(read, Stored)
    head: dict[str, Any] = json.loads(read.body)
    return head


async def positions(store: MemoryStore) -> list[int]:
    return [int(key.removeprefix("log/")) async for key in store.list("log/")]


async def fences(store: MemoryStore) -> list[int]:
    found = []
    for position in await positions(store):
        read = await store.get(f"log/{position:020d}")
        assert isinstance(read, Stored)
        if not json.loads(read.body)["events"]:
            found.append(position)
    return found


CLOCK = ManualClock()


def a_committer(store: Store) -> Committer:
    env = Environment(clock=CLOCK, rng=Random(next(SEEDS)))
    return Committer(partial(open_journal, store, env, layout="log"), env)


def one_more(decided: list[int], number: int, state: State, now_ms: int) -> None:
    decided.append(number)
    state.execute(Enqueue((JobSpec(f"job {number}", "send", b""),)), now_ms)


async def alone_for_long(store: Store) -> Committer:
    """One that is about to take the queue for itself."""
    committer = a_committer(store)
    for number in range(ALONE_COMMITS):
        await committer.commit(partial(one_more, [], number))
    return committer


class MeddledStore(GatedStore):
    """Somebody else of this process changes the head just before it is replaced, so many times."""

    meddle = 0

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        if self.meddle:
            self.meddle -= 1
            read = await self._store.get(key)
            assert isinstance(read, Stored)
            newer = decode_head(key, read.body)
            await self._store.replace(key, encode_head(newer.next("beside")), expected=read.etag)
        return await super().replace(key, body, expected=expected)


async def alone(queue: Queue[bytes]) -> None:
    """Long enough for the writer to take the queue for itself."""
    for _ in range(ALONE_COMMITS + 1):
        await queue.enqueue("send", b"1")


# --- One that is alone ---


async def test_a_writer_that_is_alone_takes_the_queue_and_then_makes_one_request_per_commit() -> None:
    memory = MemoryStore()
    store = GatedStore(memory)
    async with opened(store) as q:
        await alone(q)
        head = await head_of(memory)
        assert (head["mode"], head["epoch"]) == ("exclusive", 1)
        assert await fences(memory) == [ALONE_COMMITS + 1]
        before = store.requests.copy()
        for _ in range(10):
            await q.enqueue("send", b"1")
        assert store.requests - before == {"create": 10}


async def test_a_writer_that_is_alone_takes_the_queue_between_two_commits_and_decides_each_of_them_once() -> None:
    decided: list[int] = []
    store = MemoryStore()
    committer = a_committer(store)
    for number in range(ALONE_COMMITS + 3):
        await committer.commit(partial(one_more, decided, number))
        await committer.hold()
    assert decided == list(range(ALONE_COMMITS + 3))
    assert (await head_of(store))["mode"] == "exclusive"
    assert await fences(store) == [ALONE_COMMITS + 1]


async def test_work_beside_the_commits_that_changes_the_head_costs_a_second_try_and_no_loading() -> None:
    memory = MemoryStore()
    store = MeddledStore(memory)
    committer = await alone_for_long(store)
    known, store.meddle = committer.known, 1
    before = store.requests.copy()
    await committer.hold()
    assert committer.known is known
    assert (await head_of(memory))["mode"] == "exclusive"
    assert (store.requests - before)["list"] == 0
    await committer.commit(partial(one_more, [], 99))
    assert len(committer.state.jobs) == ALONE_COMMITS + 1


async def test_a_head_that_never_stands_still_leaves_the_queue_open_to_all() -> None:
    memory = MemoryStore()
    store = MeddledStore(memory)
    committer = await alone_for_long(store)
    known, store.meddle = committer.known, HOLDS_MAX
    await committer.hold()
    assert committer.known is known
    assert (await head_of(memory))["mode"] == "open"
    await committer.commit(partial(one_more, [], 99))
    assert len(committer.state.jobs) == ALONE_COMMITS + 1


async def test_a_store_that_fails_while_the_queue_is_taken_fails_no_call() -> None:
    store = GatedStore(MemoryStore())
    committer = await alone_for_long(store)
    store.fail = StorageError("slow down")
    holding = asyncio.create_task(committer.hold())
    while not holding.done():
        await CLOCK.advance(1)
    assert committer.known is None
    store.fail = None
    await committer.commit(partial(one_more, [], 99))
    assert len(committer.state.jobs) == ALONE_COMMITS + 1


async def test_whoever_comes_makes_the_queue_open_again_and_nobody_loses_anything() -> None:
    store = MemoryStore()
    async with opened(store) as first, opened(store) as second:
        await alone(first)
        await second.enqueue("send", b"second's")
        head = await head_of(store)
        assert (head["mode"], head["epoch"], head["owner"]) == ("open", 2, None)
        # The first does not know yet. Its next slot holds a fence.
        await first.enqueue("send", b"first's")
        assert len(await fences(store)) == 2
        payloads = [job.payload for job in await second.jobs()]
        assert payloads[-2:] == [b"second's", b"first's"]
        assert len(payloads) == ALONE_COMMITS + 3


async def test_those_who_only_look_leave_the_queue_to_its_holder() -> None:
    store = MemoryStore()
    async with opened(store) as first, opened(store) as second:
        await alone(first)
        assert len(await second.jobs()) == ALONE_COMMITS + 1
        assert await second.dequeue("other") == []
        assert (await head_of(store))["mode"] == "exclusive"


async def test_a_holder_that_died_keeps_nobody_waiting() -> None:
    store = MemoryStore()
    async with opened(store) as first:
        await alone(first)
    async with opened(store) as second:  # on a clock that stands still
        await second.enqueue("send", b"on it goes")
        assert len(await second.jobs()) == ALONE_COMMITS + 2


async def test_a_writer_that_was_alone_does_not_take_the_queue_from_a_broker_that_leads_since() -> None:
    store = MemoryStore()
    committer = await alone_for_long(store)
    assert await Broker(store, "a").lead()
    led = await head_of(store)

    await committer.hold()

    assert await head_of(store) == led
    assert led["mode"] == "led"


async def test_writers_that_take_turns_leave_each_other_alone() -> None:
    store = MemoryStore()
    async with opened(store) as first, opened(store) as second:
        for _ in range(3 * ALONE_COMMITS):
            await first.enqueue("send", b"1")
            await second.enqueue("send", b"2")
        assert (await head_of(store))["mode"] == "open"
        assert await fences(store) == []


# --- A leader ---


class Broker:
    """The least that leads: a journal, its state, and batches by number."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        self.journal = LogJournal(store, Environment(clock=ManualClock(), rng=Random(next(SEEDS))))
        self.state = State()
        self._name = name
        self._numbers = count(1)

    def batch(self) -> Batch:
        return Batch(self._name, next(self._numbers), 1_700_000_000_000)

    async def lead(self) -> bool:
        self.state = await self.journal.load()
        owner = Owner(self._name, f"nonce of {self._name}", f"{self._name}:7700")
        led = await self.journal.lead(self.state, owner, self.batch(), lease_ms=8_000, seen=None)
        if led is not None:
            self.state = led.state
        return led is not None

    async def beat(self) -> None:
        await self.journal.beat(self.state, self.batch())

    async def resign(self) -> None:
        await self.journal.resign(self.state, self.batch())

    async def enqueue(self, job_id: str) -> None:
        self.state.execute(Enqueue((JobSpec(job_id, "send", b""),)), 1_700_000_000_000)
        assert isinstance(await self.journal.append(self.state, self.batch()), Landed)


@pytest.fixture
async def store() -> MemoryStore:
    """A queue that somebody has used in open mode."""
    memory = MemoryStore()
    async with opened(memory) as q:
        await q.enqueue("send", b"1")
    return memory


async def test_a_leader_claims_the_head_and_puts_a_fence(store: MemoryStore) -> None:
    a = Broker(store, "a")
    assert await a.lead()
    head = await head_of(store)
    assert (head["mode"], head["epoch"], head["owner"]["address"]) == ("led", 1, "a:7700")
    assert await fences(store) == [2]
    await a.enqueue("job")
    assert await positions(store) == [1, 2, 3]


async def test_a_leader_may_be_the_first_of_all() -> None:
    store = MemoryStore()
    a = Broker(store, "a")
    assert await a.lead()
    await a.enqueue("job")
    assert (await positions(store), await fences(store)) == ([1, 2], [1])


async def test_embedded_writers_are_told_who_leads_and_readers_go_on(store: MemoryStore) -> None:
    a = Broker(store, "a")
    async with opened(store) as q:
        assert await a.lead()
        with pytest.raises(QueueLedError, match="a:7700") as led:
            await q.enqueue("send", b"2")
        assert led.value.address == "a:7700"
        assert len(await q.jobs()) == 1


async def test_a_deposed_leader_loses_its_next_slot_and_steps_down(store: MemoryStore) -> None:
    a, b = Broker(store, "a"), Broker(store, "b")
    assert await a.lead()
    await a.enqueue("by-a")
    assert await b.lead()
    with pytest.raises(LeadershipLostError):
        await a.enqueue("too-late")
    await b.enqueue("by-b")
    async with opened(store) as q:
        ids = {job.id for job in await q.jobs()}
    assert {"by-a", "by-b"} <= ids
    assert "too-late" not in ids


async def test_a_leader_notices_by_its_own_heartbeat_that_it_was_deposed(store: MemoryStore) -> None:
    a, b = Broker(store, "a"), Broker(store, "b")
    assert await a.lead()
    version = (await head_of(store))["version"]
    await a.beat()
    assert (await head_of(store))["version"] == version + 1
    assert await b.lead()
    with pytest.raises(LeadershipLostError, match="b:7700"):
        await a.beat()


async def test_a_leader_that_resigns_leaves_no_owner(store: MemoryStore) -> None:
    a = Broker(store, "a")
    assert await a.lead()
    await a.resign()
    head = await head_of(store)
    assert (head["mode"], head["epoch"], head["owner"]) == ("open", 2, None)


# --- Collection ---


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot every few commits, in parts."""
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 5)
    monkeypatch.setattr(snapshots, "PART_BYTES", 500)


@pytest.mark.usefixtures("hurried")
async def test_what_the_retention_no_longer_covers_is_collected_but_never_a_fence() -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, clock, retention=timedelta(minutes=1)) as q:
        for n in range(60):
            await q.enqueue("send", b"%d" % n)
            await settle()
            await clock.advance(5)
        head = await head_of(store)
        kept = [ref["position"] for ref in head["kept"]]
        left = await positions(store)
        fence = await fences(store)
    assert head["floor"] == kept[0] > 30
    assert fence
    assert fence[0] < head["floor"]
    assert left == fence + [p for p in range(head["floor"] + 1, left[-1] + 1) if p not in fence]
    named = {ref["key"] for ref in (*head["kept"], head["snapshot"])}
    assert {key.partition(".")[0] async for key in store.list("snapshots/")} == named
    async with opened(store) as q:
        assert [job.payload for job in await q.jobs()] == [b"%d" % n for n in range(60)]


@pytest.mark.usefixtures("hurried")
async def test_within_the_retention_nothing_is_collected() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        for n in range(40):
            await q.enqueue("send", b"%d" % n)
            await settle()
        head = await head_of(store)
    assert head["floor"] == 0
    assert len(head["kept"]) >= 3
    assert await positions(store) == list(range(1, 42))


@pytest.mark.usefixtures("hurried")
async def test_many_snapshots_are_thinned_out_and_the_oldest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "KEPT_MAX", 4)
    store = MemoryStore()
    async with opened(store) as q:
        for n in range(80):
            await q.enqueue("send", b"%d" % n)
            await settle()
        first = (await head_of(store))["kept"][0]
        for n in range(40):
            await q.enqueue("send", b"%d" % n)
            await settle()
    head = await head_of(store)
    assert len(head["kept"]) <= 4
    assert head["kept"][0] == first
    assert {key.partition(".")[0] async for key in store.list("snapshots/")} == {
        ref["key"] for ref in (*head["kept"], head["snapshot"])
    }
