"""HeartbeatManager: when it beats, what it bears, and how it reports a lease that is gone."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from casque import (
    HeartbeatManager,
    InMemoryStorage,
    InvalidInputError,
    JobNotFoundError,
    LeaseLostError,
    Queue,
    StorageError,
    UnknownOutcomeError,
)
from casque.testing.clock import ManualClock, settle

EVERY_TEN = timedelta(seconds=10)


class Beats:
    """Answers each heartbeat with the next thing of a script, then with silence."""

    def __init__(self, clock: ManualClock, *script: BaseException | None) -> None:
        self._clock = clock
        self._start_ms = clock.monotonic_ms()
        self._script = list(script)
        self.at: list[float] = []

    async def heartbeat(self, job_id: str) -> None:
        assert job_id == "job-1"
        self.at.append((self._clock.monotonic_ms() - self._start_ms) / 1000)
        answer = self._script.pop(0) if self._script else None
        if answer is not None:
            raise answer


async def test_it_beats_once_per_interval_and_not_at_once() -> None:
    clock = ManualClock()
    beats = Beats(clock)

    async with HeartbeatManager(beats, "job-1", EVERY_TEN, clock=clock):
        await clock.advance(35)

    assert beats.at == [10, 20, 30]


async def test_it_stops_with_the_block_also_when_that_fails() -> None:
    clock = ManualClock()
    beats = Beats(clock)

    async def handle() -> None:
        async with HeartbeatManager(beats, "job-1", EVERY_TEN, clock=clock):
            await clock.advance(15)
            raise KeyError("the handler's own")

    with pytest.raises(KeyError):
        await handle()
    await clock.advance(100)

    assert beats.at == [10]


async def test_it_leaves_no_task_behind() -> None:
    clock = ManualClock()
    before = asyncio.all_tasks()

    async with HeartbeatManager(Beats(clock), "job-1", EVERY_TEN, clock=clock):
        assert len(asyncio.all_tasks() - before) == 1

    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("error", [StorageError("away"), UnknownOutcomeError("who knows")])
async def test_after_a_failure_it_tries_again_sooner_and_then_goes_on_as_usual(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    beats = Beats(clock, error, error, None)

    with caplog.at_level(logging.WARNING):
        async with HeartbeatManager(beats, "job-1", EVERY_TEN, clock=clock) as heartbeat:
            await clock.advance(36)

    assert beats.at == [10, 12.5, 15, 25, 35]
    assert not heartbeat.lost
    assert "job-1" in caplog.text


async def test_it_goes_on_after_an_error_that_is_not_casques() -> None:
    clock = ManualClock()
    beats = Beats(clock, ConnectionResetError("by peer"))

    async with HeartbeatManager(beats, "job-1", EVERY_TEN, clock=clock):
        await clock.advance(60)

    assert len(beats.at) > 1


@pytest.mark.parametrize("error", [LeaseLostError("job-1", 3), JobNotFoundError("job-1")])
async def test_a_lost_lease_is_reported_and_ends_the_heartbeats(error: Exception) -> None:
    clock = ManualClock()
    beats = Beats(clock, None, error)

    async with HeartbeatManager(beats, "job-1", EVERY_TEN, clock=clock) as heartbeat:
        waiting = asyncio.create_task(heartbeat.wait_lost())
        seen = []
        for _ in range(3):
            await clock.advance(15)
            seen.append(heartbeat.lost)
        await waiting

    assert seen == [False, True, True]
    assert beats.at == [10, 20]


@pytest.mark.parametrize("error", [LeaseLostError("job-1", 3), JobNotFoundError("job-1")])
async def test_with_cancel_on_lost_the_block_ends_with_a_lost_lease(error: Exception) -> None:
    clock = ManualClock()
    cleaned_up = False

    async def handle() -> None:
        nonlocal cleaned_up
        async with HeartbeatManager(Beats(clock, error), "job-1", EVERY_TEN, cancel_on_lost=True, clock=clock):
            try:
                await asyncio.Event().wait()
            finally:
                cleaned_up = True

    handling = asyncio.create_task(handle())
    await clock.advance(11)

    with pytest.raises(LeaseLostError) as caught:
        await handling
    assert cleaned_up
    assert caught.value.job_id == "job-1"
    assert caught.value.__cause__ is error


async def test_a_task_whose_block_was_cancelled_can_go_on_afterwards() -> None:
    clock = ManualClock()
    error = LeaseLostError("job-1")
    went_on = False

    async def handle() -> None:
        nonlocal went_on
        try:
            async with HeartbeatManager(Beats(clock, error), "job-1", EVERY_TEN, cancel_on_lost=True, clock=clock):
                await asyncio.Event().wait()
        except LeaseLostError:
            pass
        await settle()
        async with asyncio.timeout(60):
            await settle()
        went_on = True

    handling = asyncio.create_task(handle())
    await clock.advance(11)
    await handling

    assert went_on
    assert handling.cancelling() == 0


async def test_a_cancellation_from_outside_stays_one() -> None:
    clock = ManualClock()

    async def handle() -> None:
        async with HeartbeatManager(Beats(clock), "job-1", EVERY_TEN, cancel_on_lost=True, clock=clock):
            await asyncio.Event().wait()

    handling = asyncio.create_task(handle())
    await clock.advance(11)
    handling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await handling


async def test_a_cancellation_from_outside_wins_over_a_lost_lease() -> None:
    clock = ManualClock()
    lost = LeaseLostError("job-1")
    cleaning_up = asyncio.Event()

    async def handle() -> None:
        async with HeartbeatManager(Beats(clock, lost), "job-1", EVERY_TEN, cancel_on_lost=True, clock=clock):
            try:
                await asyncio.Event().wait()
            finally:
                cleaning_up.set()
                await asyncio.Event().wait()

    handling = asyncio.create_task(handle())
    await clock.advance(11)
    await cleaning_up.wait()
    handling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await handling


async def test_a_handler_that_finishes_although_it_was_told_to_stop_is_left_alone() -> None:
    clock = ManualClock()
    lost = LeaseLostError("job-1")

    async def handle() -> str:
        async with HeartbeatManager(Beats(clock, lost), "job-1", EVERY_TEN, cancel_on_lost=True, clock=clock):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
        return "finished"

    handling = asyncio.create_task(handle())
    await clock.advance(11)

    assert await handling == "finished"


async def test_given_the_job_it_keeps_only_that_lease_alive() -> None:
    clock = ManualClock()

    async with Queue.open(InMemoryStorage(), clock=clock) as q:
        await q.enqueue("task", b"data")
        [mine] = await q.dequeue("task")
        await q.nack(mine.id, delay=0)
        [theirs] = await q.dequeue("task")
        async with HeartbeatManager(q, mine, EVERY_TEN, clock=clock) as heartbeat:
            await clock.advance(11)
            assert heartbeat.lost

        [running] = await q.jobs()
        assert (running.token, running.heartbeat_at) == (theirs.token, theirs.heartbeat_at)


async def test_a_job_whose_heartbeats_go_on_is_never_taken_back() -> None:
    clock = ManualClock()

    async with Queue.open(InMemoryStorage(), clock=clock, stale_timeout=timedelta(seconds=30)) as q:
        await q.enqueue("task", b"data")
        [job] = await q.dequeue("task")
        async with HeartbeatManager(q, job, EVERY_TEN, clock=clock) as heartbeat:
            await clock.advance(600)
            assert not heartbeat.lost
        await job.ack()


@pytest.mark.parametrize("interval", [timedelta(0), timedelta(seconds=-1), 0, "soon"])
def test_an_interval_that_makes_no_sense_is_refused(interval: Any) -> None:
    with pytest.raises(InvalidInputError, match="interval"):
        HeartbeatManager(Beats(ManualClock()), "job-1", interval)
