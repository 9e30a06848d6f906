"""Many acks in one command, which take a shorter way: nothing shows that they did."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from casque.errors import JobNotFoundError, LeaseLostError
from casque.service import Outcome
from casque.service.requests import Ack, Dequeue, Enqueue, Settle, SetZone
from casque.state import Limits, State
from casque.types import JobSpec, JobState, ZoneRules

NOW_MS = 1_700_000_000_000


def filled() -> State:
    """Running jobs with and without zones, keys and results to come."""
    state = State(Limits(finished=True))
    specs = [
        JobSpec("plain", "send", b"1"),
        JobSpec("keyed", "send", b"2", key="k"),
        JobSpec("zoned", "send", b"3", zone="acme"),
        JobSpec("both", "send", b"4", zone="acme", key="l"),
        JobSpec("stays", "send", b"5", zone="acme"),
        JobSpec("waits", "send", b"6", zone="acme"),
    ]
    state.execute(SetZone("acme", ZoneRules(running_max=3)), NOW_MS)
    state.execute(Enqueue(tuple(specs)), NOW_MS)
    assert len(state.execute(Dequeue(None, 6, 30_000, "w"), NOW_MS)) == 5
    state.commit(writer="w", batch=1, at_ms=NOW_MS)
    return state


def outcomes_of(state: State, *names: str) -> list[Outcome]:
    result = {"plain": b"told", "both": b"also"}
    return [Outcome(name, state.jobs[name].token, result=result.get(name)) for name in names]


def looks(state: State) -> dict[str, Any]:
    return {
        "jobs": dict(state.jobs),
        "keys": dict(state.keys),
        "zones": dict(state.zone_jobs),
        "finished": list(state.finished),
        "counters": msgspec.structs.asdict(state.counters),
        "running": state.running,
        "totals": state.totals(NOW_MS),
    }


NAMES = ("plain", "keyed", "zoned", "both")


def test_together_they_leave_what_they_leave_one_by_one() -> None:
    together, apart = filled(), filled()
    assert together.execute(Settle(tuple(outcomes_of(together, *NAMES))), NOW_MS + 5) == [None] * 4
    for told in outcomes_of(apart, *NAMES):
        apart.execute(Ack(told.job_id, told.token, result=told.result), NOW_MS + 5)
    assert together.events == apart.events
    for state in (together, apart):
        state.commit(writer="w", batch=2, at_ms=NOW_MS + 5)
    assert looks(together) == looks(apart)
    for state in (together, apart):
        assert [job.id for job in state.execute(Dequeue(None, 6, 30_000, "w"), NOW_MS + 6)] == ["waits"]
    assert [one.result for one in together.finished] == [b"told", None, None, b"also"]
    assert {one.state for one in together.finished} == {JobState.DONE}


def test_undone_together_they_are_as_before() -> None:
    state, before = filled(), looks(filled())
    state.execute(Settle(tuple(outcomes_of(state, *NAMES))), NOW_MS + 5)
    state.rollback()
    assert looks(state) == before
    assert state.execute(Dequeue(None, 6, 30_000, "w"), NOW_MS + 6) == []


@pytest.mark.parametrize(
    ("spoiled", "refused"),
    [
        (Outcome("nobody", 1), JobNotFoundError),
        (Outcome("stays", 99), LeaseLostError),
    ],
)
def test_one_that_is_refused_does_not_harm_the_others(spoiled: Outcome, refused: type[Exception]) -> None:
    state = filled()
    answers = state.execute(Settle((*outcomes_of(state, *NAMES), spoiled)), NOW_MS)
    assert answers[:4] == [None] * 4
    assert isinstance(answers[4], refused)
    assert list(state.jobs) == ["stays", "waits"]


def test_one_that_is_told_twice_in_one_call_counts_once() -> None:
    state = filled()
    first, second = outcomes_of(state, "plain", "keyed")
    answers = state.execute(Settle((first, second, first)), NOW_MS)
    assert answers[:2] == [None, None]
    assert isinstance(answers[2], JobNotFoundError)
    assert state.counters.done == 2
    state.commit(writer="w", batch=2, at_ms=NOW_MS)
