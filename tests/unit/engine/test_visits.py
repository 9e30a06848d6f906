"""Leases of dead workers where every process is short-lived: what each saw of them adds up."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from casque import JobState, Queue
from casque.clock import Random
from casque.service.requests import Dequeue, Enqueue, Heartbeat, LeaseZone
from casque.state import Observed, ObservedZone, State, Watch, Watching
from casque.state.vigils import DATED_VISITS
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock
from casque.testing.gated import GatedStore
from casque.types import JobRecord, JobSpec

LEASE_MS = 60_000
SEEDS = count(900)
LAYOUTS = pytest.mark.parametrize("layout", ["log", "document"])
START_MS = 1_700_000_000_000


# --- By the rules of the state ---


class Leased:
    """A job whose worker is silent, and visits of the queue."""

    def __init__(self) -> None:
        self.state = State()
        self.do(Enqueue((JobSpec("j", "send", b"", zone="acme"),)), 0)
        [self.job] = self.do(Dequeue(None, 1, LEASE_MS, "w"), 0)

    def do(self, command: Any, at_ms: int) -> Any:
        answer = self.state.execute(command, START_MS + at_ms)
        self.state.commit(writer="v", batch=self.state.position + 1, at_ms=START_MS + at_ms)
        return answer

    def visit(self, at_ms: int, watched_ms: int = 0, *, visits: int | None = None) -> int:
        job = self.state.jobs["j"]
        known = self.state.vigils.get(job.token)
        recorded = known.visits if known is not None and known.beat_ms == job.beat_ms else 0
        seen = Observed("j", job.token, job.beat_ms)
        return int(self.do(Watch((Watching(seen, recorded if visits is None else visits, watched_ms),)), at_ms))

    @property
    def is_running(self) -> bool:
        return self.state.jobs["j"].state is JobState.RUNNING


def test_visits_one_after_the_other_end_a_lease_that_they_watched_for_its_length_together() -> None:
    leased = Leased()
    assert [leased.visit(0, 20_000) for _ in range(2)] == [0, 0]
    assert leased.visit(0, 19_999) == 0
    assert leased.visit(0, 1) == 1
    job = leased.state.jobs["j"]
    assert (job.state, job.tries[-1].how.value) == (JobState.READY, "expired")
    assert leased.state.watched() == []


def test_visits_that_overlap_do_not_count_the_same_moment_twice() -> None:
    leased = Leased()
    for _ in range(100):  # all of them came when none was recorded yet
        leased.visit(0, 30_000, visits=0)
    assert leased.is_running
    assert leased.state.watched()[0].watched_ms == 30_000


def test_a_heartbeat_makes_all_visits_before_it_void() -> None:
    leased = Leased()
    leased.visit(0, 50_000)
    before = leased.state.jobs["j"]
    leased.do(Heartbeat("j", leased.job.token), 1)
    assert leased.state.watched() == []
    late = Watching(Observed("j", before.token, before.beat_ms), 1, 50_000)
    assert leased.do(Watch((late,)), 2) == 0
    assert leased.visit(3, 50_000) == 0
    assert leased.is_running


def test_written_times_alone_end_a_lease_after_ten_times_its_length_and_four_visits() -> None:
    leased = Leased()
    ended = [leased.visit(at_ms) for at_ms in range(LEASE_MS, 11 * LEASE_MS, LEASE_MS)]
    assert ended == [0] * 9 + [1]

    rare = Leased()
    days = 24 * 3600 * 1000
    assert [rare.visit(day * days) for day in range(1, 5)] == [0, 0, 0, 1]
    assert DATED_VISITS == 4


@pytest.mark.parametrize("ahead_ms", [16 * 60_000, 365 * 24 * 3600 * 1000])
def test_a_clock_that_is_ahead_counts_once_however_often_it_comes_by(ahead_ms: int) -> None:
    leased = Leased()
    for at_ms in range(0, 30_000, 100):  # two machines take turns
        leased.visit(at_ms + ahead_ms)
        leased.visit(at_ms)
    assert leased.is_running
    assert leased.state.watched()[0].dated_ms < LEASE_MS // 3


def test_processes_that_leave_together_with_clocks_further_ahead_each_time_end_no_lease() -> None:
    leased = Leased()
    for hour in range(1, 100):  # all of them came when none had left yet
        leased.visit(hour * 3_600_000, visits=0)
    assert leased.is_running
    assert leased.state.watched()[0].dated_ms == LEASE_MS // DATED_VISITS


def test_what_is_believed_of_written_times_does_not_shorten_what_has_to_be_watched() -> None:
    leased = Leased()
    leased.visit(24 * 3600 * 1000, 59_000)
    assert leased.is_running
    assert leased.visit(0, 1_000) == 1


def test_the_lease_of_a_zone_ends_the_same_way() -> None:
    leased = Leased()
    lease = leased.do(LeaseZone("acme", 10_000, "w"), 0)
    seen = ObservedZone("acme", lease.token, lease.beat_ms)
    assert leased.do(Watch((Watching(seen, 0, 6_000),)), 0) == 0
    assert leased.do(Watch((Watching(seen, 1, 4_000),)), 0) == 1
    assert leased.state.zone_leases == {}
    assert leased.is_running


def test_a_batch_that_does_not_land_leaves_no_visit() -> None:
    leased = Leased()
    leased.visit(0, 10_000)
    before = leased.state.watched()
    job: JobRecord = leased.state.jobs["j"]
    again = Watching(Observed("j", job.token, job.beat_ms), 1, 30_000)
    leased.state.execute(Watch((again,)), START_MS)
    assert leased.state.watched() != before
    leased.state.rollback()
    assert leased.state.watched() == before


# --- By queues that are opened and closed ---


def queue(store: Any, clock: ManualClock, layout: str) -> Queue[bytes]:
    lease = timedelta(milliseconds=LEASE_MS)
    return Queue.open(store, layout=layout, clock=clock, rng=Random(next(SEEDS)), archive=False, stale_timeout=lease)


async def passes(clock: ManualClock, seconds: float, call: Any = None) -> Any:
    """What comes of a call while time passes."""
    task = None if call is None else asyncio.ensure_future(call)
    for _ in range(round(seconds * 10)):
        if task is not None and task.done():
            break
        await clock.advance(0.1)
    return None if task is None else await task


async def visited(store: Any, clock: ManualClock, layout: str, stay_s: float = 1.0) -> bool:
    """Somebody comes, asks for a job, stays for a while and leaves. Whether there was one."""

    async def visit() -> bool:
        async with queue(store, clock, layout) as q:
            if jobs := await q.dequeue():
                await jobs[0].ack()
            await clock.sleep(stay_s)
            return bool(jobs)

    return bool(await passes(clock, stay_s + 30, visit()))


async def left_behind(store: Any, clock: ManualClock, layout: str, **more: Any) -> None:
    """A worker claims a job and dies."""

    async def claim() -> None:
        async with queue(store, clock, layout) as q:
            await q.enqueue("send", b"", **more)
            assert await q.dequeue()

    await passes(clock, 30, claim())


@LAYOUTS
async def test_the_job_of_a_dead_worker_comes_back_although_nobody_stays_for_its_lease(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    await left_behind(store, clock, layout)
    found = [await visited(store, clock, layout, 10.0) for _ in range(10)]
    assert True in found
    # Seven visits of ten seconds are a minute and more; their own clocks say so.
    assert 5 <= found.index(True) <= 8


@LAYOUTS
async def test_visits_of_a_moment_every_minute_bring_it_back_too(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    await left_behind(store, clock, layout)
    for visits in count(1):
        await clock.advance(60)
        if await visited(store, clock, layout, 0.0):
            break
        assert visits < 20
    assert visits >= 8, "ten times the length of the lease, by the clocks on the wall"


@LAYOUTS
async def test_machines_whose_clocks_differ_by_hours_do_not_take_a_job_whose_worker_lives(layout: str) -> None:
    store, rng = MemoryStore(), Random(11)
    clocks = [ManualClock(START_MS + offset) for offset in (0, 3_600_000, -3_600_000, 86_400_000, 1_000_000)]
    async with queue(store, clocks[0], layout) as holder:
        await holder.enqueue("send", b"")
        [job] = await holder.dequeue()
        for _ in range(8):
            for _ in range(4):
                clock = rng.choice(clocks[1:])
                assert not await visited(store, clock, layout, 5.0)
            await passes(clocks[0], 20)
            await passes(clocks[0], 30, job.heartbeat())
        assert (await holder.find(job.id)).token == job.token  # type: ignore[union-attr]


@LAYOUTS
async def test_visits_of_a_queue_that_is_well_and_looks_write_nothing(layout: str) -> None:
    store, clock = GatedStore(MemoryStore()), ManualClock()
    await left_behind(store, clock, layout)
    await visited(store, clock, layout, 0.0)
    before = store.writes
    await visited(store, clock, layout, 10.0)  # its worker may well be alive
    assert store.writes == before
    await clock.advance(100)

    async def look() -> None:
        async with queue(store, clock, layout) as q:
            await q.stats()
            await clock.sleep(30)

    await passes(clock, 60, look())
    assert store.writes == before


@LAYOUTS
async def test_visits_that_follow_one_another_closely_write_once_in_a_while(layout: str) -> None:
    store, clock = GatedStore(MemoryStore()), ManualClock()
    await left_behind(store, clock, layout)
    await clock.advance(40)
    before = store.writes
    for _ in range(50):
        await visited(store, clock, layout, 0.0)
    assert store.writes - before <= 3
