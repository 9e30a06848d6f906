"""Staged jobs on a ring of shards: each at home, every one once, whatever fails and however the ring changes."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import msgspec
import pytest

from casque import CorruptQueueError, InvalidInputError, NewJob, Queue, QueueDrainingError, UnknownOutcomeError
from casque.client.opening import Parts
from casque.client.queue import DEFAULTS
from casque.client.staging import StagedJobs
from casque.clock import Random
from casque.codec.staged import checked
from casque.engine.embedded import EmbeddedService
from casque.engine.group import GroupCommit
from casque.engine.staging import Staging
from casque.environment import Environment
from casque.errors import CASConflictError, StorageError, ZoneMovedError
from casque.ring.admissions import ADMISSIONS, Batch, _shares
from casque.ring.numbers import inner
from casque.service import requests
from casque.service.requests import Enqueue
from casque.state import Admit, AdoptRing, State
from casque.state.ring import home
from casque.storage.memory import MemoryStore
from casque.storage.metered import MeteredStore
from casque.storage.port import Outcome, Read
from casque.telemetry.metrics import Metrics
from casque.testing import ManualClock
from casque.testing.lossy import LossyStore, by_chance
from casque.types import Admission, JobSpec, StagedPart
from tests.acceptance.test_ring_processes import overlaps

pytestmark = pytest.mark.asyncio

SEEDS = count(1)
SHORT = timedelta(milliseconds=20)
ZONES = [f"zone-{n}" for n in range(12)]


def parts_of(store: Any) -> Parts:
    return Parts(store, DEFAULTS)


async def a_ring(shards: int, store: MemoryStore | None = None) -> MemoryStore:
    store = store or MemoryStore()
    assert await parts_of(store).builder().create(shards)
    return store


async def resize(store: MemoryStore, shards: int) -> None:
    await parts_of(store).builder().resize(shards)


async def staged(store: Any, jobs: StagedJobs) -> StagedPart:
    parts = parts_of(store)
    staging = Staging(store, Environment(clock=parts.clock, rng=Random(next(SEEDS))))
    return await staging.put(checked(jobs), "t")


def zoned(names: str, zones: list[str] = ZONES) -> StagedJobs:
    """A job for each zone."""
    return StagedJobs([f"{names}-{zone}" for zone in zones], "task", b"", zones=list(zones))


async def shards_of(store: MemoryStore) -> dict[str, int]:
    async with Queue.open(store) as queue:
        return {job.id: inner(job.record.sequence)[1] for job in await queue.jobs()}


async def enqueued(store: MemoryStore) -> Counter[str]:
    """How often each job was ever added, by the histories of the shards."""
    parts = parts_of(store)
    added: Counter[str] = Counter()
    for token in range((await parts.root().read()).shards):
        async for event in parts.shard(token).history().events(from_position=0, follow=False):
            if event.kind.value == "added":
                added[str(event.job_id)] += 1
    return added


@asynccontextmanager
async def a_shard(store: MemoryStore, token: int) -> AsyncIterator[tuple[EmbeddedService, GroupCommit]]:
    parts = parts_of(store).shard(token)
    group = parts.group()
    await group.start()
    try:
        yield parts.service(group), group
    finally:
        await group.stop()


async def keys(store: MemoryStore, prefix: str) -> list[str]:
    return [key async for key in store.list(prefix)]


class Blocked(MemoryStore):
    """Refuses commits of some shards."""

    def __init__(self) -> None:
        super().__init__()
        self.shards: set[int] = set()
        self.books = False

    async def create(self, key: str, body: bytes) -> Outcome:
        if self.books and key.startswith(ADMISSIONS):
            raise StorageError("blocked")
        if any(key.startswith(f"shards/{shard:04d}/log/") for shard in self.shards):
            raise StorageError("blocked")
        return await super().create(key, body)


class Slow(MeteredStore):
    """The store of a process that stops before a request for a key with this prefix, until it may go on."""

    def __init__(self, store: MemoryStore, verb: str, prefix: str) -> None:
        super().__init__(store, Metrics())
        self._verb = verb
        self._prefix = prefix
        self.stopped = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        await self._stop_before("get", key)
        return await super().get(key, unless=unless)

    async def create(self, key: str, body: bytes) -> Outcome:
        await self._stop_before("create", key)
        return await super().create(key, body)

    async def _stop_before(self, verb: str, key: str) -> None:
        if verb == self._verb and key.startswith(self._prefix):
            self.stopped.set()
            await self.may_go_on.wait()


async def test_every_job_is_admitted_where_its_zone_is_at_home_and_once() -> None:
    store = await a_ring(4)
    part = await staged(store, zoned("a"))
    others = await staged(store, StagedJobs([f"b{n}" for n in range(40)], "task", b"x", keys=[None, "k"] + [None] * 38))
    async with Queue.open(store) as queue, Queue.open(store) as other:
        assert await queue.admit("nightly", 1, [part, others]) == Admission(52)
        assert await other.admit("nightly", 1, [part, others]) == Admission(52, repeated=True)
        assert await queue.admit("nightly", 0, [part]) == Admission(0, repeated=True)
    where = await shards_of(store)
    assert {name: where[f"a-{name}"] for name in ZONES} == {name: home(name, 4) for name in ZONES}
    assert where["b1"] == home("k", 4)
    assert len({where[f"b{n}"] for n in range(40)}) == 4
    assert set((await enqueued(store)).values()) == {1}
    assert await keys(store, "staged/") == []
    assert len(await keys(store, ADMISSIONS)) == 1


async def test_a_zone_that_lives_where_an_older_size_put_it_stays_there() -> None:
    store = await a_ring(2)
    async with Queue.open(store) as queue:
        await queue.enqueue_many([NewJob("task", b"", zone=zone) for zone in ZONES[:6]])
        await resize(store, 7)
        await queue.admit("nightly", 1, [await staged(store, zoned("a"))])
    where = await shards_of(store)
    assert [where[f"a-{zone}"] for zone in ZONES] == [home(zone, 2 if zone in ZONES[:6] else 7) for zone in ZONES]


async def test_a_batch_that_some_shards_have_is_completed_by_repeating_it_though_the_ring_has_changed() -> None:
    store = Blocked()
    await a_ring(2, store)
    part = await staged(store, zoned("a"))
    async with Queue.open(store, storage_patience=SHORT) as queue:
        store.shards = {1}
        with pytest.raises(UnknownOutcomeError, match=r"by 1 of 2 shards.*Repeat it"):
            await queue.admit("nightly", 1, [part])
        with pytest.raises(UnknownOutcomeError, match="batch 1 of"):
            await queue.admit("nightly", 2, [await staged(store, zoned("b"))])
        store.shards = set()
        # Those that were admitted are done, and their zones gone: they must not come back on the new ring.
        for job in await queue.dequeue("task", batch_size=50):
            await job.ack()
    await resize(store, 5)
    async with Queue.open(store) as queue:
        again = await staged(store, zoned("a"))  # what a driver does that starts anew
        assert await queue.admit("nightly", 1, [again]) == Admission(12, repeated=True)
        assert await queue.admit("nightly", 2, [await staged(store, zoned("b"))]) == Admission(12)
    where = await shards_of(store)
    late = [zone for zone in ZONES if home(zone, 2) == 1]
    assert {name for name in where if name.startswith("a-")} == {f"a-{zone}" for zone in late}
    assert [where[f"a-{zone}"] for zone in late] == [home(zone, 5) for zone in late]
    assert set((await enqueued(store)).values()) == {1}
    assert await overlaps(parts_of(store)) == []


async def test_a_share_of_a_ring_that_grew_and_shrank_back_does_not_split_a_zone() -> None:
    """The shard is the zone's home again, but meanwhile the zone was made elsewhere, and is there."""
    store = Blocked()
    await a_ring(2, store)
    zone = next(f"z{n}" for n in range(99) if home(f"z{n}", 2) == 1 and home(f"z{n}", 3) == 2)
    async with Queue.open(store, storage_patience=SHORT) as queue:
        store.shards = {1}
        with pytest.raises(UnknownOutcomeError):
            await queue.admit("nightly", 1, [await staged(store, zoned("a", [zone]))])
    store.shards = set()
    await resize(store, 3)
    async with Queue.open(store) as queue:
        first = (await queue.enqueue("task", b"", zone=zone)).id
    await resize(store, 2)
    async with Queue.open(store) as queue:
        assert await queue.admit("nightly", 1, [await staged(store, zoned("a", [zone]))]) == Admission(1, 0, True)
    assert await shards_of(store) == {first: 2, f"a-{zone}": 2}
    async with a_shard(store, 1) as (service, _):
        part = await parts_of(store).books().stage(1, zoned("a", [zone]))
        late = await service.call(requests.Admit("nightly#1", 1, (part,), generation=3))
    assert (late.jobs, late.repeated) == (0, True), "whoever was slow comes too late, at the home that it is again"


async def test_of_two_who_admit_a_batch_at_once_both_hear_that_it_is_there() -> None:
    store = await a_ring(3)
    parts = [await staged(store, zoned("a")) for _ in range(2)]
    async with Queue.open(store) as one, Queue.open(store) as other:
        answers = await asyncio.gather(one.admit("nightly", 1, parts[:1]), other.admit("nightly", 1, parts[1:]))
    assert [answer.jobs for answer in answers] == [12, 12]
    assert any(answer.repeated for answer in answers)
    assert await enqueued(store) == Counter(zoned("a").ids)


@pytest.mark.parametrize(
    ("verb", "prefix"), [("get", "staged/"), ("get", "shards/"), ("create", "admissions/"), ("get", "admissions/")]
)
async def test_a_batch_that_is_admitted_elsewhere_meanwhile_is_not_said_to_have_failed(verb: str, prefix: str) -> None:
    """Its parts are gone by then, or its ids are in the queue, which is no reason to refuse it."""
    store = await a_ring(3)
    part = await staged(store, zoned("a"))
    slow = Slow(store, verb, prefix)
    async with Queue.open(store) as one, Queue.open(slow) as other:
        late = asyncio.ensure_future(other.admit("nightly", 1, [part]))
        await slow.stopped.wait()
        assert await one.admit("nightly", 1, [part]) == Admission(12)
        slow.may_go_on.set()
        assert await late == Admission(12, repeated=True)
    assert await enqueued(store) == Counter(zoned("a").ids)


@pytest.mark.parametrize("earlier", [True, False])
async def test_a_batch_that_was_refused_is_not_admitted_by_an_attempt_that_had_begun_before(earlier: bool) -> None:
    """A refusal says that nothing was admitted: whoever believes it stages the jobs under another name."""
    store = await a_ring(3)
    part = await staged(store, zoned("a"))
    slow = Slow(store, "create", "admissions/")
    async with Queue.open(store) as one, Queue.open(slow) as other:
        if earlier:
            await one.admit("nightly", 1, [await staged(store, zoned("first"))])
        late = asyncio.ensure_future(other.admit("nightly", 2, [part]))
        await slow.stopped.wait()
        await one.enqueue("task", b"", zone=ZONES[0], request_id="r")
        await one.drain("task")
        with pytest.raises(QueueDrainingError):
            await one.admit("nightly", 2, [part])
        await one.resume("task")
        slow.may_go_on.set()
        with pytest.raises(CASConflictError, match="refused through another process"):
            await late
        assert not set(zoned("a").ids) & set(await enqueued(store))
        assert await other.admit("nightly", 2, [part]) == Admission(12), "asked anew it is another attempt"
        if earlier:
            assert (await one.admit("nightly", 1, [part])) == Admission(0, repeated=True)


async def test_a_refusal_that_cannot_be_written_down_is_not_said_to_be_one() -> None:
    store = Blocked()
    await a_ring(2, store)
    async with Queue.open(store, storage_patience=SHORT) as queue:
        await queue.drain("task")
        store.books = True
        with pytest.raises(UnknownOutcomeError, match="another attempt at it may be under way"):
            await queue.admit("nightly", 1, [await staged(store, zoned("a"))])


async def test_a_batch_that_was_begun_has_not_failed_whatever_goes_wrong_with_it() -> None:
    store = Blocked()
    await a_ring(2, store)
    part = await staged(store, zoned("a"))
    async with Queue.open(store, storage_patience=SHORT) as queue:
        store.shards = {1}
        with pytest.raises(UnknownOutcomeError):
            await queue.admit("nightly", 1, [part])
        await store.delete(part.key)
        with pytest.raises(UnknownOutcomeError, match="is under way"):
            await queue.admit("nightly", 1, [part])


async def test_a_share_that_was_given_up_is_not_admitted_by_somebody_who_is_late() -> None:
    store = await a_ring(2)
    async with a_shard(store, 0) as (service, group):
        await group.execute(AdoptRing(1, 2, 0))
        part = await parts_of(store).books().stage(0, zoned("late", [zone for zone in ZONES if home(zone, 2) == 0]))
        given_up = await group.execute(Admit("nightly#0", 1, (), [], set(), False))
        late = await service.call(requests.Admit("nightly#0", 1, (part,), generation=1))
        assert late == Admission(0, repeated=True, position=given_up.position)
    assert await shards_of(store) == {}


async def test_a_shard_admits_a_new_zone_only_for_those_who_know_its_ring() -> None:
    state = State()
    [here] = [zone for zone in ZONES if home(zone, 4) == 1][:1]
    [there] = [zone for zone in ZONES if home(zone, 4) == 2][:1]
    state.execute(AdoptRing(3, 4, 1), 0)
    state.commit(writer="w", batch=1, at_ms=0)

    def admit(batch: int, zone: str, generation: int) -> Admission:
        spec = JobSpec(f"{batch}", "task", b"", zone=zone)
        done: Admission = state.execute(Admit("s", batch, (), [spec], {spec.id}, False, generation=generation), 0)
        state.carry_out(0)
        state.commit(writer="w", batch=1 + batch, at_ms=0)
        return done

    for zone, generation in ((here, 2), (here, 4), (there, 3)):
        with pytest.raises(ZoneMovedError):
            admit(1, zone, generation)
        assert not state.events
    assert admit(1, here, 3).jobs == 1
    assert admit(2, here, 1).jobs == 1, "where it is it stays"
    state.execute(Enqueue((JobSpec("x", "task", b"", zone=here),), generation=1), 0)


async def test_what_the_shards_would_refuse_is_refused_before_any_has_taken_something() -> None:
    store = await a_ring(3)
    async with Queue.open(store) as queue:
        known = (await queue.enqueue("task", b"", zone="elsewhere")).id
        await queue.enqueue("fifo", b"", zone="in-order", fifo=True)
        twice = StagedJobs(["1", known, "2"], "task", b"", zones=["a", "b", "c"])
        before = await queue.stats()
        for jobs, told in (
            (twice, "already in the queue"),
            (StagedJobs(["1", "2"], "task", b"", zones=["a", "in-order"]), "is FIFO"),
        ):
            with pytest.raises(InvalidInputError, match=told):
                await queue.admit("nightly", 1, [await staged(store, jobs)])
        same = [await staged(store, StagedJobs(["1"], "task", b"", zones=zone)) for zone in ("a", "b", "c")]
        with pytest.raises(InvalidInputError, match="two jobs of one admission"):
            await queue.admit("nightly", 1, same)
        await queue.drain("fifo")
        with pytest.raises(QueueDrainingError):
            await queue.admit("nightly", 1, [await staged(store, StagedJobs(["1"], "fifo", b""))])
        assert (await queue.stats()).totals == before.totals
        assert await queue.admit("nightly", 1, [await staged(store, twice)], skip_known=True) == Admission(2, 1)
        assert await queue.admit("nightly", 2, same, skip_known=True) == Admission(0, 3)
        assert await queue.admit("nightly", 2, same) == Admission(0, 3, repeated=True)


async def test_large_payloads_are_moved_beside_the_shard() -> None:
    store = await a_ring(2)
    jobs = StagedJobs(["small", "large"], "task", [b"1", b"x" * 300_000], zones=["a", "b"])
    async with Queue.open(store) as queue:
        await queue.admit("nightly", 1, [await staged(store, jobs)])
        payloads = {job.id: job.payload for job in await queue.dequeue("task", batch_size=2)}
    assert payloads == {"small": b"1", "large": b"x" * 300_000}
    assert await keys(store, "blobs/") == []


async def test_what_nobody_admitted_is_swept_by_its_age_and_not_while_a_batch_is_under_way() -> None:
    store, clock = Blocked(), ManualClock()
    await Parts(store, DEFAULTS, clock=clock).builder().create(2)
    staging = Staging(store, Environment(clock=clock, rng=Random(1)))
    forgotten = await staging.put(zoned("forgotten"), "t")
    begun = await staging.put(zoned("begun"), "t")
    async with Queue.open(store, clock=clock, storage_patience=SHORT) as queue:
        store.shards = {0, 1}
        with pytest.raises(UnknownOutcomeError):
            await queue.admit("one", 1, [begun])
    store.shards = set()
    await clock.advance(30 * 3600)
    async with Queue.open(store, clock=clock, retention=timedelta(days=9)) as queue:
        await queue.admit("other", 1, [await staging.put(zoned("other"), "t")])
        assert set(await keys(store, "staged/")) == {forgotten.key, begun.key}
        with pytest.raises(InvalidInputError, match="12 hours ago"):
            await queue.admit("one", 2, [forgotten])
        await clock.advance(7 * 3600)
        await queue.admit("other", 2, [await staging.put(zoned("more"), "t")])
        assert await keys(store, "staged/") == [forgotten.key], "it was seen for the first time"
        await clock.advance(14 * 3600)
        await queue.admit("other", 3, [await staging.put(zoned("most"), "t")])
    assert await keys(store, "staged/") == []
    assert set((await enqueued(store)).values()) == {1}
    assert len(await shards_of(store)) == 48


@pytest.mark.parametrize("seed", range(6))
async def test_every_job_comes_once_though_replies_get_lost_drivers_die_and_the_ring_changes(seed: int) -> None:
    rng = Random(seed)
    store = await a_ring(rng.randint(1, 4))
    expected: set[str] = set()
    for batch in range(4):
        jobs = zoned(f"{batch}", rng.sample(ZONES, 8))
        expected |= set(jobs.ids)
        for attempt in count():
            chance = 0.12 if attempt < 6 else 0.0
            lossy = LossyStore(store, by_chance(rng, before=chance, after=chance))
            try:
                async with Queue.open(lossy, storage_patience=SHORT) as queue:
                    await queue.admit("nightly", batch, [await staged(lossy, jobs)])
                break
            except (StorageError, UnknownOutcomeError):
                pass
            if rng.random() < 0.5:
                await resize(store, rng.randint(1, 6))
        async with Queue.open(store) as queue:
            for job in await queue.dequeue("task", batch_size=rng.randint(0, 12) or 1):
                await job.ack()
        if rng.random() < 0.5:
            await resize(store, rng.randint(1, 6))
    assert await enqueued(store) == Counter(expected)
    assert await overlaps(parts_of(store)) == []


@pytest.mark.parametrize(
    "body",
    [
        zlib.compress(bytes(50_000_000)),
        zlib.compress(msgspec.msgpack.encode([[0] * 1_000_000])),
        zlib.compress(msgspec.msgpack.encode([[0, 1, 2]]))[:-3],
        zlib.compress(msgspec.msgpack.encode([[0]])),
        zlib.compress(msgspec.msgpack.encode([["a", 1, 2]])),
        b"no such thing",
    ],
    ids=["a bomb", "too many rows", "cut", "too few rows", "no numbers", "not packed"],
)
async def test_shares_of_rows_unpack_to_what_their_batch_has_and_to_no_more(body: bytes) -> None:
    batch = Batch("s", 1, parts=(StagedPart("k", "0" * 64, 3, 10),), assigned="admissions/x")
    assert _shares(batch, zlib.compress(msgspec.msgpack.encode([[0, -1, 2**40]]))) == [[0, -1, 2**40]]
    with pytest.raises(CorruptQueueError, match="admissions/x"):
        _shares(batch, body)
