"""Jobs that expire while they wait: never handed out, cancelled with the reason, found without a search."""

from __future__ import annotations

from typing import Any

import pytest

from casque.errors import InvalidInputError
from casque.service import Outcome
from casque.service.requests import Ack, Dequeue, Enqueue, Nack, Reschedule, Retry, Settle
from casque.state import Expire, Lapse, Lapsed, Limits, Observed, State
from casque.types import NOT_CLAIMED_IN_TIME, JobRecord, JobSpec, JobState

NOW_MS = 1_700_000_000_000
SPAN_MS = 600_000
OVER_MS = NOW_MS + SPAN_MS


def filled(*ids: str, **options: Any) -> State:
    """A queue with these jobs, which expire."""
    state = State(Limits(finished=True))
    options.setdefault("expires_ms", SPAN_MS)
    state.execute(Enqueue(tuple(JobSpec(one, "send", b"", **options) for one in ids)), NOW_MS)
    state.commit(writer="w", batch=1, at_ms=NOW_MS)
    return state


def claim(state: State, at_ms: int, limit: int = 10) -> list[JobRecord]:
    jobs: list[JobRecord] = state.execute(Dequeue(None, limit, 30_000, "w"), at_ms)
    return jobs


def test_a_job_is_handed_out_until_its_time_is_up_and_not_from_then_on() -> None:
    assert [job.id for job in claim(filled("1"), OVER_MS - 1)] == ["1"]
    assert claim(filled("1"), OVER_MS) == []


@pytest.mark.parametrize("zone", [None, "acme"])
@pytest.mark.parametrize("limit", [1, 10])
def test_those_that_do_not_expire_are_handed_out_in_its_place(zone: str | None, limit: int) -> None:
    state = filled("1", "2", zone=zone)
    state.execute(Enqueue((JobSpec("3", "send", b"", zone=zone),)), NOW_MS)
    assert [job.id for job in claim(state, OVER_MS, limit)] == ["3"]


def test_it_ends_as_cancelled_with_the_reason() -> None:
    state = filled("1")
    assert state.execute(Lapse(), OVER_MS) == 1
    assert state.events == [Lapsed("1", NOT_CLAIMED_IN_TIME)]
    [finished] = state.finished
    assert (finished.state, finished.error, finished.at_ms) == (JobState.CANCELLED, NOT_CLAIMED_IN_TIME, OVER_MS)
    assert state.counters.cancelled == 1
    assert state.next_lapse_ms() is None


def test_a_delayed_job_expires_too() -> None:
    state = filled("1", run_at_ms=OVER_MS + 5)
    assert state.execute(Lapse(), OVER_MS) == 1
    assert state.totals(OVER_MS).delayed == 0


def test_a_running_job_may_finish() -> None:
    state = filled("1")
    [job] = claim(state, NOW_MS)
    assert state.next_lapse_ms() is None
    assert state.execute(Lapse(), OVER_MS + 1) == 0
    state.execute(Ack(job.id, job.token), OVER_MS + 2)
    assert state.counters.done == 1


def test_a_job_that_fails_after_its_time_is_not_tried_again() -> None:
    state = filled("1")
    [job] = claim(state, NOW_MS)
    state.execute(Nack(job.id, job.token, error="no"), OVER_MS + 1)
    assert claim(state, OVER_MS + 2) == []
    [finished] = state.finished
    assert (finished.state, finished.error, finished.job.tries[0].error) == ("cancelled", NOT_CLAIMED_IN_TIME, "no")


def test_a_job_whose_worker_was_lost_after_its_time_is_not_tried_again() -> None:
    state = filled("1")
    [job] = claim(state, NOW_MS)
    state.execute(Expire((Observed(job.id, job.token, job.beat_ms),)), OVER_MS + 1)
    assert claim(state, OVER_MS + 2) == []


def test_a_fifo_zone_goes_on_without_a_job_that_has_expired() -> None:
    state = filled("1", "2", zone="strict", fifo=True)
    state.execute(Enqueue((JobSpec("3", "send", b"", zone="strict", fifo=True),)), NOW_MS)
    assert [job.id for job in claim(state, OVER_MS)] == ["3"]


def test_its_unique_key_is_free_again() -> None:
    state = filled("1", key="once")
    state.execute(Lapse(), OVER_MS)
    [added] = state.execute(Enqueue((JobSpec("2", "send", b"", key="once"),)), OVER_MS)
    assert added.id == "2"


def test_an_undone_batch_puts_the_job_back_and_it_expires_again() -> None:
    state = filled("1", "2")
    assert claim(state, OVER_MS) == []
    state.rollback()
    assert (sorted(state.jobs), state.next_lapse_ms()) == (["1", "2"], OVER_MS)
    assert state.execute(Lapse(), OVER_MS) == 2


def test_a_claim_that_was_undone_leaves_the_job_to_expire() -> None:
    state = filled("1")
    claim(state, NOW_MS)
    assert state.next_lapse_ms() is None
    state.rollback()
    assert state.next_lapse_ms() == OVER_MS


def test_a_restored_state_knows_what_expires() -> None:
    state = filled("1", "2")
    fresh = State()
    fresh.restore(state.jobs.values(), state.counters, state.position)
    assert fresh.next_lapse_ms() == OVER_MS
    assert claim(fresh, OVER_MS) == []


def test_replay_takes_the_word_of_the_event() -> None:
    state = filled("1")
    state.replay([Lapsed("1", "why not")], writer="other", batch=1, at_ms=NOW_MS)
    assert not state.jobs
    assert state.finished[-1].error == "why not"


def test_a_dead_job_is_kept_and_cannot_be_retried_after_its_time() -> None:
    state = filled("1", max_attempts=1)
    [job] = claim(state, NOW_MS)
    state.execute(Settle((Outcome(job.id, job.token, "no"),)), NOW_MS)
    state.commit(writer="w", batch=2, at_ms=NOW_MS)
    assert state.execute(Lapse(), OVER_MS) == 0
    with pytest.raises(InvalidInputError, match="has expired at 2023-11-14T22:23:20Z: enqueue it again"):
        state.execute(Retry("1"), OVER_MS)
    assert not state.events
    state.execute(Retry("1"), OVER_MS - 1)
    assert state.next_lapse_ms() == OVER_MS


def test_a_job_cannot_be_put_off_beyond_its_time() -> None:
    state = filled("1")
    with pytest.raises(InvalidInputError, match="expires at 2023-11-14T22:23:20Z: choose an earlier time"):
        state.execute(Reschedule("1", run_at_ms=OVER_MS), NOW_MS)
    assert not state.events
    state.execute(Reschedule("1", run_at_ms=OVER_MS - 1), NOW_MS)
    assert state.jobs["1"].state is JobState.DELAYED


def test_what_ended_long_before_its_time_is_not_kept_in_mind() -> None:
    state = filled()
    for number in range(2_000):
        state.execute(Enqueue((JobSpec(str(number), "send", b"", expires_ms=SPAN_MS),)), NOW_MS + number)
        [job] = claim(state, NOW_MS + number)
        state.execute(Ack(job.id, job.token), NOW_MS + number)
    assert len(state.table.lapses._heap) < 200


def test_jobs_that_do_not_expire_leave_nothing_behind() -> None:
    state = filled("1", "2", expires_ms=None)
    claim(state, NOW_MS, 1)
    assert state.table.lapses._heap == []
    assert state.next_lapse_ms() is None
