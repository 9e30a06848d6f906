"""Leases of whole zones: by monotonic clocks, through restarts and failovers, on both layouts, and on a ring."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from casque import NewJob, Queue, ZoneLeaseLostError
from casque.cli.main import app as commands
from casque.client.opening import Parts
from casque.client.queue import DEFAULTS
from casque.client.staging import StagedJobs
from casque.clock import Random
from casque.engine.zone_watch import ZoneWatch
from casque.errors import InvalidInputError
from casque.ring.numbers import inner
from casque.service.requests import Dequeue, Enqueue, LeaseZone, Nack, ReleaseZone
from casque.state import Expire, Limits, State
from casque.state.ring import home
from casque.storage.memory import MemoryStore
from casque.storage.port import Store
from casque.testing.clock import ManualClock
from casque.testing.gated import GatedStore
from casque.types import JobRecord, JobSpec, JobState, ZoneLease

SEEDS = count(7)
BOTH = pytest.mark.parametrize("layout", ["document", "log"])


@asynccontextmanager
async def opened(store: Store, clock: ManualClock, **settings: Any) -> AsyncIterator[Queue[bytes]]:
    queue = await Queue.open(store, clock=clock, rng=Random(next(SEEDS)), **settings).__aenter__()
    try:
        yield queue
    finally:
        closing = asyncio.ensure_future(queue.__aexit__(None, None, None))
        for _ in range(1_000):
            if closing.done():
                break
            await clock.advance(0.1)
        await closing


@BOTH
@pytest.mark.parametrize("leaves", [False, True], ids=["stays open", "is closed"])
async def test_a_zone_whose_caller_left_before_it_had_the_lease_is_released(layout: Any, leaves: bool) -> None:
    """As a job is given back whose claim came too late."""
    store, clock = GatedStore(MemoryStore()), ManualClock()
    async with opened(store, clock, layout=layout) as other:
        await other.enqueue("send", b"", zone="acme")
        async with opened(store, clock) as queue:
            store.shut()
            asking = asyncio.create_task(queue.lease_zone("acme"))
            await store.arrived.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            store.open()
            if not leaves:
                await settled(clock, lambda: not queue._releasing)
        assert await holder(other) is None
        await leased(other)


@BOTH
async def test_a_lease_that_was_asked_for_under_a_request_id_waits_for_the_caller_to_ask_again(layout: Any) -> None:
    store, clock = GatedStore(MemoryStore()), ManualClock()
    async with opened(store, clock, layout=layout) as queue:
        await queue.enqueue("send", b"", zone="acme")
        store.shut()
        asking = asyncio.create_task(queue.lease_zone("acme", request_id="r"))
        await store.arrived.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        store.open()
        lease = await queue.lease_zone("acme", request_id="r")
        assert lease is not None
        assert await holder(queue) == lease.token


async def settled(clock: ManualClock, condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        await clock.advance(0.01)
    raise AssertionError("it did not come to that")


async def leased(queue: Queue[bytes], zone: str = "acme", seconds: float = 10) -> ZoneLease:
    lease = await queue.lease_zone(zone, lease=seconds)
    assert lease is not None
    return lease


async def holder(queue: Queue[bytes], zone: str = "acme") -> int | None:
    """The token of whoever has it."""
    standings = await queue.zones(zone)
    return standings[0].lease.token if standings and standings[0].lease is not None else None


@BOTH
async def test_a_zone_goes_to_the_next_consumer_when_its_lease_ran_out_even_if_nobody_calls(layout: str) -> None:
    clock = ManualClock()
    async with opened(MemoryStore(), clock, layout=layout) as q:
        await q.enqueue("a", b"1", zone="acme")
        lost = await leased(q)
        await clock.advance(9)
        assert await holder(q) == lost.token
        await q.heartbeat_zone(lost)
        await clock.advance(9)
        assert await holder(q) == lost.token
        assert await q.dequeue() == []

        await clock.advance(2)

        assert await holder(q) is None
        again = await leased(q)
        assert again.token > lost.token
        with pytest.raises(ZoneLeaseLostError):
            await q.dequeue(zone_lease=lost)
        with pytest.raises(ZoneLeaseLostError):
            await q.heartbeat_zone(lost)
        await q.release_zone(lost)
        assert await holder(q) == again.token


@BOTH
async def test_a_wall_clock_that_jumps_takes_no_zone_away(layout: str) -> None:
    clock = ManualClock()
    async with opened(MemoryStore(), clock, layout=layout) as q:
        await q.enqueue("a", b"1", zone="acme")
        lease = await leased(q)
        clock.jump_wall(365 * 24 * 3600)
        await clock.advance(9)
        await q.heartbeat_zone(lease)
        clock.jump_wall(-2 * 365 * 24 * 3600)
        await clock.advance(9)
        assert await holder(q) == lease.token


@BOTH
async def test_whoever_opens_the_queue_gives_a_zone_lease_its_full_length(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, clock, layout=layout) as gone:
        await gone.enqueue("a", b"1", zone="acme")
        lease = await leased(gone)
    await clock.advance(3600)
    async with opened(store, clock, layout=layout) as q:
        await clock.advance(9)
        assert await holder(q) == lease.token
        await clock.advance(3)
        assert await holder(q) is None


async def test_heartbeats_through_another_process_keep_a_zone() -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, clock) as consumer, opened(store, clock) as other:
        await consumer.enqueue("a", b"1", zone="acme")
        lease = await leased(consumer)
        assert await holder(other) == lease.token
        for _ in range(10):
            await clock.advance(6)
            await consumer.heartbeat_zone(lease)
        assert await holder(other) == lease.token
        assert await other.lease_zone("acme") is None


async def test_a_zone_that_is_left_wakes_whoever_waits_for_its_jobs() -> None:
    clock = ManualClock()
    async with opened(MemoryStore(), clock) as q:
        await q.enqueue("a", b"1", zone="acme")
        lease = await leased(q)
        waiting = asyncio.create_task(q.dequeue(wait=60))
        await clock.advance(1)
        assert not waiting.done()
        await q.release_zone(lease)
        [job] = await waiting
        assert job.zone == "acme"

        await q.enqueue("a", b"2", zone="acme")
        await leased(q)
        waiting = asyncio.create_task(q.dequeue(wait=60))
        await clock.advance(12)
        assert [job.zone for job in await waiting] == ["acme"]


async def test_a_leased_fifo_zone_still_hands_out_one_job_at_a_time() -> None:
    clock = ManualClock()
    async with opened(MemoryStore(), clock) as q:
        await q.enqueue_many([NewJob("a", b"%d" % n, zone="line", fifo=True) for n in range(2)])
        lease = await leased(q, "line")
        [first] = await q.dequeue(batch_size=10, zone_lease=lease)
        assert await q.dequeue(batch_size=10, zone_lease=lease) == []
        await q.release_zone(lease)
        assert await q.peek_zones() == []  # its job is at work: nothing of it may run
        assert await q.dequeue() == []
        await first.ack()
        assert [zone.fifo for zone in await q.peek_zones()] == [True]


def test_a_release_that_did_not_land_leaves_the_zone_leased() -> None:
    state = State()
    state.execute(Enqueue((JobSpec("1", "a", b"", zone="acme"),)), 1)
    lease = state.execute(LeaseZone("acme", 1_000, "w"), 1)
    state.commit(writer="w", batch=1, at_ms=1)
    state.execute(ReleaseZone("acme", lease.token), 2)
    assert state.execute(Dequeue(None, 1, 1_000), 2) != []
    state.rollback()
    assert state.zone_leases == {"acme": lease}
    assert state.execute(Dequeue(None, 1, 1_000), 2) == []
    [job] = state.execute(Dequeue(None, 1, 1_000, zone_lease=("acme", lease.token)), 2)
    assert job.id == "1"


def test_there_is_an_end_to_the_zones_that_are_leased() -> None:
    state = State(Limits(zone_leases_max=1))
    state.execute(Enqueue(tuple(JobSpec(z, "a", b"", zone=z) for z in "xy")), 1)
    assert state.execute(LeaseZone("x", 1_000), 1) is not None
    with pytest.raises(InvalidInputError, match="1 zones are leased already"):
        state.execute(LeaseZone("y", 1_000), 1)


# --- On a ring ---


async def a_ring(shards: int) -> MemoryStore:
    store = MemoryStore()
    assert await Parts(store, DEFAULTS).builder().create(shards)
    return store


async def test_the_token_of_a_zone_lease_tells_its_shard() -> None:
    store, clock = await a_ring(4), ManualClock()
    async with opened(store, clock) as q:
        await q.enqueue("a", b"1", zone="globex")
        lease = await leased(q, "globex")
        assert inner(lease.token)[1] == home("globex", 4)
        assert await holder(q, "globex") == lease.token


async def test_a_leased_zone_stays_where_it_is_while_the_ring_grows() -> None:
    """Otherwise its next job would make it elsewhere, where somebody else could have it, too."""
    store, clock = await a_ring(2), ManualClock()
    zone = next(name for name in map(str, range(100)) if home(name, 2) != home(name, 16))
    async with opened(store, clock) as q, opened(store, clock) as other:
        await q.enqueue("a", b"1", zone=zone)
        lease = await leased(q, zone)
        [job] = await q.dequeue(zone_lease=lease)
        await job.ack()
        await Parts(store, DEFAULTS).builder().resize(16)
        for queue in (q, other):
            assert queue._ring is not None
            await queue._ring._shards.refresh()

        await other.enqueue("a", b"2", zone=zone)

        assert await other.lease_zone(zone) is None
        assert await other.dequeue() == []
        [job] = await q.dequeue(zone_lease=lease)
        await job.ack()
        await q.release_zone(lease)
        await other.enqueue("a", b"3", zone=zone)
        moved = await leased(other, zone)
        assert inner(moved.token)[1] == home(zone, 16)


async def test_a_leased_zone_that_is_empty_stays_where_it_is_when_jobs_are_admitted() -> None:
    """Otherwise the admission would make it elsewhere, and a second lease could be had there."""
    store, clock = await a_ring(2), ManualClock()
    zone = next(name for name in map(str, range(100)) if home(name, 2) != home(name, 16))
    async with opened(store, clock) as q, opened(store, clock) as other:
        await q.enqueue("a", b"1", zone=zone)
        lease = await leased(q, zone)
        [job] = await q.dequeue(zone_lease=lease)
        await job.ack()
        await Parts(store, DEFAULTS).builder().resize(16)
        staging = Parts(store, DEFAULTS).staging()
        assert staging is not None
        part = await staging.put(StagedJobs(["admitted"], "a", b"2", zones=zone), "t")

        assert (await other.admit("nightly", 1, [part])).jobs == 1

        assert await other.lease_zone(zone) is None
        [admitted] = await q.dequeue(zone_lease=lease)
        assert (admitted.id, inner(admitted.token)[1]) == ("admitted", home(zone, 2))


async def test_a_lease_that_is_asked_for_again_is_not_given_at_the_zones_next_home() -> None:
    store, clock = await a_ring(2), ManualClock()
    zone = next(name for name in map(str, range(100)) if home(name, 2) != home(name, 16))
    async with opened(store, clock) as q:
        await q.enqueue("a", b"1", zone=zone)
        lease = await q.lease_zone(zone, request_id="r1")
        assert lease is not None
        [job] = await q.dequeue(zone_lease=lease)
        await job.ack()
        await q.release_zone(lease)
        await Parts(store, DEFAULTS).builder().resize(16)
        assert q._ring is not None
        await q._ring._shards.refresh()
        await q.enqueue("a", b"2", zone=zone)
        assert await q.lease_zone(zone, request_id="r1") is None
        assert await q.lease_zone(zone, request_id="r2") is not None


async def test_every_peek_begins_at_another_shard() -> None:
    store, clock = await a_ring(4), ManualClock()
    async with opened(store, clock) as q:
        await q.enqueue_many([NewJob("a", b"", zone=f"z{n}") for n in range(200)])
        seen = [{home(zone.zone, 4) for zone in await q.peek_zones(limit=10)} for _ in range(4)]
        assert sorted(token for [token] in seen) == [0, 1, 2, 3]
        assert len(await q.peek_zones(limit=1_000)) == 200


# --- Watching and peeking, by themselves ---


def with_zones(*names: str) -> State:
    state = State()
    state.execute(Enqueue(tuple(JobSpec(name, "a", b"", zone=name) for name in names)), 1)
    return state


def test_a_lease_that_ended_is_watched_no_longer_and_one_that_began_again_anew() -> None:
    state, watch = with_zones("x", "y"), ZoneWatch()
    for zone, length in (("x", 100), ("y", 300)):
        state.execute(LeaseZone(zone, length), 1)
    watch.resync(state, 0)
    assert watch.next_deadline_ms() == 100
    state.execute(ReleaseZone("x", state.zone_leases["x"].token), 2)
    watch.note(["x"], state, 50)
    assert watch.next_deadline_ms() == 300
    again = state.execute(LeaseZone("x", 100), 3)
    watch.note(["x"], state, 60)
    assert watch.due(159, state) == []
    [lost] = watch.due(160, state)
    assert (lost.zone, lost.token) == ("x", again.token)
    assert watch.due(160, state) == [lost]  # the commit that takes it back may fail
    watch.put_off(1_000)
    assert watch.due(1_159, state) == []
    assert {one.zone for one in watch.due(9_999, state)} == {"x", "y"}
    state.execute(Expire((lost,)), 4)
    watch.again(lost, state, 9_999)
    assert [one.zone for one in watch.due(9_999, state)] == ["y"]


@pytest.mark.parametrize("seed", range(8))
def test_a_peek_is_what_a_look_at_every_job_would_tell(seed: int) -> None:
    """Also of zones with so many jobs that they lie in lanes."""
    rng, state, now_ms = Random(seed), State(), 1_000
    zones = [f"z{n}" for n in range(8)]
    held: list[JobRecord] = []
    for number in range(1_500):
        now_ms += rng.randrange(3)
        match rng.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                later = now_ms + rng.randrange(40) if rng.randrange(4) == 0 else None
                spec = JobSpec(f"{number}", "ab"[rng.randrange(2)], b"", zone=rng.choice(zones), run_at_ms=later)
                state.execute(Enqueue((spec,)), now_ms)
            case 5 | 6 | 7:
                held += state.execute(Dequeue(None, rng.randrange(1, 4), 10), now_ms)
            case 8 if held:
                job = held.pop(rng.randrange(len(held)))
                state.execute(Nack(job.id, job.token, rng.randrange(30)), now_ms)
            case _:
                zone = rng.choice(zones)
                if (lease := state.zone_leases.get(zone)) is None:
                    state.execute(LeaseZone(zone, 10), now_ms)
                else:
                    state.execute(ReleaseZone(zone, lease.token), now_ms)
        if rng.randrange(3) == 0:
            state.rollback()
            held = [job for job in held if state.jobs.get(job.id) is job]
        else:
            state.commit(writer="w", batch=number, at_ms=now_ms)
        limit = rng.randrange(1, 10)
        due: dict[str, int] = {}
        for job in state.jobs.values():
            zone = job.spec.zone or ""
            waits = job.state in (JobState.READY, JobState.DELAYED) and job.due_ms <= now_ms
            if (waits or job.state is JobState.READY) and zone not in state.zone_leases:
                due[zone] = min(job.due_ms, due.get(zone, job.due_ms))
        expected = sorted((at_ms, zone) for zone, at_ms in due.items())[:limit]
        peeked = state.peek(None, None, limit, now_ms)
        assert [(one.next_ms, one.zone) for one in peeked if one.due] == expected


async def ran(*command: str) -> int:
    """In a thread: commands have a loop of their own."""
    return (await asyncio.to_thread(CliRunner().invoke, commands, list(command))).exit_code


async def test_a_lease_is_there_after_a_conversion_and_a_queue_that_has_one_is_whole(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    async with Queue.open(url, layout="document") as queue:
        await queue.enqueue("a", b"1", zone="acme")
        lease = await leased(queue, seconds=3600)
    for layout in ("log", "document", "log"):
        assert await ran("convert", url, "--to", layout) == 0
        async with Queue.open(url) as queue:
            assert await holder(queue) == lease.token
    async with Queue.open(url) as queue:
        await queue.heartbeat_zone(lease)
    assert await ran("queue", "verify", url) == 0
