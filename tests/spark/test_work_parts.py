"""The parts of a run that need no Spark: parcels under a deadline, early reports, groups of outcomes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from casque import Job, Outcome, Queue
from casque.clock import SystemClock, yield_once
from casque.spark.work.batch import GROUP_S, Batch
from casque.spark.work.calling import Caller, Calling, Loading
from casque.spark.work.options import Kind
from casque.spark.work.parcels import Answer
from casque.spark.work.process import loading
from casque.spark.work.reports import LOOPBACK, SECRET_BYTES, Report, Reporter, ReportServer
from casque.spark.work.shift import Shift, Shifts, Terms
from casque.testing import ManualClock

pytestmark = pytest.mark.xdist_group("spark")


async def claimed(count: int) -> list[Job[bytes]]:
    async with Queue.open("memory://") as queue:
        await queue.enqueue_many([("work", b"%d" % n) for n in range(count)])
        return await queue.dequeue(batch_size=count)


# --- A parcel and its deadline ---


@pytest.mark.parametrize("how", [{}, {"concurrency": 2}, {"kind": Kind.ARROW, "per_call": 1}], ids=str)
async def test_at_the_deadline_a_task_says_what_is_done_what_runs_and_what_was_not_started(
    how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await claimed(6)

    def handler(_job: object) -> None:
        calls.append(1)
        if len(calls) >= 3:
            hang.wait()

    calls: list[int] = []
    hang = threading.Event()
    monkeypatch.setattr("casque.spark.work.calling.load", lambda _loading: handler)
    shifts = Shifts(Caller(Calling(Loading(name="here"), **how)), Terms(until_ms=SystemClock().wall_ms() + 300))
    answer = await asyncio.to_thread(shifts.run, 0, [job.record for job in jobs])
    hang.set()

    width = how.get("concurrency", 1)
    assert [one.job_id for one in answer.outcomes] == [job.id for job in jobs[:2]]
    assert answer.running == list(range(2, 2 + width))
    assert answer.unstarted == list(range(2 + width, 6))


async def test_a_parcel_that_comes_after_the_deadline_is_not_started() -> None:
    jobs = await claimed(3)
    shifts = Shifts(Caller(Calling(loading(print))), Terms(until_ms=SystemClock().wall_ms() - 1))
    assert shifts.run(0, [job.record for job in jobs]) == Answer([], [], [0, 1, 2])


def test_a_shift_names_what_the_driver_does_not_know() -> None:
    shift = Shift(5)
    for index in range(4):
        assert shift.begin(index)
    shift.outcomes[0] = Outcome("a", 1)
    shift.outcomes[1] = Outcome("b", 2)
    shift.outcomes[2] = Outcome("c", 3, "broken")
    [(indexes, done, others)] = shift.news()
    assert (indexes, done, others) == ([0, 1, 2], [(0, 2)], [Outcome("c", 3, "broken")])
    shift.confirm([0, 2])
    shift.stop()
    assert not shift.begin(4)
    assert shift.waiting() == [(4, 5)]
    assert shift.answer() == Answer([Outcome("b", 2)], [3], [4])
    shift.hand_over()
    assert shift.answer() == Answer([Outcome("b", 2)], [3], [], handed_over=True)


# --- Reports ---


async def test_a_report_is_confirmed_while_its_trip_is_expected_and_refused_after_it() -> None:
    taken: list[Report] = []
    async with ReportServer(bind=LOOPBACK, host=LOOPBACK) as server:
        with server.expect("trip", taken.append) as destination:
            assert destination is not None
            reporter = Reporter(destination)
            assert await asyncio.to_thread(reporter.report, 3, [(0, 2)], [Outcome("c", 3, "broken")])
        assert taken == [Report("trip", 3, [(0, 2)], [Outcome("c", 3, "broken")])]
        assert not await asyncio.to_thread(reporter.report, 4, [(0, 2)], [])
        assert not reporter.works
        reporter.close()
    assert len(taken) == 1


async def test_a_connection_without_the_secret_of_the_run_is_closed() -> None:
    taken: list[Report] = []
    async with ReportServer(bind=LOOPBACK, host=LOOPBACK) as server:
        with server.expect("trip", taken.append) as destination:
            assert destination is not None
            reader, writer = await asyncio.open_connection(destination.host, destination.port)
            writer.write(bytes(SECRET_BYTES) + b"\x00\x00\x00\x01x")
            assert await reader.read() == b""
            writer.close()
    assert not taken


async def test_a_driver_that_cannot_be_reached_is_not_asked_again() -> None:
    async with ReportServer(bind=LOOPBACK, host=LOOPBACK) as server:
        with server.expect("trip", lambda _report: None) as destination:
            assert destination is not None
    reporter = Reporter(destination)
    assert not await asyncio.to_thread(reporter.report, 0, [(0, 1)], [])
    assert not reporter.works


# --- Groups ---


async def test_outcomes_that_arrive_one_by_one_are_settled_together_after_a_while() -> None:
    jobs, clock = await claimed(3), ManualClock()
    batch = Batch(jobs, clock)
    groups = aiter(batch.groups())
    first = asyncio.ensure_future(anext(groups))
    for job in jobs[:2]:
        batch.arrive([job], [])
        await yield_once()
    assert not first.done()
    await clock.advance(GROUP_S)
    assert (await first).done == jobs[:2]
    assert batch.unsettled() == [jobs[2], *jobs[:2]], "leases are kept until outcomes are durable"
    second = asyncio.ensure_future(anext(groups))
    batch.arrive([], [Outcome(jobs[2].id, jobs[2].token, "broken"), Outcome(jobs[1].id, jobs[1].token, "again")])
    batch.close()
    assert (await second).outcomes == [Outcome(jobs[2].id, jobs[2].token, "broken")], "the first outcome counts"
    assert [group async for group in groups] == []
    assert batch.unsettled() == []


async def test_a_batch_that_arrives_as_a_whole_is_one_group() -> None:
    jobs = await claimed(4)
    batch = Batch(jobs, ManualClock())
    batch.arrive(jobs[:3], [Outcome(jobs[3].id, jobs[3].token, "broken")])
    batch.arrive(jobs, [])
    batch.close()
    [group] = [group async for group in batch.groups()]
    assert (group.done, len(group.outcomes)) == (jobs[:3], 1)
    assert batch.open == []


async def test_jobs_that_were_handed_over_are_sent_again_unless_they_have_an_outcome() -> None:
    jobs = await claimed(3)
    batch = Batch(jobs, ManualClock())
    batch.arrive([jobs[0]], [])
    batch.hand_over(jobs[:2])
    await batch.wait_for_handing_over()
    assert batch.take_handed_over() == [jobs[1]]
    assert batch.take_handed_over() == []
