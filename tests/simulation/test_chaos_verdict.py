"""Log against archive after a chaos run, and the figures it shows. What callers were answered: test_history_checker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from casque.service import ArchivedJob, EventKind, QueueEvent
from casque.types import JobState
from simulation.chaos.actor import unheard
from simulation.chaos.chronicle import Chronicle
from simulation.chaos.ledger import Ledger
from simulation.chaos.verdict import judge
from simulation.history import Outcome, Recorder
from simulation.history.call import Answered, Asked, Call, Wish

NOW = datetime(2026, 2, 15, tzinfo=UTC)


class Story:
    """Two jobs, a and b: enqueued, claimed and finished as it should be. Tests change a part of it."""

    def __init__(self) -> None:
        self.events: list[tuple[EventKind, str, dict[str, Any]]] = [
            (EventKind.ADDED, "a", {"payload": b"payload a"}),
            (EventKind.ADDED, "b", {"payload": b"payload b"}),
            (EventKind.CLAIMED, "a", {"token": 1}),
            (EventKind.CLAIMED, "b", {"token": 2}),
            (EventKind.BEATEN, "b", {"token": 2}),
            (EventKind.EXPIRED, "b", {"token": 2}),
            (EventKind.CLAIMED, "b", {"token": 3}),
            (EventKind.ACKED, "a", {"token": 1}),
            (EventKind.ACKED, "b", {"token": 3}),
        ]
        self.archive = [archived("a", 8, 1), archived("b", 9, 3)]
        self.dead: list[str] = []

    def problems(self) -> list[str]:
        chronicle = Chronicle()
        for number, (kind, job, fields) in enumerate(self.events, start=1):
            chronicle.take(QueueEvent(number, 0, NOW, kind, job, fields))
        return judge(chronicle, self.archive, self.dead)


def archived(job: str, position: int, token: int, state: JobState = JobState.DONE) -> ArchivedJob:
    payload = f"payload {job}".encode()
    return ArchivedJob(job, "work", payload, state, 1, NOW, NOW, NOW, position, position, token=token)


@pytest.fixture
def story() -> Story:
    return Story()


def test_nothing_is_held_against_a_run_that_went_well(story: Story) -> None:
    assert story.problems() == []


def test_a_job_may_die_and_be_retried_and_stay_dead(story: Story) -> None:
    story.events += [
        (EventKind.ADDED, "c", {"payload": b"payload c"}),
        (EventKind.CLAIMED, "c", {"token": 4}),
        (EventKind.DIED, "c", {"token": 4}),
        (EventKind.REVIVED, "c", {}),
        (EventKind.CLAIMED, "c", {"token": 5}),
        (EventKind.WATCHED, "c", {"token": 5}),
        (EventKind.DIED, "c", {"token": 5}),
    ]
    story.archive += [archived("c", 12, 4, JobState.DEAD), archived("c", 16, 5, JobState.DEAD)]
    story.dead = ["c"]
    assert story.problems() == []


def archived_twice(story: Story) -> None:
    story.archive.append(archived("a", 8, 1))


def archived_as_dead(story: Story) -> None:
    story.archive[0] = archived("a", 8, 1, JobState.DEAD)


def one_death_archived_twice(story: Story) -> None:
    story.archive += [archived("a", 8, 1, JobState.DEAD)] * 2


def not_over(story: Story) -> None:
    story.archive[0] = archived("a", 8, 1, JobState.RUNNING)


def not_archived(story: Story) -> None:
    story.events.insert(2, (EventKind.ADDED, "c", {"payload": b"payload c"}))


def added_twice(story: Story) -> None:
    story.events.insert(2, story.events[0])


def two_holders(story: Story) -> None:
    del story.events[5]


def taken_by_a_stale_token(story: Story) -> None:
    story.events[8] = (EventKind.ACKED, "b", {"token": 2})


def finished_twice(story: Story) -> None:
    story.events.append(story.events[7])


def token_went_back(story: Story) -> None:
    story.events[6] = (EventKind.CLAIMED, "b", {"token": 1})


def cancelled_and_acked(story: Story) -> None:
    story.events.insert(7, (EventKind.CANCELLED, "a", {}))


def died(story: Story) -> None:
    story.events[8] = (EventKind.DIED, "b", {"token": 3})


def claimed_while_dead(story: Story) -> None:
    died(story)
    story.events.append((EventKind.CLAIMED, "b", {"token": 4}))


def revived_while_alive(story: Story) -> None:
    story.events.insert(3, (EventKind.REVIVED, "b", {}))


def dead_in_the_queue_alone(story: Story) -> None:
    story.dead = ["a"]


def never_added(story: Story) -> None:
    del story.events[1]


def elsewhere(story: Story) -> None:
    story.archive[1] = archived("b", 8, 3)


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (archived_twice, "in the archive more than once: a"),
        (archived_as_dead, "in the log, and not in the archive: a"),
        (archived_as_dead, "log and archive differ about deaths: a at 8"),
        (one_death_archived_twice, "one death archived twice: a at 8"),
        (not_over, "in the archive, and not over: a: running"),
        (not_archived, "in the log, and not in the archive: c"),
        (not_archived, "in the log, and not finished: c"),
        (added_twice, "added a, was added before"),
        (two_holders, "claimed b, is still claimed with token 2"),
        (taken_by_a_stale_token, "acked b, with token 2, but its claim is 3"),
        (finished_twice, "acked a, was finished at position 8"),
        (token_went_back, "has token 2 already, and 1 is no later one"),
        (cancelled_and_acked, "acked a, was finished at position 8"),
        (died, "dead in the log, and not in the queue: b"),
        (claimed_while_dead, "claimed b, is dead"),
        (revived_while_alive, "revived b, is not dead"),
        (dead_in_the_queue_alone, "dead in the queue, and not in the log: a"),
        (never_added, "claimed b, was never added"),
        (elsewhere, "log and archive differ: b"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_went_wrong_is_named(story: Story, mistake: Callable[[Story], None], says: str) -> None:
    mistake(story)
    assert [problem for problem in story.problems() if says in problem], story.problems()


def test_figures_are_taken_as_a_record_grows_and_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    recorder, ledger = Recorder(tmp_path / "p.record"), Ledger(tmp_path)
    recorder.answer(recorder.ask("enqueue", wishes=[Wish("1")]), Outcome.OK)
    recorder.answer(recorder.ask("ack", job="a", token=1), Outcome.REFUSED, error="LeaseLostError")
    ledger.read_on()
    assert (ledger.succeeded["enqueue"], ledger.errors["ack LeaseLostError"]) == (1, 1)
    with (tmp_path / "p.record").open("ab") as file:
        file.write(b'{"asked":{"call":"q","verb":"enqueue","at_ms":899999999993}}\n{"answered":{"call":"q",')
        file.flush()
        ledger.read_on()
        assert ledger.succeeded["enqueue"] == 1
        file.write(b'"at_ms":900000000000,"outcome":"ok"}}\n')
    ledger.read_on()
    assert ledger.succeeded["enqueue"] == 2
    assert ledger.longest_call_ms >= 7
    assert ledger.longest_silence_ms > 1_000_000


def test_who_was_killed_asks_again_for_what_got_no_answer_but_for_batches_that_its_source_went_on_without() -> None:
    def call(number: int, verb: str, request: str | None, outcome: Outcome | None) -> Call:
        answered = None if outcome is None else Answered(str(number), number, outcome)
        return Call(Asked(str(number), verb, number, request=request), answered)

    calls = [
        call(1, "admit", "lane/0 19", Outcome.FAILED),
        call(2, "admit", "lane/0 25", Outcome.OK),
        call(3, "admit", "lane/1 4", None),
        call(4, "enqueue", "r1", Outcome.UNKNOWN),
        call(5, "enqueue", "r2", Outcome.UNKNOWN),
        call(6, "enqueue", "r2", Outcome.OK),
        call(7, "ack", None, None),
    ]

    assert [asked.request for asked in unheard(calls)] == ["lane/1 4", "r1"]
