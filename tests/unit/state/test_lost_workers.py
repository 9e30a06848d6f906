"""Where a job waits whose worker was lost: at its old place the first time, and behind the others from then on."""

from __future__ import annotations

import pytest

from casque.service import Outcome, OutcomeKind
from casque.service.requests import Dequeue, Enqueue, Nack, RequeueStale, Retry, Settle
from casque.state import Expire, Expired, Observed, State
from casque.types import JobRecord, JobSpec, JobState

NOW_MS = 1_700_000_000_000
LEASE_MS = 30_000


class Line:
    """A queue whose only worker is lost again and again."""

    def __init__(self, *specs: JobSpec) -> None:
        self.now_ms = NOW_MS
        self.state = State()
        for spec in specs:
            self.state.execute(Enqueue((spec,)), self.now_ms)
            self.now_ms += 10

    def claim(self) -> JobRecord:
        self.now_ms += 10
        [job] = self.state.execute(Dequeue(None, 1, LEASE_MS, "w"), self.now_ms)
        assert isinstance(job, JobRecord)
        return job

    def lose(self, job: JobRecord) -> None:
        self.now_ms += LEASE_MS
        assert self.state.execute(Expire((Observed(job.id, job.token, job.beat_ms),)), self.now_ms) == 1

    def order(self) -> list[str]:
        self.now_ms += 10
        return [job.id for job in self.state.execute(Dequeue(None, 10_000, LEASE_MS, "w"), self.now_ms)]


def numbered(count: int, **options: object) -> list[JobSpec]:
    return [JobSpec(str(n), "send", b"", **options) for n in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize("max_crashes", [None, 5])
def test_a_job_that_lost_its_first_worker_comes_before_a_thousand_that_came_after_it(max_crashes: int | None) -> None:
    line = Line(*numbered(1_000, max_crashes=max_crashes))
    line.lose(line.claim())
    assert line.order() == [str(n) for n in range(1_000)]


@pytest.mark.parametrize("max_crashes", [None, 5])
def test_a_job_that_lost_a_second_worker_comes_after_all_that_wait(max_crashes: int | None) -> None:
    line = Line(*numbered(5, max_crashes=max_crashes))
    line.lose(line.claim())
    line.lose(line.claim())
    assert line.order() == ["1", "2", "3", "4", "0"]


def test_several_jobs_of_one_lost_worker_keep_their_order() -> None:
    line = Line(*numbered(6))
    held = [line.claim() for _ in range(3)]
    for job in reversed(held):
        line.lose(job)
    assert line.order() == ["0", "1", "2", "3", "4", "5"]


def test_a_job_that_failed_keeps_the_place_that_its_failure_gave_it() -> None:
    line = Line(*numbered(2))
    first = line.claim()
    line.state.execute(Nack(first.id, first.token, 5), line.now_ms)
    line.now_ms += 10
    assert line.state.execute(Enqueue((JobSpec("late", "send", b""),)), line.now_ms)
    assert line.claim().id == "1"
    again = line.claim()
    assert (again.id, again.attempts) == ("0", 2)
    line.lose(again)
    assert line.order() == ["0", "late"]


def test_a_crash_that_a_worker_reported_is_a_worker_lost() -> None:
    line = Line(*numbered(3, max_crashes=5))
    first = line.claim()
    crashed = Outcome(first.id, first.token, error="killed", delay_ms=0, how=OutcomeKind.CRASHED)
    assert line.state.execute(Settle((crashed,)), line.now_ms) == [None]
    assert [line.claim().id, line.claim().id] == ["1", "2"]
    line.state.execute(Enqueue((JobSpec("late", "send", b""),)), line.now_ms)
    line.lose(line.claim())
    assert line.order() == ["late", "0"]


def test_a_job_that_is_taken_back_by_hand_keeps_its_place_too() -> None:
    line = Line(*numbered(3))
    line.claim()
    line.now_ms += LEASE_MS
    assert line.state.execute(RequeueStale(1_000), line.now_ms) == 1
    assert line.order() == ["0", "1", "2"]


def test_a_job_keeps_its_place_in_its_zone_and_zones_take_turns() -> None:
    specs = [JobSpec(f"{zone}{n}", "send", b"", zone=zone) for n in range(3) for zone in ("a", "b")]
    line = Line(*specs)
    lost = line.claim()
    assert lost.id == "a0"
    line.lose(lost)
    order = line.order()
    assert [job_id for job_id in order if job_id.startswith("a")] == ["a0", "a1", "a2"]
    assert order[0] == "b0", "the turn of the lost claim counts"


@pytest.mark.parametrize("times", [1, 2])
def test_a_fifo_zone_waits_for_a_job_that_lost_its_workers(times: int) -> None:
    line = Line(*numbered(3, zone="strict", fifo=True))
    for _ in range(times):
        lost = line.claim()
        assert lost.id == "0"
        line.lose(lost)
    assert line.claim().id == "0"


def test_a_job_that_was_revived_is_still_under_suspicion() -> None:
    line = Line(JobSpec("0", "send", b"", max_attempts=2))
    line.lose(line.claim())
    line.lose(line.claim())
    assert line.state.jobs["0"].state is JobState.DEAD
    line.state.execute(Retry("0"), line.now_ms)
    revived = line.claim()
    line.state.execute(Enqueue((JobSpec("late", "send", b""),)), line.now_ms)
    line.lose(revived)
    assert line.order() == ["late", "0"]


def test_the_event_says_where_the_job_waits_so_that_older_logs_replay_as_they_were() -> None:
    line = Line(*numbered(2))
    first = line.claim()
    line.state.commit(writer="w", batch=1, at_ms=line.now_ms)
    line.state.replay([Expired(first.id, first.token, line.now_ms + 1)], writer="old", batch=1, at_ms=line.now_ms)
    assert line.state.jobs["0"].due_ms == line.now_ms + 1
    assert line.order() == ["1", "0"]


def test_an_undone_loss_leaves_the_lease_as_it_was() -> None:
    line = Line(*numbered(2))
    first = line.claim()
    line.state.commit(writer="w", batch=1, at_ms=line.now_ms)
    line.lose(first)
    line.state.rollback()
    assert line.state.jobs["0"] == first
    assert line.order() == ["1"]
