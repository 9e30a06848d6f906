"""A ring of shards: where jobs go, how they are found again, and what a change of the ring does to all of it."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from casque import NewJob, Queue
from casque.client.opening import Parts
from casque.client.queue import DEFAULTS
from casque.clock import yield_once
from casque.codec.head import KEY
from casque.codec.ring import SHARDS_MAX, RingHead, decode_ring, encode_ring
from casque.errors import (
    CorruptQueueError,
    InvalidInputError,
    JobNotFoundError,
    LeaseLostError,
    QueueDrainingError,
    ReadOnlyError,
    RingError,
    StorageError,
    UnknownOutcomeError,
    ZoneMovedError,
)
from casque.ring.forgetting import SETTLED_MS
from casque.ring.numbers import inner
from casque.ring.shards import in_time, worst
from casque.service import EventKind, Lease, Outcome
from casque.service.requests import Ack, Dequeue, Enqueue
from casque.state import AdoptRing, RingView, SetSchedule, State, Tick
from casque.state.ring import home
from casque.storage.memory import MemoryStore
from casque.storage.port import Read
from casque.testing import ManualClock
from casque.types import Gate, JobSpec, JobState, Schedule, ScheduleSpec
from tests.acceptance.test_ring_processes import overlaps

pytestmark = pytest.mark.asyncio


def parts_of(store: MemoryStore, clock: ManualClock | None = None) -> Parts:
    return Parts(store, DEFAULTS, clock=clock)


async def a_ring(shards: int = 4) -> MemoryStore:
    store = MemoryStore()
    assert await parts_of(store).builder().create(shards)
    return store


async def resize(store: MemoryStore, shards: int) -> RingHead:
    return await parts_of(store).builder().resize(shards)


async def notice(queue: Queue[bytes]) -> None:
    """What happens by itself within a second: the process looks at the root."""
    assert queue._ring is not None
    await queue._ring._shards.refresh()


async def without_shard(queue: Queue[bytes], token: int) -> None:
    """One of the shards cannot be asked."""
    assert queue._ring is not None
    await (await queue._ring._shards.shard(token)).stop()


async def states_of(store: MemoryStore) -> list[State]:
    head = await parts_of(store).root().read()
    return [await parts_of(store).shard(token).read() for token in range(head.shards)]


async def zones_in(store: MemoryStore) -> dict[str, list[int]]:
    """The shards that have jobs of each zone."""
    found: dict[str, list[int]] = {}
    for token, state in enumerate(await states_of(store)):
        for zone in {job.spec.zone for job in state.jobs.values() if job.spec.zone is not None}:
            found.setdefault(zone, []).append(token)
    return found


async def work_off(queue: Queue[bytes]) -> list[bytes]:
    done: list[bytes] = []
    while jobs := await queue.dequeue(batch_size=100):
        assert await queue.settle(jobs) == [None] * len(jobs)
        done += [job.payload for job in jobs]
    return done


def a_moving_zone(before: int, after: int) -> str:
    """A zone whose home is another one on the second ring."""
    return next(zone for n in range(1000) if home(zone := f"zone-{n}", before) != home(zone, after))


# --- Where jobs go ---


async def test_the_jobs_of_a_zone_are_in_one_shard_and_zones_are_in_all_of_them() -> None:
    store = await a_ring(4)
    async with Queue.open(store) as queue:
        for n in range(60):
            await queue.enqueue("task", b"%d" % n, zone=f"z{n % 20}")
        await queue.enqueue_many([NewJob("task", b"", zone=f"z{n}") for n in range(20)])

    found = await zones_in(store)

    assert found == {f"z{n}": [home(f"z{n}", 4)] for n in range(20)}
    assert {token for tokens in found.values() for token in tokens} == {0, 1, 2, 3}


async def test_jobs_without_a_zone_are_spread_and_those_of_one_call_stay_together() -> None:
    store = await a_ring(4)
    async with Queue.open(store) as queue:
        for _ in range(8):
            await queue.enqueue_many([("task", b"x")] * 5)

    assert [len(state.jobs) for state in await states_of(store)] == [10, 10, 10, 10]


async def test_numbers_and_tokens_are_unique_and_tell_the_shard() -> None:
    store = await a_ring(4)
    async with Queue.open(store) as queue:
        added = await queue.enqueue_many([NewJob("task", b"", zone=f"z{n}") for n in range(20)])
        claimed = await queue.dequeue(batch_size=20)

        assert len({job.record.sequence for job in added}) == 20
        assert len({job.token for job in claimed}) == 20
        for job in claimed:
            assert job.zone is not None
            assert inner(job.token)[1] == inner(job.record.sequence)[1] == home(job.zone, 4)
        listed = await queue.jobs()
        assert sorted(job.id for job in listed) == sorted(job.id for job in added)
        paged: list[str] = []
        while page := await queue.jobs(limit=3, after=listed[len(paged) - 1].record.sequence if paged else 0):
            paged += [job.id for job in page]
        assert paged == [job.id for job in listed]


async def test_a_unique_key_outside_all_zones_is_unique_on_the_whole_ring_also_after_it_has_grown() -> None:
    store = await a_ring(4)
    key = a_moving_zone(4, 16)
    async with Queue.open(store) as queue:
        first = await queue.enqueue("task", b"first", key=key)
        assert (await queue.enqueue("task", b"again", key=key)).id == first.id
        await resize(store, 16)
        await notice(queue)

        assert (await queue.enqueue("task", b"again", key=key)).id == first.id

        assert await work_off(queue) == [b"first"]
        await queue.enqueue("task", b"second", key=key)
    assert [len(state.jobs) for state in await states_of(store)].index(1) == home(key, 16)


async def test_a_call_for_many_zones_that_is_repeated_adds_once_also_after_the_ring_has_changed() -> None:
    store = await a_ring(4)
    jobs = [NewJob("task", b"%d" % n, zone=f"z{n % 9}") for n in range(30)] + [NewJob("task", b"none")] * 3
    async with Queue.open(store) as queue:
        first = await queue.enqueue_many(jobs, request_id="bulk")
        await queue.enqueue("task", b"alone", request_id="alone")
        assert len(await work_off(queue)) == 34, "its zones are gone by then"
        await resize(store, 16)
        await notice(queue)

        again = await queue.enqueue_many(jobs, request_id="bulk")
        await queue.enqueue("task", b"alone", request_id="alone")

        assert [job.id for job in again] == [job.id for job in first]
        assert (await queue.stats()).totals.enqueued == 34


async def test_a_call_whose_zones_fare_differently_says_so() -> None:
    store = await a_ring(4)
    here, there = (next(z for n in range(99) if home(z := f"z{n}", 4) == token) for token in (1, 2))
    async with Queue.open(store) as queue:
        await queue.stats()
    async with Queue.open(store) as other:
        assert other._ring is not None
        shard = await other._ring._shards.shard(1)
        await shard.service.set_gate(Gate.DRAINING)

        with pytest.raises(UnknownOutcomeError, match="1 of 2 jobs were added"):
            await other.enqueue_many([NewJob("task", b"", zone=here), NewJob("task", b"", zone=there)])
        with pytest.raises(QueueDrainingError):
            await other.enqueue("task", b"", zone=here)

    assert await zones_in(store) == {there: [2]}


# --- Working ---


async def test_a_batch_is_filled_from_several_shards_and_no_shard_is_left_out() -> None:
    store = await a_ring(8)
    async with Queue.open(store) as queue:
        await queue.enqueue_many([NewJob("task", b"%d" % n, zone=f"z{n}") for n in range(100)])

        assert len(await queue.dequeue(batch_size=90)) == 90
        assert len(await queue.dequeue(batch_size=90)) == 10
        await queue.enqueue_many([NewJob("task", b"", zone=f"z{n}") for n in range(1000)])
        shards = [inner((await queue.dequeue())[0].token)[1] for _ in range(16)]
        assert Counter(shards) == dict.fromkeys(range(8), 2), "each call begins one further"


async def test_whoever_waits_gets_the_job_whichever_shard_it_comes_to_and_leaves_the_others_alone() -> None:
    store = await a_ring(4)
    async with Queue.open(store) as queue:
        for token in range(4):
            zone = next(z for n in range(99) if home(z := f"z{n}", 4) == token)
            waiting = asyncio.create_task(queue.dequeue(wait=60))
            await until_parked(queue, 4)
            await queue.enqueue("task", b"here", zone=zone)
            [job] = await waiting
            assert (job.zone, inner(job.token)[1]) == (zone, token)
            await job.ack()
        assert (await queue.stats()).totals.running == 0


async def test_more_than_was_asked_for_goes_back_when_several_shards_answer_at_once() -> None:
    store = await a_ring(4)
    async with Queue.open(store) as queue, Queue.open(store) as producer:
        waiting = asyncio.create_task(queue.dequeue(batch_size=2, wait=60))
        await until_parked(queue, 4)
        await producer.enqueue_many([NewJob("task", b"", zone=f"z{n}") for n in range(40)])
        claimed = await waiting
        assert 1 <= len(claimed) <= 2
        await queue.settle(claimed)
        done = len(claimed) + len(await work_off(queue))
        while done < 40:  # what goes back is there in a moment
            [job] = await queue.dequeue(wait=60)
            await job.ack()
            done += 1
        assert (await queue.stats()).totals.done == 40


async def test_what_goes_back_of_a_request_has_gone_back_when_it_is_answered() -> None:
    store = await a_ring(4)
    async with Queue.open(store) as queue, Queue.open(store) as other:
        waiting = asyncio.create_task(queue.dequeue(batch_size=2, wait=60, request_id="r"))
        await until_parked(queue, 4)
        # Through the same process: its shards answer at the same moment, with two jobs each.
        await queue.enqueue_many([NewJob("task", b"", zone=f"z{n}") for n in range(40)])
        first = await waiting
        assert len(first) == 2
        assert sum(state.running for state in await states_of(store)) == 2
        again = await other.dequeue(batch_size=2, request_id="r")
        assert {(job.id, job.token) for job in again} == {(job.id, job.token) for job in first}


async def test_whoever_waits_hears_of_shards_that_are_made_meanwhile() -> None:
    store, clock = await a_ring(1), ManualClock()
    async with Queue.open(store, clock=clock) as queue, Queue.open(store) as producer:
        waiting = asyncio.create_task(queue.dequeue(wait=600))
        await until_parked(queue, 1)
        await resize(store, 8)
        await notice(producer)
        zone = next(z for n in range(99) if home(z := f"z{n}", 8) == 5)
        await producer.enqueue("task", b"far away", zone=zone)
        while not waiting.done():
            await clock.advance(0.5)
        assert [job.payload for job in waiting.result()] == [b"far away"]


async def test_a_dequeue_that_is_repeated_gives_the_same_claims_of_all_shards() -> None:
    store = await a_ring(4)
    async with Queue.open(store) as queue:
        await queue.enqueue_many([NewJob("task", b"", zone=f"z{n}") for n in range(40)])
        first = await queue.dequeue(batch_size=30, request_id="r")
        async with Queue.open(store) as other:
            again = await other.dequeue(batch_size=30, request_id="r")
        assert {(job.id, job.token) for job in again} == {(job.id, job.token) for job in first}
        assert len(first) == 30


async def test_claims_are_settled_by_token_in_any_process_and_by_id_wherever_the_job_is() -> None:
    store = await a_ring(4)
    async with Queue.open(store) as queue, Queue.open(store) as other:
        await queue.enqueue_many([NewJob("task", b"%d" % n, zone=f"z{n}", max_attempts=1) for n in range(12)])
        claimed = await queue.dequeue(batch_size=12)
        a, b, c, d, kept, *rest = claimed
        await other.ack(a.id, a.token)
        await other.ack(b.id)
        await other.heartbeat(c.id, c.token)
        await other.nack(c.id, c.token, error="boom")
        await other.retry(c.id)
        await other.cancel(d.id)
        with pytest.raises(LeaseLostError) as lost:
            await other.ack(rest[0].id, rest[0].token + 1)
        assert lost.value.token == rest[0].token + 1
        with pytest.raises(LeaseLostError):
            await other.ack(rest[0].id, rest[0].token + SHARDS_MAX)
        with pytest.raises(JobNotFoundError):
            await other.ack(a.id, a.token)
        with pytest.raises(JobNotFoundError):
            await other.cancel("nobody")
        outcomes = [Outcome(job.id, job.token) for job in rest]
        wrong = [Outcome("nobody", 7), Outcome(kept.id, kept.token + 2 * SHARDS_MAX)]
        beats = await other.heartbeats([Lease(rest[0].id, rest[0].token), Lease("nobody", 9), Lease(rest[1].id)])
        assert [type(one).__name__ for one in beats] == ["NoneType", "JobNotFoundError", "NoneType"]
        first = await other.settle(outcomes + wrong, request_id="s")
        again = await queue.settle(outcomes + wrong, request_id="s")
        assert first[: len(rest)] == again[: len(rest)] == [None] * len(rest)
        assert [type(one).__name__ for one in first[len(rest) :]] == ["JobNotFoundError", "LeaseLostError"]
        totals = (await queue.stats()).totals
        assert (totals.done, totals.cancelled, totals.ready, totals.running) == (9, 1, 1, 1)


async def test_the_archive_is_that_of_all_shards_entered_or_not() -> None:
    store = await a_ring(4)
    async with Queue.open(store) as queue:
        await queue.enqueue_many([NewJob("task", b"%d" % n, zone=f"z{n}") for n in range(12)])
        tokens = {job.id: job.token for job in await queue.dequeue(batch_size=12)}
        await queue.settle([Outcome(job_id, token) for job_id, token in tokens.items()])
    archived = [job async for job in Queue.open(store).archive()]
    async with Queue.open(store) as queue:
        assert [job async for job in queue.archive()] == archived
    assert {job.id: job.token for job in archived} == tokens
    assert len({(job.id, job.position) for job in archived}) == 12
    assert [job async for job in Queue.open(await a_ring(2)).archive()] == []


# --- A ring that changes ---


async def test_zones_that_have_jobs_stay_and_others_come_to_their_new_home() -> None:
    store = await a_ring(4)
    zone = a_moving_zone(4, 16)
    async with Queue.open(store) as queue:
        await queue.enqueue("task", b"1", zone=zone)
        head = await resize(store, 16)
        assert (head.generation, head.sizes, head.shards) == (2, (4, 16), 16)
        await notice(queue)

        await queue.enqueue("task", b"2", zone=zone)
        assert await zones_in(store) == {zone: [home(zone, 4)]}
        [one] = await queue.dequeue()
        await one.ack()
        await queue.enqueue("task", b"3", zone=zone)
        assert await zones_in(store) == {zone: [home(zone, 4)]}, "as long as one of its jobs is there"
        assert await work_off(queue) == [b"2", b"3"]
        await queue.enqueue("task", b"4", zone=zone)
        assert await zones_in(store) == {zone: [home(zone, 16)]}


async def test_a_zone_with_a_dead_job_stays_because_that_may_be_given_fresh_attempts() -> None:
    store = await a_ring(4)
    zone = a_moving_zone(4, 16)
    async with Queue.open(store) as queue:
        job = await queue.enqueue("task", b"1", zone=zone, max_attempts=1)
        [claimed] = await queue.dequeue()
        await claimed.nack(error="boom")
        await resize(store, 16)
        await notice(queue)
        await queue.enqueue("task", b"2", zone=zone)
        await queue.retry(job.id)
        assert await zones_in(store) == {zone: [home(zone, 4)]}
        assert sorted(await work_off(queue)) == [b"1", b"2"]


async def test_whoever_knows_an_old_ring_is_put_right_by_the_shards() -> None:
    store = await a_ring(4)
    zone = a_moving_zone(4, 16)
    async with Queue.open(store) as old, Queue.open(store) as new:
        await old.enqueue("task", b"0", zone="another")
        await resize(store, 16)
        await notice(new)
        await new.enqueue("task", b"1", zone=zone)
        assert old._ring is not None
        assert old._ring._shards.head.generation == 1

        await old.enqueue("task", b"2", zone=zone)

        assert await zones_in(store) == {zone: [home(zone, 16)], "another": [home("another", 4)]}
        assert sorted(await work_off(new)) == [b"0", b"1", b"2"]


async def test_a_ring_that_shrinks_empties_its_last_shards() -> None:
    store = await a_ring(8)
    async with Queue.open(store) as queue:
        await queue.enqueue_many([NewJob("task", b"%d" % n, zone=f"z{n}") for n in range(50)])
        await resize(store, 2)
        await notice(queue)
        await queue.enqueue_many([("task", b"x")] * 4)
        await queue.enqueue_many([NewJob("task", b"new", zone=f"n{n}") for n in range(50)])
        for zone, tokens in (await zones_in(store)).items():
            assert tokens == [home(zone, 2 if zone.startswith("n") else 8)]
        assert len(await work_off(queue)) == 104
        await queue.enqueue_many([NewJob("task", b"%d" % n, zone=f"z{n}") for n in range(50)])
        assert await zones_in(store) == {f"z{n}": [home(f"z{n}", 2)] for n in range(50)}
        assert (await queue.stats()).totals.done == 104


async def test_sizes_of_the_past_are_forgotten_when_nothing_needs_them_any_more() -> None:
    store, clock = await a_ring(4), ManualClock()
    builder = parts_of(store, clock).builder()
    zone = a_moving_zone(4, 16)
    async with Queue.open(store, clock=clock) as queue:
        await queue.enqueue("task", b"1", zone=zone)
        await builder.resize(16)
        await clock.advance(SETTLED_MS / 1000)
        assert (await builder.tidy()).sizes == (4, 16), "a zone is where only the old size finds it"
        await work_off(queue)
        assert (await builder.tidy()).sizes == (4, 16), "a request may be repeated"
        await clock.advance(SETTLED_MS / 1000)
        head = await builder.tidy()
        assert (head.sizes, head.generation) == ((16,), 2)
        await notice(queue)
        await queue.enqueue("task", b"2", zone=zone)
    assert await zones_in(store) == {zone: [home(zone, 16)]}


async def test_a_clock_that_is_ahead_forgets_no_size_of_the_past() -> None:
    """Otherwise a request that was carried out where only that size looks would be carried out again."""
    store, clock, fast = await a_ring(4), ManualClock(), ManualClock()
    zone = a_moving_zone(4, 16)
    async with Queue.open(store, clock=clock) as queue, Queue.open(store, clock=fast) as other:
        first = await queue.enqueue("task", b"1", zone=zone, request_id="r")
        await parts_of(store, clock).builder().resize(16)
        await work_off(queue)
        await parts_of(store, clock).builder().tidy()
        fast.jump_wall(10 * SETTLED_MS / 1000)
        assert (await parts_of(store, fast).builder().tidy()).sizes == (4, 16)
        await notice(other)
        again = await other.enqueue("task", b"1", zone=zone, request_id="r")
        assert again.id == first.id
        assert (await queue.stats()).totals.enqueued == 1


async def test_a_process_that_has_the_ring_open_forgets_older_sizes() -> None:
    store, clock = await a_ring(4), ManualClock()
    async with Queue.open(store, clock=clock) as queue:
        await parts_of(store, clock).builder().resize(16)
        await notice(queue)
        await clock.advance(SETTLED_MS / 1000)
        await parts_of(store, clock).builder().tidy()
        await notice(queue)
        assert (await parts_of(store, clock).root().read()).sizes == (4, 16)
        await clock.advance(SETTLED_MS / 1000)
        await notice(queue)
        head = await parts_of(store, clock).root().read()
        assert (head.sizes, head.cleared_at) == ((16,), msgspec.UNSET)


@pytest.mark.parametrize("verb", ["cancel", "ack", "retry"])
async def test_what_is_repeated_goes_to_the_shard_that_remembers_it(verb: str) -> None:
    """And not to another job that has the same id by now."""
    store = await a_ring(2)
    here, there = (next(f"z{n}" for n in range(99) if home(f"z{n}", 2) == token) for token in (1, 0))
    async with Queue.open(store) as queue:
        service = queue._service
        await service.enqueue([JobSpec("1", "task", b"", max_attempts=1, zone=here)])
        if verb != "cancel":
            [job] = await queue.dequeue("task")
            if verb == "retry":
                await job.nack()
        await getattr(service, verb)("1", request_id="r")
        if verb == "retry":
            await queue.cancel("1")
        await service.enqueue([JobSpec("1", "task", b"", max_attempts=1, zone=there)])
        [other] = await queue.dequeue("task")
        if verb == "retry":
            await other.nack()
        before = await service.find("1")

        await getattr(service, verb)("1", request_id="r")

        assert before is not None
        assert await service.find("1") == before


async def test_a_request_is_known_where_its_zone_was_though_the_ring_was_resized_long_ago() -> None:
    store, clock = await a_ring(4), ManualClock()
    builder = parts_of(store, clock).builder()
    zone = a_moving_zone(4, 16)
    async with Queue.open(store, clock=clock) as queue:
        await queue.enqueue("task", b"1", zone=zone)
        await builder.resize(16)
        await notice(queue)
        await clock.advance(SETTLED_MS / 1000)
        first = await queue.enqueue("task", b"2", zone=zone, request_id="r")
        await work_off(queue)
        await builder.tidy()
        await notice(queue)
        again = await queue.enqueue("task", b"2", zone=zone, request_id="r")
        assert again.id == first.id
        assert (await queue.stats()).totals.enqueued == 2


async def test_a_resize_begins_anew_to_wait_for_older_sizes_to_be_forgotten() -> None:
    store, clock = await a_ring(4), ManualClock()
    builder = parts_of(store, clock).builder()
    await builder.resize(16)
    assert (await builder.tidy()).cleared_at == clock.wall_ms()
    assert (await builder.resize(8)).cleared_at is msgspec.UNSET
    await clock.advance(SETTLED_MS / 1000)
    assert (await builder.tidy()).sizes == (4, 16, 8)


async def test_rules_reach_shards_that_come_back_after_the_ring_had_shrunk() -> None:
    store, clock = await a_ring(4), ManualClock()
    builder = parts_of(store, clock).builder()
    async with Queue.open(store, clock=clock) as queue:
        await builder.resize(2)
        await builder.tidy()
        await clock.advance(SETTLED_MS / 1000)
        assert (await builder.tidy()).sizes == (2,)
        await notice(queue)
        await queue.set_zone("acme", paused=True)
        await queue.drain("mail")
        await builder.resize(4)
    for token in range(4):
        state = await parts_of(store, clock).shard(token).read()
        assert state.rules["acme"].paused
        assert state.gates.of("mail") is Gate.DRAINING


async def test_a_gate_that_reaches_only_some_shards_is_not_said_to_have_failed() -> None:
    async with Queue.open(await a_ring(2)) as queue:
        await without_shard(queue, 1)
        with pytest.raises(UnknownOutcomeError, match="some shards have done it"):
            await queue.pause("mail")


async def test_what_was_settled_is_told_though_nobody_can_look_for_the_rest() -> None:
    async with Queue.open(await a_ring(3)) as queue:
        zone = next(zone for n in range(99) if home(zone := f"z{n}", 3) == 0)
        await queue.enqueue("task", b"", zone=zone)
        [job] = await queue.dequeue("task")
        await without_shard(queue, 1)
        answers = await queue._service.settle([Outcome(job.id, job.token), Outcome("gone", job.token)])
        assert answers[0] is None
        assert isinstance(answers[1], JobNotFoundError)


async def test_if_one_part_of_a_call_is_in_doubt_all_of_it_is() -> None:
    failed, unknown = StorageError("slow down"), UnknownOutcomeError("no answer")
    assert worst([failed, unknown]) is unknown
    assert worst([failed, StorageError("again")]) is failed


async def test_a_dequeue_that_is_repeated_after_its_jobs_are_done_claims_nothing_new() -> None:
    async with Queue.open(await a_ring(4)) as queue:
        await queue.enqueue_many([NewJob("task", b"%d" % n, zone=f"z{n}") for n in range(8)])
        claimed = await queue.dequeue("task", batch_size=2, request_id="r")
        await queue.settle(claimed)
        assert await queue.dequeue("task", batch_size=2, request_id="r") == []


async def test_a_purge_that_is_repeated_purges_nothing_that_died_since() -> None:
    async with Queue.open(await a_ring(4)) as queue:
        for n in range(8):
            await queue.enqueue("task", b"", zone=f"z{n}", max_attempts=1)
        await (await queue.dequeue("task"))[0].nack()
        assert await queue.purge(request_id="r") == 1
        for job in await queue.dequeue("task", batch_size=7):
            await job.nack()
        assert await queue.purge(request_id="r") == 1


async def test_a_job_is_found_by_its_id_in_a_shard_that_this_process_has_not_heard_of() -> None:
    store, clock = await a_ring(2), ManualClock()
    zone = next(zone for n in range(99) if home(zone := f"z{n}", 8) > 1)
    async with Queue.open(store, clock=clock) as queue:
        await resize(store, 8)
        async with Queue.open(store) as other:
            first, second = [await other.enqueue("task", b"", zone=zone) for _ in range(2)]
            assert await queue.find(first.id) is not None
        assert await queue.find("nobody") is None

    async with Queue.open(store, clock=clock) as queue:
        await resize(store, 9)
        async with Queue.open(store) as other:
            newest = next(zone for n in range(99) if home(zone := f"n{n}", 9) == 8)
            job = await other.enqueue("task", b"", zone=newest)
        await queue.cancel(job.id)
        await queue.cancel(second.id)
        with pytest.raises(JobNotFoundError):
            await queue.cancel(job.id)


async def test_gates_hold_in_shards_that_are_made_later() -> None:
    store = await a_ring(2)
    async with Queue.open(store) as queue:
        await queue.drain("mail")
        await queue.pause("fax")
        await resize(store, 8)
        await notice(queue)
        for n in range(20):
            with pytest.raises(QueueDrainingError):
                await queue.enqueue("mail", b"", zone=f"z{n}")
            await queue.enqueue("fax", b"", zone=f"z{n}")
        assert await queue.dequeue(batch_size=30) == []
        assert (await queue.stats()).gates.of("fax") is Gate.PAUSED
        await queue.resume("fax")
        await queue.resume("mail")
        assert len(await queue.dequeue(batch_size=30)) == 20
        assert not (await queue.stats()).gates


async def test_the_rules_of_a_zone_are_there_before_it_is() -> None:
    store = await a_ring(2)
    zone = a_moving_zone(2, 8)
    async with Queue.open(store) as queue:
        await queue.set_zone(zone, running_max=1)
        await resize(store, 8)
        await notice(queue)
        await queue.enqueue_many([NewJob("task", b"%d" % n, zone=zone) for n in range(3)])
        await queue.enqueue("task", b"other", zone="other")
        [standing] = await queue.zones(zone)
        assert (standing.ready, standing.rules.running_max) == (3, 1)
        assert {one.zone for one in await queue.zones()} == {zone, "other"}
        claimed = await queue.dequeue(batch_size=10)
        assert sorted(job.payload for job in claimed) == [b"0", b"other"]
        assert await queue.dequeue(zone=zone, batch_size=10) == []
        await queue.settle(claimed)
        assert [job.payload for job in await queue.dequeue(zone=[zone, "other"], batch_size=10)] == [b"1"]


async def test_a_strict_zone_keeps_its_order_while_the_ring_grows() -> None:
    store = await a_ring(2)
    zone = a_moving_zone(2, 8)
    async with Queue.open(store) as queue:
        done: list[bytes] = []
        for n in range(6):
            await queue.enqueue("task", b"%d" % n, zone=zone, fifo=True)
            if n == 2:
                await resize(store, 8)
                await notice(queue)
            if n % 2:
                [job] = await queue.dequeue(batch_size=10)
                done.append(job.payload)
                await job.ack()
        while jobs := await queue.dequeue(batch_size=10):
            done += [job.payload for job in jobs]
            await queue.settle(jobs)
        assert done == [b"%d" % n for n in range(6)]


async def test_a_zone_is_never_in_two_shards_while_the_ring_changes_and_zones_run_empty() -> None:
    """Producers that notice nothing by themselves, workers, and a ring that grows and shrinks, all at once."""
    store = await a_ring(2)
    zones = [f"z{n}" for n in range(6)]
    added: Counter[bytes] = Counter()
    done: Counter[bytes] = Counter()
    stop = asyncio.Event()

    async def produce(queue: Queue[bytes], name: int) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            payload = b"%d/%d" % (name, n)
            await queue.enqueue("task", payload, zone=zones[n % len(zones)], request_id=payload.decode())
            added[payload] += 1

    async def work(queue: Queue[bytes]) -> None:
        while not stop.is_set():
            for job in await queue.dequeue(batch_size=5, wait=0.01):
                await job.ack()
                done[job.payload] += 1

    async def change(watcher: Queue[bytes]) -> None:
        for size in (3, 8, 2, 5, 2):
            await resize(store, size)
            await notice(watcher)
            before = sum(done.values())
            while sum(done.values()) < before + 40:
                await asyncio.gather(*(one.engine.look(seen) for one in await all_shards(watcher)))
        stop.set()

    held: dict[str, int] = {}

    def seen(state: State, _now_ms: int) -> None:
        assert state.ring is not None
        for zone in state.places.zones:
            held[zone] = state.ring.token

    async with several(store, 5) as (a, b, c, d, watcher):
        await asyncio.gather(produce(a, 1), produce(b, 2), work(c), work(d), change(watcher))
        done.update(await work_off(watcher))  # what came at last
    assert done == added
    assert set(added.values()) == {1}
    assert len(held) == len(zones)
    assert await overlaps(parts_of(store)) == []


async def all_shards(queue: Queue[bytes]) -> list[Any]:
    assert queue._ring is not None
    return await queue._ring._shards.every()


@asynccontextmanager
async def several(store: MemoryStore, count: int) -> AsyncIterator[list[Queue[bytes]]]:
    queues = [Queue.open(store) for _ in range(count)]
    for queue in queues:
        await queue.__aenter__()
    try:
        yield queues
    finally:
        for queue in queues:
            await queue.__aexit__(None, None, None)


async def until_parked(queue: Queue[bytes], shards: int) -> None:
    """Until somebody waits at all of its shards."""
    assert queue._ring is not None
    opening = queue._ring._shards._opening
    while sum(bool(one.done() and one.result().engine._parked) for one in opening.values()) < shards:  # type: ignore[attr-defined]
        await asyncio.sleep(0)  # noqa: TID251


# --- The rules of a shard ---


def a_shard(token: int, *, size: int, generation: int = 1) -> State:
    state = State()
    state.execute(AdoptRing(generation, size, token), 1)
    state.commit(writer="w", batch=1, at_ms=1)
    return state


def spec_of(zone: str | None, job_id: str = "1", key: str | None = None) -> JobSpec:
    return JobSpec(job_id, "task", b"", zone=zone, key=key)


async def test_a_shard_makes_only_zones_that_are_at_home_in_it_and_only_for_those_who_know_its_ring() -> None:
    zone = a_moving_zone(4, 16)
    state = a_shard(home(zone, 4), size=4)

    with pytest.raises(ZoneMovedError):
        state.execute(Enqueue((spec_of(zone),), None, 0), 2)
    with pytest.raises(ZoneMovedError):
        state.execute(Enqueue((spec_of(a_zone_elsewhere(home(zone, 4), 4)),), None, 1), 2)
    state.execute(Enqueue((spec_of(zone),), None, 1), 2)
    state.execute(AdoptRing(2, 16, home(zone, 4)), 2)
    state.execute(Enqueue((spec_of(zone, "2"),), None, 1), 2)  # it is here, whatever the caller knows
    state.commit(writer="w", batch=2, at_ms=2)
    for job in state.execute(Dequeue(None, 10, 1000), 3):
        state.execute(Ack(job.id, job.token), 3)
    with pytest.raises(ZoneMovedError) as refused:
        state.execute(Enqueue((spec_of(zone, "3"),), None, 2), 3)

    assert refused.value.generation == 2
    assert not state.jobs
    assert (state.places.zones, state.places.keys) == ({}, {})


async def test_a_request_of_an_older_ring_is_refused_also_where_its_zone_is() -> None:
    """Its sender slept while the ring grew and shrank back: it may have been repeated, and carried out elsewhere."""
    zone = "acme"
    state = a_shard(home(zone, 4), size=4, generation=3)
    state.execute(Enqueue((spec_of(zone),), None, 3), 2)

    with pytest.raises(ZoneMovedError) as refused:
        state.execute(Enqueue((spec_of(zone, "2"),), "r", 1), 2)
    assert refused.value.generation == 3
    state.execute(Enqueue((spec_of(zone, "2"),), "r", 3), 2)
    [again] = state.execute(Enqueue((spec_of(zone, "2"),), "r", 1), 2)
    assert again.id == "2", "what is remembered is answered, whatever the caller knows"
    state.execute(Enqueue((spec_of(zone, "3"),), None, 1), 2)


async def test_a_schedule_that_would_make_a_zone_or_a_key_in_a_shard_is_refused_there() -> None:
    """Whoever opens a shard by its own URL meets the shard's rules, not those of the ring."""
    for token, job in ((0, spec_of("acme")), (0, spec_of(None, key="daily")), (1, spec_of(None))):
        state = a_shard(token, size=4)
        with pytest.raises(InvalidInputError, match="schedules of a ring"):
            state.execute(SetSchedule(ScheduleSpec("often", "* * * * *", job), 60_000), 2)
        assert not state.schedules


async def test_a_tick_makes_no_zone_and_no_key_in_a_shard() -> None:
    """Of a schedule that an earlier release let somebody set in a shard."""
    for job in (spec_of("acme", "tick"), spec_of(None, "tick", key="daily")):
        state = a_shard(0, size=4)
        state.facets.schedules.restore(state, [Schedule(ScheduleSpec("often", "* * * * *", job), 60_000)])
        assert state.execute(Tick("often", 60_000, 120_000, job), 60_000)
        assert not state.jobs
        assert state.schedules["often"].next_ms == 120_000


async def test_a_shard_takes_back_what_it_counted_with_a_batch_that_did_not_land() -> None:
    zone = "acme"
    state = a_shard(home(zone, 4), size=4)
    state.execute(Enqueue((spec_of(zone, "1"), spec_of(zone, "2")), None, 1), 2)
    state.commit(writer="w", batch=2, at_ms=2)
    for job in state.execute(Dequeue(None, 10, 1000), 3):
        state.execute(Ack(job.id, job.token), 3)
    state.execute(AdoptRing(2, 64, home(zone, 4)), 3)
    assert state.places.zones == {}

    state.rollback()

    assert state.places.zones == {zone: 2}
    assert state.ring == RingView(1, 4, home(zone, 4))
    fresh = State()
    fresh.execute(Enqueue((spec_of(zone),)), 1)
    fresh.execute(AdoptRing(1, 4, 0), 1)
    assert fresh.places.zones == {zone: 1}
    fresh.rollback()
    assert (fresh.ring, fresh.places.zones) == (None, {})


async def test_an_older_ring_is_not_adopted_and_no_shard_becomes_another() -> None:
    state = a_shard(3, size=16, generation=5)

    assert state.execute(AdoptRing(4, 8, 3), 2) == RingView(5, 16, 3)
    with pytest.raises(InvalidInputError, match="shard 3"):
        state.execute(AdoptRing(6, 32, 4), 2)
    assert state.events == []


def a_zone_elsewhere(token: int, size: int) -> str:
    return next(zone for n in range(1000) if home(zone := f"e{n}", size) != token)


# --- What lies in the bucket ---


async def test_the_root_is_readable_and_refuses_nonsense() -> None:
    store = await a_ring(4)
    body = (await store.get(KEY)).body  # type: ignore[union-attr]
    assert b'"layout": "ring"' in body
    assert b'"sizes": [' in body
    head = decode_ring(body)
    assert decode_ring(encode_ring(head)) == head
    for nonsense in (body.replace(b"4", b"0"), body.replace(b'"shards": 4', b'"shards": 3'), b"{}", b"[]"):
        with pytest.raises(CorruptQueueError):
            decode_ring(nonsense)
    for shards in (0, -1, SHARDS_MAX + 1):
        with pytest.raises(InvalidInputError, match="from 1 to 4096"):
            await parts_of(store).builder().resize(shards)
    assert decode_ring((await store.get(KEY)).body) == head  # type: ignore[union-attr]


class Slow(MemoryStore):
    """The answer to a read is on its way for as long as a test likes."""

    def __init__(self) -> None:
        super().__init__()
        self.held: asyncio.Event | None = None
        self.reading = asyncio.Event()

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        read, held = await super().get(key, unless=unless), self.held
        if held is not None:
            self.held = None
            self.reading.set()
            await held.wait()
        return read


async def test_two_changes_of_the_root_in_one_process_are_both_there() -> None:
    """One of them has read the root before the other changed it, and hears of that after it."""
    store = Slow()
    assert await parts_of(store).builder().create(1)
    root = parts_of(store).root()
    await root.read()
    held = store.held = asyncio.Event()
    slow = asyncio.create_task(root.change(lambda head: msgspec.structs.replace(head, resized_at=7)))
    await store.reading.wait()
    await root.change(lambda head: msgspec.structs.replace(head, shards=5))
    held.set()
    await slow
    head = await parts_of(store).root().read()
    assert (head.shards, head.resized_at, head.version) == (5, 7, 3)


async def test_a_ring_is_made_once_and_not_where_a_queue_is() -> None:
    store = await a_ring(4)
    assert not await parts_of(store).builder().create(4)
    async with Queue.open(store) as used:
        await used.enqueue_many([NewJob("task", b"", zone=f"z{n}") for n in range(20)])
    assert not await parts_of(store).builder().create(4)
    await store.delete(KEY)
    with pytest.raises(CorruptQueueError, match="shards of a ring"):
        await parts_of(store).builder().create(4)
    async with Queue.open(queue_store := MemoryStore()) as queue:
        await queue.enqueue("task", b"")
    assert not await parts_of(queue_store).builder().create(4)
    with pytest.raises(InvalidInputError, match="no ring"):
        await resize(queue_store, 8)
    with pytest.raises(InvalidInputError, match="no ring"):
        await resize(MemoryStore(), 8)


async def test_a_shard_that_was_deleted_is_missed() -> None:
    store = await a_ring(2)
    async for key in store.list("shards/0001/"):
        await store.delete(key)
    async with Queue.open(store) as queue:
        with pytest.raises(CorruptQueueError, match="shards/0001"):
            await queue.stats()


def refusals(queue: Queue[bytes]) -> dict[str, Callable[[], Awaitable[Any]]]:
    async def follow() -> None:
        async for _ in queue.events(from_position=7, follow=False):
            pass

    return {
        "events after one position": follow,
        "a schedule with a zone": lambda: queue.set_schedule("s", "* * * * *", NewJob("task", b"", zone="z")),
        "a schedule with a key": lambda: queue.set_schedule("s", "* * * * *", NewJob("task", b"", key="k")),
    }


@pytest.mark.parametrize("what", ["events after one position", "a schedule with a zone", "a schedule with a key"])
async def test_what_a_ring_does_not_do_is_refused_with_a_word(what: str) -> None:
    store = await a_ring(2)
    async with Queue.open(store) as queue:
        with pytest.raises((RingError, InvalidInputError), match="ring of shards"):
            await refusals(queue)[what]()
        assert (await queue.stats()).totals.enqueued == 0


async def test_a_ring_as_it_was_at_a_time() -> None:
    clock, store = ManualClock(), MemoryStore()
    await parts_of(store, clock).builder().create(2)
    zones = [f"z{n}" for n in range(12)]
    async with Queue.open(store, clock=clock) as queue:
        await clock.advance(10)
        await queue.enqueue_many([NewJob("task", b"1", zone=zone) for zone in zones])
        then = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
        before = {job.id: (job.token, job.state) for job in await queue.jobs()}
        await clock.advance(10)
        await parts_of(store, clock).builder().resize(5)
        await notice(queue)
        await queue.enqueue_many([NewJob("task", b"2", zone=f"{zone}!") for zone in zones])
        for job in await queue.dequeue("task", batch_size=8):
            await job.ack()
    async with Queue.open(store, clock=clock, as_of=then) as past:
        assert {job.id: (job.token, job.state) for job in await past.jobs()} == before
        assert (await past.stats()).totals.ready == 12
        for change in (
            lambda: past.enqueue("task", b""),
            lambda: past.dequeue("task"),
            lambda: past.set_schedule("s", "* * * * *", ("task", b"")),
        ):
            with pytest.raises(ReadOnlyError):
                await change()
    for wrong, told in ((1, "say a time"), (then + timedelta(days=1), "in the future")):
        with pytest.raises(InvalidInputError, match=told):
            async with Queue.open(store, clock=clock, as_of=wrong):
                pass


async def test_the_feed_of_a_ring_tells_every_event_of_every_shard_in_its_order() -> None:
    store = await a_ring(3)
    async with Queue.open(store) as queue:
        await queue.enqueue_many([NewJob("task", b"", zone=f"z{n}") for n in range(12)])
        claimed = await queue.dequeue("task", batch_size=12)
        for job in claimed:
            await job.ack()
        entered = [event async for event in queue.events(from_position=0, follow=False)]
    fed = [event async for event in Queue.open(store).events(from_position=0, follow=False)]
    assert fed == entered
    assert sorted(event.at for event in fed) == [event.at for event in fed]
    for shard in range(3):
        own = [e async for e in parts_of(store).shard(shard).history().events(from_position=0, follow=False)]
        mine = [event for event in fed if event.shard == shard]
        assert [(e.position, e.index, e.kind) for e in mine] == [(e.position, e.index, e.kind) for e in own]
        assert own
    tokens = {event.job_id: event.fields["token"] for event in fed if event.kind is EventKind.ACKED}
    assert tokens == {job.id: job.token for job in claimed}
    assert {e.fields["token"] for e in fed if e.kind is EventKind.RINGED and e.shard == 1} == {1}
    half = {event.shard: event.position for event in fed[: len(fed) // 2] if event.index == 0}
    rest = [e async for e in Queue.open(store).events(from_position=half, follow=False)]
    assert {(e.shard, e.position, e.index) for e in rest} == {
        (e.shard, e.position, e.index) for e in fed if e.position > half.get(e.shard, 0)
    }
    for wrong, told in (({9: 1}, "none with number 9"), (4, "each of the 3 has positions of its own")):
        with pytest.raises(InvalidInputError, match=told):
            async for _ in Queue.open(store).events(from_position=wrong, follow=False):
                pass


async def test_a_follower_of_a_ring_hears_all_shards_also_one_that_is_made_meanwhile() -> None:
    store = await a_ring(2)
    feed = Queue.open(store).events(from_position=0)

    async def until_added(job_ids: set[str]) -> set[int]:
        shards: set[int] = set()
        async for event in feed:
            if event.job_id in job_ids:
                job_ids.discard(event.job_id)
                shards.add(event.shard)
            if not job_ids:
                return shards
        raise AssertionError

    async with asyncio.timeout(60), Queue.open(store) as queue, aclosing(feed):
        added = await queue.enqueue_many([NewJob("task", b"", zone=f"a{n}") for n in range(12)])
        assert await until_added({job.id for job in added}) == {0, 1}
        await resize(store, 4)
        await notice(queue)
        added = await queue.enqueue_many([NewJob("task", b"", zone=f"b{n}") for n in range(24)])
        assert await until_added({job.id for job in added}) == {0, 1, 2, 3}


async def test_schedules_stay_in_the_first_shard_and_tick_there() -> None:
    clock = ManualClock()
    store = MemoryStore()
    await parts_of(store, clock).builder().create(4)
    async with Queue.open(store, clock=clock) as queue:
        await queue.set_schedule("often", "* * * * *", ("task", b"tick"))
        await resize(store, 16)
        await notice(queue)
        [schedule] = await queue.schedules()
        await clock.advance(61)
        [job] = await queue.dequeue(wait=1)
        assert (job.payload, schedule.name) == (b"tick", "often")
        await queue.drop_schedule("often")
        assert await queue.schedules() == []


async def test_states_survive_snapshots_with_the_ring_they_know() -> None:
    store = await a_ring(2)
    async with Queue.open(store) as queue:
        for n in range(600):
            await queue.enqueue("task", b"%d" % n, zone="acme")
    state = (await states_of(store))[home("acme", 2)]
    assert state.ring == RingView(1, 2, home("acme", 2))
    assert state.places.zones == {"acme": 600}
    assert {job.state for job in state.jobs.values()} == {JobState.READY}


async def test_a_caller_who_leaves_while_shards_are_asked_leaves_no_traceback_behind() -> None:
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))
    asked = asyncio.Event()

    async def hangs() -> None:
        asked.set()
        await asyncio.Event().wait()

    waiting = asyncio.create_task(in_time([hangs()], clock=ManualClock()))
    await asked.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    del waiting
    for _ in range(5):
        await yield_once()
    gc.collect()

    assert complaints == []
