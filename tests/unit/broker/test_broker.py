"""Brokers among themselves: who leads, who takes over and when, and what callers of the others are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Any, Unpack

import pytest

from casque import LeadershipLostError, NoLeaderError, Queue, QueueLedError, StorageError
from casque.broker.broker import Broker
from casque.broker.election import AlreadyLeader, Conflict, Elected, Election, OtherLeader
from casque.client.opening import Parts
from casque.client.queue import DEFAULTS
from casque.clock import Random
from casque.codec.log import decode_head, encode_head
from casque.engine.embedded import EmbeddedService
from casque.engine.group import GroupCommit
from casque.environment import Environment
from casque.errors import InvalidInputError
from casque.journal.discovery import find_leader
from casque.service import Role
from casque.settings import BrokerSettings, SettingsChanges
from casque.storage.memory import MemoryStore
from casque.storage.port import Missing, Read, Stored
from casque.testing.clock import ManualClock, settle
from casque.testing.gated import GatedStore
from casque.types import JobSpec

SEEDS = count(500)
SETTINGS = BrokerSettings()
LAYOUTS = pytest.mark.parametrize("layout", ["log", "document"])


def broker(
    store: Any, clock: ManualClock, address: str, layout: str = "log", **settings: Unpack[SettingsChanges]
) -> Broker:
    rng = Random(next(SEEDS))
    parts = Parts(store, DEFAULTS.with_changes(settings), layout=layout, clock=clock, rng=rng)
    return Broker(parts.committer(), parts, parts.history(), address=address, settings=SETTINGS)


@asynccontextmanager
async def running(*brokers: Broker) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = []
    for one in brokers:
        tasks.append(asyncio.create_task(one.run()))
        await one.settled()
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        clock = brokers[0]._clock
        assert isinstance(clock, ManualClock)
        await outcome(clock, asyncio.gather(*tasks, return_exceptions=True), 200)


async def passes(clock: ManualClock, seconds: float) -> None:
    for _ in range(round(seconds * 10)):
        await clock.advance(0.1)


async def outcome(clock: ManualClock, call: Any, seconds: float = 60) -> Any:
    """What comes of a call while time passes."""
    task = asyncio.ensure_future(call)
    for _ in range(round(seconds * 10)):
        if task.done():
            break
        await clock.advance(0.1)
    return await task


def kill(store: GatedStore) -> None:
    """Whoever uses this store reaches nothing any more, as if it were dead."""
    store.fail = StorageError("cut off")


async def head_of(store: MemoryStore) -> dict[str, Any]:
    read = await store.get("queue.json")
    assert isinstance(read, Stored)
    head: dict[str, Any] = json.loads(read.body)
    return head


def job(name: str) -> JobSpec:
    return JobSpec(name, "send", b"")


# --- Elections ---


def candidate(store: Any, clock: ManualClock, address: str, layout: str = "log") -> Election:
    rng = Random(next(SEEDS))
    settings = DEFAULTS.with_changes({"storage_patience": timedelta(seconds=1)})
    parts = Parts(store, settings, layout=layout, clock=clock, rng=rng)
    return Election(parts.committer(), parts, name=f"id of {address}", address=address, settings=SETTINGS)


@LAYOUTS
async def test_every_outcome_of_an_election(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    a, b = candidate(store, clock, "a:1", layout), candidate(store, clock, "b:1", layout)
    assert await a.try_elect() == Elected(epoch=1)
    assert await a.try_elect() == AlreadyLeader()
    other = await b.try_elect()
    assert isinstance(other, OtherLeader)
    assert (other.leader.address, other.leader.id) == ("a:1", "id of a:1")


@LAYOUTS
async def test_of_two_who_try_at_once_one_is_elected_and_the_other_told_of_the_conflict(layout: str) -> None:
    store = GatedStore(MemoryStore())
    clock = ManualClock()
    a, b = candidate(store, clock, "a:1", layout), candidate(store, clock, "b:1", layout)
    async with Queue.open(store, layout=layout, clock=clock, rng=Random(1)) as q:
        await q.enqueue("send", b"")
    store.shut()
    trying = asyncio.gather(a.try_elect(), b.try_elect())
    await settle()
    store.open()
    results = await trying
    assert sorted(type(result).__name__ for result in results) == ["Conflict", "Elected"]
    loser = b if isinstance(results[1], Conflict) else a
    assert isinstance(await loser.try_elect(), OtherLeader)


@LAYOUTS
async def test_a_silent_leader_is_followed_after_a_lease_and_not_before(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    a, b = candidate(store, clock, "a:1", layout), candidate(store, clock, "b:1", layout)
    await a.try_elect()
    assert isinstance(await b.try_elect(), OtherLeader)
    await clock.advance(7.9)
    assert isinstance(await b.try_elect(), OtherLeader)
    await clock.advance(0.1)
    assert await b.try_elect() == Elected(epoch=2)


@LAYOUTS
async def test_what_a_leader_writes_about_its_time_is_not_believed(layout: str) -> None:
    store = MemoryStore()
    past, now = ManualClock(wall_ms=1_000), ManualClock()
    await candidate(store, past, "a:1", layout).try_elect()
    b = candidate(store, now, "b:1", layout)
    assert isinstance(await b.try_elect(), OtherLeader)
    await now.advance(7)
    assert isinstance(await b.try_elect(), OtherLeader)


async def test_who_sees_nothing_has_not_seen_that_nothing_changes() -> None:
    memory, clock = MemoryStore(), ManualClock()
    store = GatedStore(memory)
    a, b = candidate(memory, clock, "a:1"), candidate(store, clock, "b:1")
    await a.try_elect()
    await b.try_elect()
    await clock.advance(7)
    store.fail = StorageError("no answer")
    blind = asyncio.create_task(b.try_elect())
    await passes(clock, 4)
    with pytest.raises(StorageError):
        await blind
    store.fail = None
    assert isinstance(await b.try_elect(), OtherLeader)


@LAYOUTS
async def test_how_long_a_slow_store_took_to_answer_is_no_silence_of_the_leader(layout: str) -> None:
    store, clock = SlowStore(MemoryStore()), ManualClock()
    a, b = candidate(store, clock, "a:1", layout), candidate(store, clock, "b:1", layout)
    await a.try_elect()
    await b.try_elect()
    await clock.advance(7)
    store.after_a_read = lambda: clock.advance(2)
    assert isinstance(await b.try_elect(), OtherLeader)
    store.after_a_read = None
    assert await b.try_elect() == Elected(epoch=2)


class SlowStore(GatedStore):
    """Time passes between what a read finds and its answer."""

    after_a_read: Callable[[], Awaitable[object]] | None = None

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        found = await super().get(key, unless=unless)
        if self.after_a_read is not None:
            await self.after_a_read()
        return found


# --- Lives ---


@LAYOUTS
async def test_the_first_leads_and_the_others_stand_by_and_send_callers_to_it(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    a, b = broker(store, clock, "a:1", layout), broker(store, clock, "b:1", layout)
    async with running(a, b):
        assert (a.standing().role, b.standing().role) == (Role.LEADER, Role.STANDBY)
        await a.service().enqueue([job("1")])
        with pytest.raises(QueueLedError) as led:
            b.service()
        assert led.value.address == "a:1"
        assert await find_leader(store) == "a:1"


@LAYOUTS
async def test_a_leader_with_nothing_to_do_shows_that_it_lives_and_is_not_deposed(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    a, b = broker(store, clock, "a:1", layout), broker(store, clock, "b:1", layout)
    async with running(a, b):
        before = (await head_of(store))["version"]
        await passes(clock, 60)
        assert (a.standing().role, b.standing().role, a.standing().epoch) == (Role.LEADER, Role.STANDBY, 1)
        assert 25 <= (await head_of(store))["version"] - before <= 31


async def test_commits_are_signs_of_life_enough() -> None:
    store, clock = MemoryStore(), ManualClock()
    a, b = broker(store, clock, "a:1"), broker(store, clock, "b:1")
    async with running(a, b):
        before = (await head_of(store))["version"]
        for n in range(30):
            await a.service().enqueue([job(str(n))])
            await passes(clock, 1)
        assert (await head_of(store))["version"] == before
        assert b.standing().role is Role.STANDBY


@LAYOUTS
async def test_when_a_leader_dies_another_takes_over_within_a_lease_and_two_seconds(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    way_of_a = GatedStore(store)
    a, b = broker(way_of_a, clock, "a:1", layout), broker(store, clock, "b:1", layout)
    async with running(a, b):
        await a.service().enqueue([job("1")], request_id="r1")
        kill(way_of_a)
        await passes(clock, 10)
        assert b.standing().role is Role.LEADER
        [again] = await b.service().enqueue([job("2")], request_id="r1")
        assert again.id == "1"


@LAYOUTS
async def test_when_a_leader_resigns_another_takes_over_within_one_poll(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    a, b = broker(store, clock, "a:1", layout), broker(store, clock, "b:1", layout)
    async with running(a, b) as (life_of_a, _):
        a.stop()
        await settle()
        assert life_of_a.done()
        with pytest.raises(NoLeaderError, match="stopping"):
            a.service()
        await passes(clock, 0.5)
        assert b.standing().role is Role.LEADER


@LAYOUTS
async def test_an_embedded_queue_may_write_again_after_the_last_broker_has_resigned(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    a = broker(store, clock, "a:1", layout)
    async with running(a) as (life,):
        await a.service().enqueue([job("1")])
        async with Queue.open(store, clock=clock, rng=Random(1)) as q:
            with pytest.raises(QueueLedError):
                await q.enqueue("send", b"")
        a.stop()
        await life
    async with Queue.open(store, clock=clock, rng=Random(2)) as q:
        await q.enqueue("send", b"")
        assert len(await q.jobs()) == 2


@LAYOUTS
async def test_a_broker_takes_the_lead_of_a_queue_that_embedded_writers_have_used(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    async with Queue.open(store, layout=layout, clock=clock, rng=Random(1)) as q:
        for _ in range(20):
            await q.enqueue("send", b"")
        a = broker(store, clock, "a:1")
        async with running(a):
            assert (await a.service().stats()).totals.ready == 20
            with pytest.raises(QueueLedError):
                await q.enqueue("send", b"")


@LAYOUTS
async def test_a_deposed_leader_tells_its_callers_and_stands_by_again(layout: str) -> None:
    memory, clock = MemoryStore(), ManualClock()
    store = GatedStore(memory)
    a, b = broker(store, clock, "a:1", layout), broker(memory, clock, "b:1", layout)
    async with running(a, b):
        service = a.service()
        kill(store)
        await passes(clock, 10)
        assert b.standing().role is Role.LEADER
        store.fail = None
        with pytest.raises((LeadershipLostError, QueueLedError)):
            await outcome(clock, service.enqueue([job("late")]))
        await passes(clock, 2)
        assert (a.standing().role, a.standing().leader) == (Role.STANDBY, "b:1")
        assert await b.service().find("late") is None
        await passes(clock, 60)
        assert (b.standing().role, b.standing().epoch) == (Role.LEADER, 2)


@LAYOUTS
async def test_a_leader_whose_sign_of_life_is_refused_does_not_trust_its_memory(layout: str) -> None:
    memory, clock = MemoryStore(), ManualClock()
    store = GatedStore(memory)
    old, new = candidate(store, clock, "a:1", layout), candidate(memory, clock, "b:1", layout)
    await old.try_elect()
    await new.try_elect()
    await clock.advance(SETTINGS.lease.total_seconds())
    store.shut()
    beat = asyncio.create_task(old._committer.beat())  # it has read that it leads, and its write is on the way
    await store.arrived.wait()
    assert isinstance(await new.try_elect(), Elected)
    store.open()
    with pytest.raises(LeadershipLostError):
        await beat
    assert not old._committer.sole
    assert not old._committer.leads


@LAYOUTS
async def test_a_look_at_the_head_does_not_let_a_leader_trust_its_memory(layout: str) -> None:
    memory, clock = MemoryStore(), ManualClock()
    old, new = candidate(memory, clock, "a:1", layout), candidate(memory, clock, "b:1", layout)
    await old.try_elect()
    await new.try_elect()
    await clock.advance(SETTINGS.lease.total_seconds())
    await old._committer.refresh()  # for a read, which is current
    assert isinstance(await new.try_elect(), Elected)
    assert not old._committer.sole


async def test_a_sign_of_life_that_meets_the_leaders_own_upkeep_counts() -> None:
    memory, clock = MemoryStore(), ManualClock()
    store = GatedStore(memory)
    leader = candidate(store, clock, "a:1")
    await leader.try_elect()
    await clock.advance(SETTINGS.lease.total_seconds())
    assert not leader._committer.sole
    store.shut()
    beat = asyncio.create_task(leader._committer.beat())
    await store.arrived.wait()
    read = await memory.get("queue.json")
    assert isinstance(read, Stored)
    upkeep = encode_head(decode_head("queue.json", read.body).next("upkeep"))
    await memory.replace("queue.json", upkeep, expected=read.etag)
    store.open()
    await beat
    assert leader._committer.sole


async def test_a_leader_that_committed_while_it_was_deposed_is_given_time_to_forget() -> None:
    memory, clock = MemoryStore(), ManualClock()
    store = GatedStore(memory)
    a, b = broker(memory, clock, "a:1"), broker(store, clock, "b:1")
    a._beat_s = 3600.0  # it is silent, and wakes up for a call
    async with running(a, b):
        store.shut()
        while not store.arrived.is_set():
            await clock.advance(0.1)  # until the standby has been patient for a lease and claims the head
        await outcome(clock, a.service().enqueue([job("1")]))
        trusting = [a._committer.sole]
        store.open()
        while b.standing().role is not Role.LEADER:
            await clock.advance(0.1)
        trusting.append(a._committer.sole)
        assert trusting == [True, False], "its successor answers while it trusts its memory"
        assert await outcome(clock, b.service().find("1")) is not None


@LAYOUTS
async def test_who_loses_the_lead_with_a_commit_has_no_sign_of_life_to_give(layout: str) -> None:
    memory, clock = MemoryStore(), ManualClock()
    old, new = candidate(memory, clock, "a:1", layout), candidate(memory, clock, "b:1", layout)
    await old.try_elect()
    await new.try_elect()
    await clock.advance(SETTINGS.lease.total_seconds())
    assert isinstance(await new.try_elect(), Elected)
    seen = await head_of(memory)
    group = GroupCommit(old._committer, Environment(DEFAULTS, clock, Random(1)))
    await group.start()
    service = EmbeddedService(group, DEFAULTS)
    # Both are to be done when the deposed leader wakes up: the commit comes first, and ends its lead.
    late = asyncio.ensure_future(service.enqueue([job("late")]))
    for told in await asyncio.gather(late, group.beat(), return_exceptions=True):
        assert isinstance(told, LeadershipLostError), told
    with pytest.raises(QueueLedError):
        await service.enqueue([job("later")])
    with pytest.raises(LeadershipLostError):
        await group.beat()
    assert await head_of(memory) == seen, "the head is not its own to touch"
    await outcome(clock, group.stop())


async def test_a_store_that_fails_for_a_while_is_no_reason_to_leave() -> None:
    memory, clock = MemoryStore(), ManualClock()
    store = GatedStore(memory)
    a = broker(store, clock, "a:1", storage_patience=timedelta(seconds=3))
    async with running(a):
        store.fail = StorageError("full")
        call = asyncio.create_task(a.service().enqueue([job("1")]))
        with pytest.raises(StorageError, match="was not written"):
            await outcome(clock, call)
        await passes(clock, 12)
        assert a.standing().problem is not None
        store.fail = None
        await passes(clock, 12)
        standing = a.standing()
        assert (standing.role, standing.epoch, standing.problem) == (Role.LEADER, 1, None)
        await a.service().enqueue([job("2")])


async def test_waiting_consumers_cost_nothing_beyond_the_heartbeat() -> None:
    store, clock = GatedStore(MemoryStore()), ManualClock()
    a = broker(store, clock, "a:1")
    async with running(a):
        claim: dict[str, Any] = {"entrypoints": ("send",), "limit": 1, "wait_s": 300.0}
        consumers = [asyncio.create_task(a.service().dequeue(**claim)) for _ in range(50)]
        await passes(clock, 5)
        before = store.requests.copy()
        await passes(clock, 60)
        assert set(store.requests - before) == {"get", "replace"}
        assert sum((store.requests - before).values()) <= 62
        await a.service().enqueue([job("1")])
        done, _ = await asyncio.wait(consumers, return_when=asyncio.FIRST_COMPLETED)
        assert [one.id for one in done.pop().result()] == ["1"]
        for consumer in consumers:
            consumer.cancel()


async def test_a_new_leader_gives_every_running_lease_its_full_length_again() -> None:
    store, clock = MemoryStore(), ManualClock()
    way_of_a = GatedStore(store)
    a, b = broker(way_of_a, clock, "a:1"), broker(store, clock, "b:1")
    async with running(a, b):
        await a.service().enqueue([job("1")])
        await a.service().dequeue(entrypoints=None, limit=1, lease_ms=20_000)
        await passes(clock, 15)
        kill(way_of_a)
        await passes(clock, 10)
        assert b.standing().role is Role.LEADER
        await passes(clock, 15)
        assert (await b.service().stats()).totals.running == 1
        await passes(clock, 8)
        assert (await b.service().stats()).totals.ready == 1


async def test_a_new_leader_gives_every_leased_zone_its_full_length_again() -> None:
    store, clock = MemoryStore(), ManualClock()
    way_of_a = GatedStore(store)
    a, b = broker(way_of_a, clock, "a:1"), broker(store, clock, "b:1")
    async with running(a, b):
        await a.service().enqueue([JobSpec("1", "task", b"", zone="acme")])
        lease = await a.service().lease_zone("acme", lease_ms=20_000)
        assert lease is not None
        await passes(clock, 15)
        kill(way_of_a)
        await passes(clock, 10)
        assert b.standing().role is Role.LEADER
        await passes(clock, 15)
        assert await b.service().lease_zone("acme") is None
        [standing] = await b.service().zones()
        assert standing.lease == lease
        await passes(clock, 8)
        again = await b.service().lease_zone("acme")
        assert again is not None
        assert again.token > lease.token


async def test_time_in_which_the_leader_stood_still_does_not_count_against_workers() -> None:
    store, clock = MemoryStore(), ManualClock()
    a = broker(store, clock, "a:1")
    async with running(a):
        await a.service().enqueue([job("1")])
        await a.service().dequeue(entrypoints=None, limit=1, lease_ms=5_000)
        clock._move_to(clock._monotonic_ms + 60_000)  # as by SIGSTOP: no timer fires
        await passes(clock, 3)
        assert (await a.service().stats()).totals.running == 1
        await passes(clock, 3)
        assert (await a.service().stats()).totals.ready == 1
        events = [event.kind.value async for event in a.service().events(from_position=0, follow=False)]
        assert events.count("expired") == 1


async def test_another_broker_that_lives_under_the_same_address_is_reported() -> None:
    store, clock = MemoryStore(), ManualClock()
    a, b = broker(store, clock, "same:1"), broker(store, clock, "same:1")
    async with running(a, b):
        await passes(clock, 5)
        assert (a.standing().role, b.standing().role) == (Role.LEADER, Role.STANDBY)
        assert "advertises same:1 too" in str(b.standing().problem)


async def test_a_broker_that_is_started_again_under_its_address_waits_out_its_own_lease() -> None:
    store, clock = MemoryStore(), ManualClock()
    way = GatedStore(store)
    a = broker(way, clock, "same:1")
    async with running(a):
        kill(way)
        again = broker(store, clock, "same:1")
        async with running(again):
            assert again.standing().role is Role.STANDBY
            await passes(clock, 9)
            assert (again.standing().role, again.standing().problem) == (Role.LEADER, None)


async def test_garbage_in_the_place_of_the_head_is_waited_out_by_those_who_run() -> None:
    store, clock = MemoryStore(), ManualClock()
    a, b = broker(store, clock, "a:1"), broker(store, clock, "b:1")
    async with running(a, b):
        read = await store.get("queue.json")
        assert isinstance(read, Stored)
        await store.delete("queue.json")
        await store.create("queue.json", b"garbage")
        await passes(clock, 3)
        assert "not a queue" in str(b.standing().problem) or "cannot be read" in str(b.standing().problem)
        await store.delete("queue.json")
        await store.create("queue.json", read.body)
        await passes(clock, 12)
        roles = {a.standing().role, b.standing().role}
        assert roles == {Role.LEADER, Role.STANDBY}


async def test_there_is_no_leader_to_find_where_there_is_no_queue() -> None:
    store = MemoryStore()
    assert isinstance(await store.get("queue.json"), Missing)
    assert await find_leader(store) is None


def test_a_lease_that_is_shorter_than_two_heartbeats_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="twice the heartbeat"):
        BrokerSettings(heartbeat=timedelta(seconds=5), lease=timedelta(seconds=8))
    with pytest.raises(InvalidInputError, match="poll"):
        BrokerSettings(poll=timedelta(0))


async def test_a_broker_that_leads_for_the_second_time_watches_the_leases_that_it_finds() -> None:
    store, clock = MemoryStore(), ManualClock()
    way_of_a, way_of_b = GatedStore(store), GatedStore(store)
    a, b = broker(way_of_a, clock, "a:1"), broker(way_of_b, clock, "b:1")
    async with running(a, b):
        service = a.service()
        await service.enqueue([job("1")])
        kill(way_of_a)
        look = asyncio.ensure_future(service.stats())
        await passes(clock, 10)
        assert b.standing().role is Role.LEADER
        await b.service().dequeue(entrypoints=None, limit=1, lease_ms=20_000)
        way_of_a.fail = None
        await outcome(clock, asyncio.gather(look, return_exceptions=True))
        await passes(clock, 2)
        kill(way_of_b)
        await passes(clock, 10)
        assert a.standing().role is Role.LEADER
        assert (await a.service().stats()).totals.running == 1
        await passes(clock, 25)
        assert (await a.service().stats()).totals.ready == 1
