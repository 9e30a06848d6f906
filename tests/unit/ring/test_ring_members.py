"""The brokers of a ring as they see each other through the bucket."""

from __future__ import annotations

import pytest

from casque.clock import Random
from casque.codec.member import decode_member, member_key
from casque.environment import Environment
from casque.errors import StorageError
from casque.ring.members import FORGOTTEN_LEASES, Members, addresses
from casque.settings import BrokerSettings
from casque.storage.memory import MemoryStore
from casque.storage.port import Missing, Stored
from casque.testing import ManualClock
from casque.testing.gated import GatedStore

pytestmark = pytest.mark.asyncio

SETTINGS = BrokerSettings()
LEASE_S = SETTINGS.lease.total_seconds()
BEAT_S = SETTINGS.heartbeat.total_seconds()


def member(store: MemoryStore | GatedStore, clock: ManualClock, name: str) -> Members:
    return Members(store, f"{name}:7700", Environment(clock=clock, rng=Random(name)), settings=SETTINGS)


async def passes(clock: ManualClock, seconds: float, *, looking: Members, beating: tuple[Members, ...] = ()) -> None:
    for _ in range(round(seconds / BEAT_S)):
        await clock.advance(BEAT_S)
        for one in beating:
            await one.beat()
        await looking.look()


async def test_brokers_see_each_other_and_what_they_lead() -> None:
    store, clock = MemoryStore(), ManualClock()
    one, other = member(store, clock, "one"), member(store, clock, "other")
    await one.beat()
    await other.beat((1, 3))

    await one.look()

    assert {seen.address: seen.leads for seen in one.alive().values()} == {"other:7700": (1, 3)}
    assert await addresses(store) == ["one:7700", "other:7700"]


async def test_one_that_does_not_change_for_a_lease_is_gone_and_not_before() -> None:
    store, clock = MemoryStore(), ManualClock()
    one, other, third = member(store, clock, "one"), member(store, clock, "other"), member(store, clock, "third")
    await other.beat()
    await third.beat()
    await one.look()

    await passes(clock, LEASE_S - BEAT_S, looking=one, beating=(third,))
    assert other.id in one.alive()
    assert not one.is_gone(other.id)

    await passes(clock, BEAT_S, looking=one, beating=(third,))
    assert list(one.alive()) == [third.id]
    assert one.is_gone(other.id)
    assert not one.is_gone(third.id)


async def test_one_that_comes_back_is_alive_again() -> None:
    store, clock = MemoryStore(), ManualClock()
    one, other = member(store, clock, "one"), member(store, clock, "other")
    await other.beat()
    await one.look()
    await passes(clock, 2 * LEASE_S, looking=one)

    await other.beat()
    await one.look()

    assert list(one.alive()) == [other.id]


async def test_one_that_leaves_is_no_member_and_not_gone_either() -> None:
    """It may lead for a moment yet: whoever follows it waits until it resigns."""
    store, clock = MemoryStore(), ManualClock()
    one, other = member(store, clock, "one"), member(store, clock, "other")
    await other.beat()
    await one.look()

    await other.leave()
    await one.look()

    assert not one.alive()
    assert not one.is_gone(other.id)


async def test_whoever_could_not_look_has_not_seen_that_nothing_changes() -> None:
    clock = ManualClock()
    shared = MemoryStore()
    store = GatedStore(shared)
    one, other = member(store, clock, "one"), member(shared, clock, "other")
    await other.beat()
    await one.look()

    store.fail = StorageError("cut off")
    for _ in range(20):
        await clock.advance(BEAT_S)
        with pytest.raises(StorageError):
            await one.look()
    store.fail = None
    await one.look()

    assert list(one.alive()) == [other.id]
    await passes(clock, LEASE_S, looking=one)
    assert one.is_gone(other.id)


@pytest.mark.parametrize("late", [1.0, 1.05, 1.45, 1.6, 3.0])
async def test_one_that_is_dead_stays_dead_however_late_the_looks_are(late: float) -> None:
    """With the shortest lease that is allowed, every look may come after half of it."""
    store, clock = MemoryStore(), ManualClock()
    settings = BrokerSettings(lease=2 * SETTINGS.heartbeat)
    one, dead, well = (
        Members(store, f"{name}:7700", Environment(clock=clock, rng=Random(name)), settings=settings) for name in "abc"
    )
    await dead.beat()
    await well.beat()
    await one.look()
    seen: list[bool] = []
    for _ in range(20):
        await clock.advance(BEAT_S * late)
        await well.beat()
        await one.look()
        seen.append(one.is_gone(dead.id))
        assert list(one.alive()) == ([well.id] if seen[-1] else [dead.id, well.id])
    assert seen == sorted(seen), "once dead, it is not taken for alive again"
    assert seen.index(True) < 4

    await dead.beat()
    await one.look()

    assert set(one.alive()) == {dead.id, well.id}


async def test_an_outage_of_the_store_is_not_taken_for_the_death_of_the_others() -> None:
    clock, shared = ManualClock(), MemoryStore()
    settings = BrokerSettings(lease=2 * SETTINGS.heartbeat)
    store = GatedStore(shared)
    one, other = (
        Members(place, f"{name}:7700", Environment(clock=clock, rng=Random(name)), settings=settings)
        for place, name in ((store, "one"), (shared, "other"))
    )
    await other.beat()
    await one.look()
    await clock.advance(BEAT_S)
    await one.look()
    store.fail = StorageError("cut off")
    await clock.advance(60)
    store.fail = None

    await one.look()

    assert list(one.alive()) == [other.id]


async def test_the_object_of_one_that_is_dead_for_long_is_removed_and_made_again_if_it_is_not() -> None:
    store, clock = MemoryStore(), ManualClock()
    one, other = member(store, clock, "one"), member(store, clock, "other")
    await other.beat()
    await one.look()

    await passes(clock, FORGOTTEN_LEASES * LEASE_S, looking=one)

    assert isinstance(await store.get(member_key(other.id)), Missing)
    await other.beat()
    await one.look()
    assert list(one.alive()) == [other.id]


async def test_one_that_lives_under_the_same_address_is_a_twin_and_one_that_died_there_is_not() -> None:
    store, clock = MemoryStore(), ManualClock()
    one, again = (
        member(store, clock, "one"),
        Members(store, "one:7700", Environment(clock=clock, rng=Random("again")), settings=SETTINGS),
    )
    await one.beat()
    await again.look()
    assert not again.has_twin()

    await one.beat()
    await again.look()

    assert again.has_twin()


async def test_what_is_no_member_is_passed_over() -> None:
    store, clock = MemoryStore(), ManualClock()
    one, other = member(store, clock, "one"), member(store, clock, "other")
    await other.beat()
    await store.create("brokers/README", b"who put this here")
    await store.create("brokers/copied", await body_of(store, member_key(other.id)))

    await one.look()

    assert list(one.alive()) == [other.id]
    assert await addresses(store) == ["other:7700"]


async def body_of(store: MemoryStore, key: str) -> bytes:
    read = await store.get(key)
    assert isinstance(read, Stored)
    assert decode_member(read.body) is not None
    return read.body
