"""Brokers of a ring among themselves: who leads which shards, and what callers notice when that changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import pytest

from casque import Queue, QueueLedError
from casque.app.ring import ring_broker
from casque.broker.broker import Broker
from casque.client.opening import Parts
from casque.client.queue import DEFAULTS
from casque.client.remote import RemoteService
from casque.clock import Random
from casque.codec.member import FOLDER
from casque.errors import BrokerUnreachableError, InvalidInputError, NoLeaderError, StorageError
from casque.ring.broker import RingBroker
from casque.ring.numbers import inner
from casque.ring.shards import ANSWER_S
from casque.service import Lease, QueueService, Role
from casque.settings import BrokerSettings
from casque.state.ring import home
from casque.storage.memory import MemoryStore
from casque.testing import ManualClock
from casque.testing.gated import GatedStore
from casque.transport.border import Border
from casque.transport.scopes import Principal, Scope
from casque.types import JobRecord, JobSpec, JobState

pytestmark = pytest.mark.asyncio

R = TypeVar("R")

SETTINGS = BrokerSettings()
LEASE_S = SETTINGS.lease.total_seconds()


class Fleet:
    """Brokers on one store and one clock, that reach each other in this process."""

    def __init__(self, shards: int, settings: BrokerSettings = SETTINGS) -> None:
        self.settings = settings
        self.store = MemoryStore()
        self.clock = ManualClock()
        self.shards = shards
        self.stores: dict[str, GatedStore] = {}
        self.brokers: dict[str, RingBroker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def parts(self, store: Any, seed: str) -> Parts:
        return Parts(store, DEFAULTS, clock=self.clock, rng=Random(seed))

    async def start(self, *names: str) -> None:
        for name in names:
            store = self.stores[name] = GatedStore(self.store)
            broker = ring_broker(self.parts(store, name), self._connect, address=name, settings=self.settings)
            self.brokers[name] = broker
            await broker.open()
            self._tasks[name] = asyncio.create_task(broker.run())
            await self.outcome(broker.settled())

    def _connect(self, shard: int, address: str) -> RemoteService:
        return cast(RemoteService, Connection(self, shard, address))

    async def stop(self, name: str) -> None:
        self.brokers[name].stop()
        await self.outcome(self._tasks.pop(name))
        del self.brokers[name]

    async def kill(self, name: str) -> None:
        """It reaches nothing and nobody reaches it, as if it were dead."""
        self.stores[name].fail = StorageError("dead")
        del self.brokers[name]

    async def outcome(self, call: Coroutine[Any, Any, R] | asyncio.Task[R], seconds: float = 120) -> R:
        """What comes of a call while time passes."""
        task = asyncio.ensure_future(call)
        for _ in range(round(seconds * 10)):
            if task.done():
                break
            await self.clock.advance(0.1)
        return await task

    async def passes(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            await self.clock.advance(0.1)

    def led(self) -> dict[str, int]:
        return {name: len(broker.led()) for name, broker in self.brokers.items()}

    def whole(self) -> bool:
        """Whether each shard has one leader."""
        return sorted(token for broker in self.brokers.values() for token in broker.led()) == list(range(self.shards))

    async def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await self.outcome(asyncio.ensure_future(_over(self._tasks.values())), 300)


async def _over(tasks: Any) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


class Connection:
    """To a broker of the fleet, as long as it lives."""

    def __init__(self, fleet: Fleet, shard: int, address: str) -> None:
        self._fleet = fleet
        self._shard = shard
        self.address = address

    def __getattr__(self, name: str) -> Any:
        broker = self._fleet.brokers.get(self.address)
        if broker is None:
            raise BrokerUnreachableError(self.address, "connection refused")
        return getattr(broker.shard(self._shard), name)

    async def close(self) -> None: ...


@asynccontextmanager
async def a_fleet(shards: int, *names: str, settings: BrokerSettings = SETTINGS) -> AsyncIterator[Fleet]:
    fleet = Fleet(shards, settings)
    await fleet.parts(fleet.store, "builder").builder().create(shards)
    try:
        await fleet.start(*names)
        yield fleet
    finally:
        await fleet.end()


async def test_one_broker_leads_all_shards_and_answers_for_the_ring() -> None:
    async with a_fleet(4, "a") as fleet:
        broker = fleet.brokers["a"]

        await fleet.outcome(broker.service().enqueue([JobSpec(f"j{n}", "send", b"", zone=f"z{n}") for n in range(9)]))

        standing = broker.standing()
        assert (standing.role, standing.led, standing.shards, standing.members) == (Role.LEADER, 4, 4, 1)
        assert (await fleet.outcome(broker.service().stats())).totals.ready == 9


async def test_a_second_one_gets_half_of_them() -> None:
    async with a_fleet(8, "a") as fleet:
        await fleet.start("b")

        await fleet.passes(3 * SETTINGS.heartbeat.total_seconds())

        assert fleet.led() == {"a": 4, "b": 4}
        assert fleet.whole()


async def test_the_shards_of_one_that_dies_go_to_the_others_within_two_leases() -> None:
    async with a_fleet(8, "a", "b", "c") as fleet:
        await fleet.passes(10)
        assert sorted(fleet.led().values()) == [2, 3, 3]

        await fleet.kill("b")
        await fleet.passes(LEASE_S - 3)
        assert not fleet.whole()
        await fleet.passes(LEASE_S)

        assert fleet.led() == {"a": 4, "c": 4}
        assert fleet.whole()


async def test_the_shards_of_one_that_died_stay_with_the_others_with_the_shortest_lease() -> None:
    settings = BrokerSettings(lease=2 * SETTINGS.heartbeat)
    async with a_fleet(8, "a", "b", settings=settings) as fleet:
        await fleet.passes(10)
        await fleet.kill("b")
        # Every round takes a little time, so that every look comes later than half a lease after the one before.
        fleet.brokers["a"]._rng = Always(1.05)
        await fleet.passes(4 * settings.lease.total_seconds())

        for _ in range(30):
            assert fleet.led() == {"a": 8}
            await fleet.passes(1)


class Always(Random):
    """Draws the same number every time."""

    def __init__(self, drawn: float) -> None:
        super().__init__(0)
        self._drawn = drawn

    def uniform(self, a: float, b: float) -> float:
        return self._drawn


async def test_the_shards_of_one_that_stops_go_to_the_others_at_once() -> None:
    async with a_fleet(8, "a", "b") as fleet:
        await fleet.passes(10)

        await fleet.stop("a")
        await fleet.passes(2 * SETTINGS.poll.total_seconds())

        assert fleet.led() == {"b": 8}
        assert [key async for key in fleet.store.list(FOLDER)] == [f"{FOLDER}{fleet.brokers['b']._members.id}"]


async def test_calls_reach_shards_that_others_lead() -> None:
    async with a_fleet(4, "a", "b") as fleet:
        await fleet.passes(10)
        a, b = (fleet.brokers[name].service() for name in ("a", "b"))

        await fleet.outcome(a.enqueue([JobSpec(f"j{n}", "send", b"", zone=f"z{n}") for n in range(12)], request_id="r"))
        claimed = await fleet.outcome(b.dequeue(entrypoints=None, limit=12, request_id="d"))
        again = await fleet.outcome(a.dequeue(entrypoints=None, limit=12, request_id="d"))
        for job in claimed:
            await fleet.outcome(a.ack(job.id, token=job.token))

        assert sorted(job.id for job in claimed) == sorted(f"j{n}" for n in range(12))
        assert sorted(again, key=lambda job: job.id) == sorted(claimed, key=lambda job: job.id)
        assert (await fleet.outcome(b.stats())).totals.done == 12


async def test_a_request_that_is_passed_on_keeps_the_name_of_its_caller() -> None:
    shop, other = (Principal(name, frozenset({Scope.ADMIN})) for name in ("shop", "other"))
    async with a_fleet(4, "a", "b") as fleet:
        await fleet.passes(10)
        a, b = (fleet.brokers[name].service() for name in ("a", "b"))

        async def enqueue(service: QueueService, caller: Principal, job_id: str, zone: str) -> str:
            jobs = [JobSpec(job_id, "send", b"", zone=zone)]
            [job] = await fleet.outcome(Border(service, caller).enqueue(jobs, request_id=f"order {zone}"))
            return job.id

        for zone in (f"z{n}" for n in range(8)):
            assert await enqueue(a, shop, f"{zone} first", zone) == f"{zone} first"
            assert await enqueue(b, shop, f"{zone} again", zone) == f"{zone} first"
            assert await enqueue(b, other, f"{zone} other", zone) == f"{zone} other"
        assert (await fleet.outcome(b.stats())).totals.enqueued == 16


async def test_while_a_shard_has_no_leader_jobs_of_the_others_are_claimed() -> None:
    async with a_fleet(4, "a", "b") as fleet:
        await fleet.passes(10)
        a = fleet.brokers["a"]
        await fleet.outcome(a.service().enqueue([JobSpec(f"j{n}", "send", b"", zone=f"z{n}") for n in range(40)]))
        of_a = sum(home(f"z{n}", 4) in a.led() for n in range(40))

        await fleet.kill("b")
        claimed = await fleet.outcome(a.service().dequeue(entrypoints=None, limit=40, request_id="d"), LEASE_S / 4)

        assert len(claimed) == of_a
        assert len(fleet.led()) == 1
        late = fleet.outcome(a.service().dequeue(entrypoints=None, limit=40, wait_s=60, request_id="e"))
        assert len(await late) == 40 - of_a


async def test_a_repeated_dequeue_gives_nothing_back_that_it_was_told_of_before() -> None:
    """Its shard could not be asked when the request was repeated, and is there again when another one has a job."""
    async with a_fleet(4, "a", "b") as fleet:
        await fleet.passes(10)
        service, own = fleet.brokers["a"].service(), fleet.brokers["a"].led()
        zones = {home(zone, 4) in own: zone for zone in map(str, range(40))}
        await fleet.outcome(service.enqueue([JobSpec("told", "send", b"", zone=zones[False])]))
        [told] = await fleet.outcome(service.dequeue(entrypoints=None, limit=1, request_id="d"))
        await fleet.kill("b")
        again = asyncio.create_task(service.dequeue(entrypoints=None, limit=1, wait_s=60, request_id="d"))

        while not fleet.whole():
            await fleet.clock.advance(0.01)
        await service.enqueue([JobSpec("new", "send", b"", zone=zones[True])])

        assert await fleet.outcome(again) == [told]
        jobs = {job.id: job for job in await fleet.outcome(service.jobs())}
        assert jobs["told"] == told
        assert jobs["new"].state is JobState.READY


async def test_a_shard_without_a_leader_costs_no_leases_in_the_others() -> None:
    """They are beaten at once, and the answer does not wait for the shard that is missing."""
    async with a_fleet(2, "a", "b") as fleet:
        await fleet.passes(10)
        service = fleet.brokers["a"].service()
        zones = {fleet.brokers[name].led()[0]: name for name in "ab"}
        specs = [JobSpec(f"j{n}", "send", b"", zone=f"z{n}") for n in range(8)]
        await fleet.outcome(service.enqueue(specs))
        claimed = await fleet.outcome(service.dequeue(entrypoints=None, limit=8))
        assert len(claimed) == 8
        await fleet.kill("b")
        began_ms = fleet.clock.monotonic_ms()
        leases = [Lease(job.id, job.token) for job in claimed]

        answers = await fleet.outcome(service.heartbeats([*leases, Lease("j0"), Lease("nobody", 1)]))

        assert fleet.clock.monotonic_ms() - began_ms < 2.2 * ANSWER_S * 1000
        for job, answer in zip(claimed, answers, strict=False):
            led_by = zones[inner(job.token)[1]]
            assert isinstance(answer, JobRecord if led_by == "a" else NoLeaderError), (led_by, answer)
        assert {zones[inner(job.token)[1]] for job in claimed} == {"a", "b"}
        assert isinstance(answers[-2], NoLeaderError), "without a token all shards are asked for it"


async def test_those_who_scan_see_the_zones_of_shards_that_have_a_leader() -> None:
    async with a_fleet(2, "a", "b") as fleet:
        await fleet.passes(10)
        service = fleet.brokers["a"].service()
        await fleet.outcome(service.enqueue([JobSpec(f"j{n}", "send", b"", zone=f"z{n}") for n in range(8)]))
        there = {f"z{n}" for n in range(8) if home(f"z{n}", 2) in fleet.brokers["a"].led()}
        await fleet.kill("b")
        began_ms = fleet.clock.monotonic_ms()

        for _ in range(2):
            assert {zone.zone for zone in await fleet.outcome(service.peek_zones())} == there

        assert fleet.clock.monotonic_ms() - began_ms < 5 * ANSWER_S * 1000


async def test_a_broker_that_has_not_read_the_ring_yet_says_not_now() -> None:
    fleet = Fleet(4)
    await fleet.parts(fleet.store, "builder").builder().create(4)
    broker = ring_broker(fleet.parts(fleet.store, "a"), fleet._connect, address="a", settings=SETTINGS)
    with pytest.raises(NoLeaderError):
        broker.service()
    with pytest.raises(NoLeaderError):
        broker.shard(3)
    await fleet.start("b")
    with pytest.raises(NoLeaderError):
        fleet.brokers["b"].shard(63)  # of a ring that has grown meanwhile
    with pytest.raises(InvalidInputError):
        fleet.brokers["b"].shard(4096)
    await fleet.end()


async def test_a_call_that_meets_a_failover_is_carried_out_once() -> None:
    async with a_fleet(2, "a", "b") as fleet:
        await fleet.passes(10)
        [token] = fleet.brokers["b"].led()
        zone = next(f"z{n}" for n in range(99) if home(f"z{n}", 2) == token)
        a = fleet.brokers["a"].service()
        await fleet.outcome(a.enqueue([JobSpec("first", "send", b"", zone=zone)], request_id="r"))

        await fleet.kill("b")
        again = await fleet.outcome(a.enqueue([JobSpec("second", "send", b"", zone=zone)], request_id="r"))
        new = await fleet.outcome(a.enqueue([JobSpec("third", "send", b"", zone=zone)], request_id="s"))

        assert [job.id for job in (*again, *new)] == ["first", "third"]


async def test_one_that_was_away_for_long_finds_out_before_it_answers() -> None:
    async with a_fleet(4, "a", "b") as fleet:
        await fleet.passes(10)
        away = fleet.brokers["b"]
        fleet.stores["b"].fail = StorageError("cut off")
        await fleet.passes(3 * LEASE_S)
        assert len(fleet.brokers["a"].led()) == 4

        fleet.stores["b"].fail = None
        await fleet.passes(2 * LEASE_S)

        assert fleet.led() == {"a": 2, "b": 2}
        assert fleet.whole()
        assert away.standing().problem is None


async def test_whoever_replaces_one_waits_while_that_one_may_answer_from_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_fleet(2, "a", "b") as fleet:
        await fleet.passes(10)
        a, b = fleet.brokers["a"], fleet.brokers["b"]
        [token] = b.led()
        committer = cast(Broker, b._seats[token].seat)._committer
        shard = b.shard(token)

        async def silent(_leads: tuple[int, ...] = ()) -> None:
            """It seems dead, and is not: somebody asks it all the time, and it looks at the head as often."""

        monkeypatch.setattr(b._members, "beat", silent)
        answers = 0
        while a.led() != (0, 1):
            if committer.leads:
                looking = asyncio.ensure_future(shard.known(()))
                await fleet.passes(0.1)
                answers += looking.done() and looking.exception() is None
            else:
                await fleet.passes(0.1)
            assert not (committer.sole and token in a.led())

        assert answers > 20
        assert not committer.sole


async def test_a_request_that_is_said_to_be_the_first_is_not_looked_for() -> None:
    async with a_fleet(4, "a") as fleet:
        a = fleet.brokers["a"].service()
        await fleet.outcome(a.enqueue([JobSpec(f"j{n}", "send", b"", zone=f"z{n}") for n in range(12)]))

        one = await fleet.outcome(a.dequeue(entrypoints=None, limit=2, first=True, request_id="d"))
        again = await fleet.outcome(a.dequeue(entrypoints=None, limit=2, request_id="d"))

        assert len(one) == 2
        assert {job.id for job in again} == {job.id for job in one}


async def test_new_shards_are_led_as_well() -> None:
    async with a_fleet(2, "a", "b") as fleet:
        await fleet.passes(10)

        await fleet.outcome(fleet.parts(fleet.store, "resizer").builder().resize(6))
        fleet.shards = 6
        await fleet.passes(10)

        assert fleet.led() == {"a": 3, "b": 3}
        assert fleet.whole()
        a = fleet.brokers["a"].service()
        await fleet.outcome(a.enqueue([JobSpec(f"j{n}", "send", b"", zone=f"z{n}") for n in range(30)]))
        assert (await fleet.outcome(a.stats())).totals.ready == 30


async def test_a_shard_that_its_broker_does_not_lead_is_led_by_the_next_in_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_fleet(4, "a", "b") as fleet:
        await fleet.passes(10)
        stuck = fleet.brokers["b"]
        token = stuck.led()[0]
        taken = stuck._seats[token]
        assert taken.task is not None
        monkeypatch.setattr(stuck, "_take", lambda _token: None)  # it cannot begin anew
        taken.seat.stop()
        await fleet.passes(2 * LEASE_S)
        assert not fleet.whole()

        await fleet.passes(2 * LEASE_S)

        assert token in fleet.brokers["a"].led()
        assert fleet.whole()
        await fleet.passes(6 * LEASE_S)
        assert token in fleet.brokers["a"].led()


async def test_two_that_both_want_an_idle_shard_do_not_depose_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_fleet(4, "a", "b") as fleet:
        await fleet.passes(10)
        stuck = fleet.brokers["b"]
        token = stuck.led()[0]
        with monkeypatch.context() as until_it_can:
            until_it_can.setattr(stuck, "_take", lambda _token: None)
            stuck._seats[token].seat.stop()
            await fleet.passes(5 * LEASE_S)
        assert token in fleet.brokers["a"].led()

        epochs = set()
        for _ in range(20):
            await fleet.passes(LEASE_S)
            assert fleet.whole()
            epochs.add(fleet.brokers["a"]._seats[token].seat.standing().epoch)

        assert token in stuck._seats  # it stands by
        assert len(epochs) == 1


async def test_the_next_in_line_leaves_the_shard_to_its_broker_if_that_one_leads_it() -> None:
    async with a_fleet(4, "a", "b") as fleet:
        await fleet.passes(10)
        a, b = fleet.brokers["a"], fleet.brokers["b"]
        token = b.led()[0]
        a._instead.add(token)  # as if the other had seemed not to lead it
        await fleet.passes(2 * LEASE_S)

        assert token in b.led()
        assert token not in a._seats


async def test_whoever_opens_a_shard_without_a_broker_hears_who_leads_it() -> None:
    async with a_fleet(2, "a") as fleet:
        async with Queue.open(fleet.store, clock=fleet.clock) as queue:
            with pytest.raises(QueueLedError) as refused:
                await queue.enqueue("send", b"")

        assert refused.value.address == "a"


async def test_a_shard_that_was_deleted_is_not_made_anew() -> None:
    async with a_fleet(2) as fleet:
        for key in [key async for key in fleet.store.list("shards/0001/")]:
            await fleet.store.delete(key)

        await fleet.start("a")
        await fleet.passes(10)

        assert fleet.led() == {"a": 1}
        assert "shards/0001/queue.json" in str(fleet.brokers["a"].standing().problem)
        assert [key async for key in fleet.store.list("shards/0001/")] == []


async def test_a_broker_that_stops_takes_no_more_calls() -> None:
    async with a_fleet(2, "a") as fleet:
        broker = fleet.brokers["a"]

        await fleet.stop("a")

        with pytest.raises(NoLeaderError):
            broker.service()
        assert broker.standing().role is Role.STOPPING


async def test_an_idle_ring_costs_little() -> None:
    async with a_fleet(64, "a", "b") as fleet:
        await fleet.passes(20)
        for store in fleet.stores.values():
            store.requests.clear()

        await fleet.passes(64)

        # A heartbeat and a listing every two seconds, and every shard is looked after twice in that time.
        for store in fleet.stores.values():
            assert store.writes <= 64 / 1.6 + 64 * 1.5
            assert store.requests["list"] <= 64 / 1.6
            assert store.requests["get"] <= 64 / 1.6 * 2 + 64 * 3
