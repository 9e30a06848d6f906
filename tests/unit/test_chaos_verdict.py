"""The account that a chaos run is held to: it has to notice whatever a queue could do wrong."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from casque.service import ArchivedJob, EventKind, QueueEvent
from casque.testing.chaos.chronicle import Chronicle
from casque.testing.chaos.diary import NO, OK, TRY, Diary, Ledger
from casque.testing.chaos.verdict import judge
from casque.types import JobState

NOW = datetime(2026, 2, 15, tzinfo=UTC)


class Story:
    """Two jobs, a and b: enqueued, claimed and finished as it should be. Tests change a part of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.diary = Diary(folder / "p.diary")
        for job in ("a", "b"):
            self.diary.write(TRY, "enqueue", payload=f"payload {job}")
            self.diary.write(OK, "enqueue", payload=f"payload {job}", job=job)
        for job, token in (("a", 1), ("b", 3)):
            self.diary.write(OK, "dequeue", job=job, token=token)
            self.diary.write(TRY, "ack", job=job, token=token)
            self.diary.write(OK, "ack", job=job, token=token)
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

    def problems(self) -> list[str]:
        ledger, chronicle = Ledger(self._folder), Chronicle()
        ledger.read_on()
        for number, (kind, job, fields) in enumerate(self.events, start=1):
            chronicle.take(QueueEvent(number, 0, NOW, kind, job, fields))
        return judge(ledger, chronicle, self.archive)


def archived(job: str, position: int, token: int, state: JobState = JobState.DONE) -> ArchivedJob:
    payload = f"payload {job}".encode()
    return ArchivedJob(job, "work", payload, state, 1, NOW, NOW, NOW, position, position, token=token)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_nothing_is_held_against_a_run_that_went_well(story: Story) -> None:
    story.diary.write(NO, "ack", error="LeaseLostError")
    assert story.problems() == []


def lost(story: Story) -> None:
    story.diary.write(OK, "enqueue", payload="payload c", job="c")


def archived_twice(story: Story) -> None:
    story.archive.append(archived("a", 8, 1))


def dead(story: Story) -> None:
    story.archive[0] = archived("a", 8, 1, JobState.DEAD)


def invented(story: Story) -> None:
    story.archive.append(archived("z", 10, 4))


def stored_twice(story: Story) -> None:
    story.archive.append(msgspec.structs.replace(archived("c", 10, 4), payload=b"payload a"))


def acked_twice(story: Story) -> None:
    story.diary.write(OK, "ack", job="b", token=3)


def stale(story: Story) -> None:
    story.diary.write(OK, "ack", job="b", token=2)


def claimed_by_two(story: Story) -> None:
    story.diary.write(OK, "dequeue", job="a", token=1)


def token_of_two(story: Story) -> None:
    story.diary.write(OK, "dequeue", job="b", token=1)


def nobody_said_so(story: Story) -> None:
    story.archive[0] = archived("a", 8, 7)


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


def died(story: Story) -> None:
    story.events[8] = (EventKind.DIED, "b", {"token": 3})


def never_added(story: Story) -> None:
    del story.events[1]


def elsewhere(story: Story) -> None:
    story.archive[1] = archived("b", 8, 3)


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lost, "acknowledged, and not in the archive: c"),
        (archived_twice, "in the archive more than once: a"),
        (dead, "finished, but not done: a"),
        (invented, "nobody enqueued this: payload z"),
        (stored_twice, "stored more than once: payload a"),
        (acked_twice, "more than one ack was accepted: b"),
        (stale, "a stale ack was accepted: b: token 2"),
        (claimed_by_two, "one claim was given to two callers: a"),
        (token_of_two, "one token went to several jobs: 1"),
        (nobody_said_so, "done, and nobody had said so: a"),
        (not_archived, "in the log, and not in the archive: c"),
        (not_archived, "in the log, and not finished: c"),
        (added_twice, "added a, was added before"),
        (two_holders, "claimed b, is still claimed with token 2"),
        (taken_by_a_stale_token, "acked b, with token 2, but its claim is 3"),
        (finished_twice, "acked a, was finished at position 8"),
        (token_went_back, "has token 2 already, and 1 is no later one"),
        (died, "died b, which nobody asked for"),
        (never_added, "claimed b, was never added"),
        (elsewhere, "log and archive differ: b"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_went_wrong_is_named(story: Story, mistake: Callable[[Story], None], says: str) -> None:
    mistake(story)
    assert [problem for problem in story.problems() if says in problem], story.problems()


def test_a_diary_is_read_as_it_grows_and_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    diary, ledger = Diary(tmp_path / "p.diary"), Ledger(tmp_path)
    diary.write(OK, "enqueue", payload="1", job="a", took_ms=5)
    ledger.read_on()
    assert ledger.enqueued == {"1": "a"}
    with (tmp_path / "p.diary").open("ab") as file:
        file.write(b'{"what":"ok","verb":"enqueue",')
        file.flush()
        ledger.read_on()
        file.write(b'"at_ms":900000000000,"payload":"2","job":"b","took_ms":7}\n')
    ledger.read_on()
    assert ledger.enqueued == {"1": "a", "2": "b"}
    assert ledger.longest_call_ms == 7
    assert ledger.longest_silence_ms > 1_000_000
