"""The checker of recorded histories: a sound one passes, and each broken promise is named."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from casque.testing import history
from casque.testing.history import Call, Outcome, Recorder, check, read_records
from casque.testing.history.call import Answered, Asked, Claim, Wish
from casque.testing.history.linear import TooManyOrders, fits

LEASE_MS = 1_000
END_MS = 100_000


class Story:
    """Calls at times of a test's choosing."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.final: list[Claim] = []

    def call(
        self,
        verb: str,
        began_ms: int,
        ended_ms: int | None,
        outcome: Outcome = Outcome.OK,
        *,
        wishes: Sequence[Wish] = (),
        job: str | None = None,
        token: int = 0,
        zone: str | None = None,
        claims: Sequence[Claim] = (),
        granted: int = 0,
        request: str | None = None,
    ) -> None:
        name = f"p/{len(self.calls)}"
        asked = Asked(name, verb, began_ms, tuple(wishes), job, token, zone, LEASE_MS, request)
        answered = None if ended_ms is None else Answered(name, ended_ms, outcome, tuple(claims), granted)
        self.calls.append(Call(asked, answered))

    def enqueue(self, began_ms: int, ended_ms: int | None, job: str, **kinds: object) -> None:
        wish = Wish(f"tag {job}", **kinds)  # type: ignore[arg-type]
        self.call("enqueue", began_ms, ended_ms, wishes=[wish], claims=[Claim(job, wish.tag)])

    def dequeue(self, began_ms: int, ended_ms: int, job: str, token: int) -> None:
        self.call("dequeue", began_ms, ended_ms, claims=[Claim(job, f"tag {job}", token)])

    def done(self, job: str, token: int) -> None:
        self.final.append(Claim(job, f"tag {job}", token, "done"))

    def left(self, job: str, state: str = "waiting") -> None:
        self.final.append(Claim(job, f"tag {job}", 0, state))

    def problems(self) -> list[str]:
        return check(self.calls, self.final, ended_ms=END_MS).problems


def finished(story: Story, job: str = "a", at_ms: int = 0, token: int = 1, **kinds: object) -> None:
    """One job as it should be."""
    story.enqueue(at_ms, at_ms + 10, job, **kinds)
    story.dequeue(at_ms + 20, at_ms + 30, job, token)
    story.call("heartbeat", at_ms + 35, at_ms + 38, job=job, token=token)
    story.call("ack", at_ms + 40, at_ms + 50, job=job, token=token)
    story.done(job, token)


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_sound_history_passes(story: Story) -> None:
    finished(story, "a")
    finished(story, "b", 100, key="k")
    finished(story, "c", 200, key="k")
    finished(story, "d", 300, zone="z", fifo=True)
    finished(story, "e", 400, zone="z", fifo=True)
    story.call("enqueue", 500, 510, Outcome.REFUSED, wishes=[Wish("never")])
    story.call("enqueue", 500, None, wishes=[Wish("lost, perhaps")])
    story.call("ack", 600, 610, Outcome.REFUSED, job="a", token=1)
    story.call("cancel", 600, 610, Outcome.REFUSED, job="a")
    verdict = check(story.calls, story.final, ended_ms=END_MS)
    assert verdict.problems == []
    assert (verdict.calls, verdict.jobs, verdict.unknown) == (24, 5, 1)


def test_a_call_that_was_never_answered_may_have_acted_long_after(story: Story) -> None:
    story.enqueue(0, 10, "a")
    story.dequeue(20, 30, "a", 1)
    story.call("ack", 40, None, job="a", token=1)
    story.call("heartbeat", 500, 510, job="a", token=1)
    story.done("a", 1)
    assert story.problems() == []


def test_or_never(story: Story) -> None:
    story.enqueue(0, 10, "a")
    story.dequeue(20, 30, "a", 1)
    story.call("ack", 40, None, job="a", token=1)
    story.dequeue(2_000, 2_010, "a", 2)
    story.call("ack", 2_020, 2_030, job="a", token=2)
    story.done("a", 2)
    assert story.problems() == []


def test_a_claim_that_is_over_may_be_given_back_without_effect(story: Story) -> None:
    story.enqueue(0, 10, "a")
    story.dequeue(20, 30, "a", 1)
    story.dequeue(2_000, 2_010, "a", 2)
    story.call("ack", 2_020, 2_030, job="a", token=2)
    story.call("give_back", 3_000, 3_010, job="a", token=1)
    story.done("a", 2)
    assert story.problems() == []


def test_a_job_that_was_only_ever_seen_counts_as_added_by_the_call_that_asked_for_it(story: Story) -> None:
    story.call("enqueue", 0, None, wishes=[Wish("tag a")])
    story.dequeue(20, 30, "a", 1)
    story.left("a")
    assert story.problems() == []


def test_a_tick_needs_no_caller(story: Story) -> None:
    story.final.append(Claim("n-1", "tick nightly 1", 0, "waiting"))
    assert story.problems() == []


def lost(story: Story) -> None:
    story.enqueue(0, 10, "b")


def ack_lost(story: Story) -> None:
    story.enqueue(0, 10, "b")
    story.dequeue(20, 30, "b", 1)
    story.call("ack", 40, 50, job="b", token=1)
    story.left("b", "running")


def refused_and_there(story: Story) -> None:
    story.call("enqueue", 0, 10, Outcome.REFUSED, wishes=[Wish("tag b")])
    story.left("b")


def failed_and_there(story: Story) -> None:
    story.call("enqueue", 0, 10, Outcome.FAILED, wishes=[Wish("tag b")])
    story.left("b")


def stored_twice(story: Story) -> None:
    story.enqueue(0, 10, "b")
    story.left("b")
    story.final.append(Claim("c", "tag b", 0, "waiting"))


def invented(story: Story) -> None:
    story.left("b")


def ticked_twice(story: Story) -> None:
    story.final += [Claim("n-1", "tick nightly 1", 0, "waiting"), Claim("n-2", "tick nightly 1", 0, "waiting")]


def acked_twice(story: Story) -> None:
    finished(story, "b")
    story.call("ack", 60, 70, job="b", token=1)


def stale_ack(story: Story) -> None:
    story.enqueue(0, 10, "b")
    story.dequeue(20, 30, "b", 1)
    story.dequeue(2_000, 2_010, "b", 2)
    story.call("ack", 2_020, 2_030, job="b", token=1)
    story.done("b", 1)


def tokens_fell(story: Story) -> None:
    story.enqueue(0, 10, "b")
    story.dequeue(20, 30, "b", 5)
    story.dequeue(2_000, 2_010, "b", 4)
    story.left("b")


def claimed_after_its_end(story: Story) -> None:
    finished(story, "b")
    story.dequeue(2_000, 2_010, "b", 2)


def one_token_to_two(story: Story) -> None:
    story.enqueue(0, 10, "b")
    story.dequeue(20, 30, "b", 1)
    story.dequeue(2_000, 2_010, "b", 1)
    story.left("b")


def two_leases(story: Story) -> None:
    story.enqueue(0, 10, "b")
    story.dequeue(20, 30, "b", 1)
    story.dequeue(500, 510, "b", 2)
    story.left("b")


def beaten_and_taken(story: Story) -> None:
    story.enqueue(0, 10, "b")
    story.dequeue(20, 30, "b", 1)
    story.call("heartbeat", 900, 910, job="b", token=1)
    story.dequeue(1_400, 1_410, "b", 2)
    story.left("b")


def key_twice(story: Story) -> None:
    story.enqueue(0, 10, "b", key="k")
    story.enqueue(20, 30, "c", key="k")
    story.left("b")
    story.left("c")


def fifo_passed(story: Story) -> None:
    story.enqueue(0, 10, "b", zone="z", fifo=True)
    finished(story, "c", 20, zone="z", fifo=True)
    story.left("b")


def fifo_two_at_once(story: Story) -> None:
    story.enqueue(0, 10, "b", zone="z", fifo=True)
    story.enqueue(0, 10, "c", zone="z", fifo=True)
    story.dequeue(20, 30, "b", 1)
    story.dequeue(40, 50, "c", 2)
    story.left("b")
    story.left("c")


def zone_leased_twice(story: Story) -> None:
    story.call("lease_zone", 0, 10, zone="z", granted=1)
    story.call("lease_zone", 100, 110, zone="z", granted=2)


def zone_beaten_and_leased(story: Story) -> None:
    story.call("lease_zone", 0, 10, zone="z", granted=1)
    story.call("heartbeat_zone", 900, 910, zone="z", token=1)
    story.call("lease_zone", 1_400, 1_410, zone="z", granted=2)


def two_answers(story: Story) -> None:
    for job in ("b", "c"):
        story.call("enqueue", 0, 10, wishes=[Wish("tag b")], claims=[Claim(job, "tag b")], request="r")
        story.final.append(Claim(job, "tag b", 0, "waiting"))


def done_and_refused(story: Story) -> None:
    story.call("enqueue", 0, 10, wishes=[Wish("tag b")], claims=[Claim("b", "tag b")], request="r")
    story.call("enqueue", 20, 30, Outcome.REFUSED, wishes=[Wish("tag b")], request="r")
    story.left("b")


def vanished_to_a_reader(story: Story) -> None:
    story.enqueue(0, 10, "b")
    story.call("read", 20, 30, job="b")
    story.left("b")


def stale_read(story: Story) -> None:
    finished(story, "b")
    story.call("read", 60, 70, job="b", claims=[Claim("b", "tag b", 0, "waiting")])


def given_back_and_done(story: Story) -> None:
    story.enqueue(0, 10, "b")
    story.dequeue(20, 30, "b", 1)
    story.call("give_back", 40, 50, job="b", token=1)
    story.call("ack", 60, 70, job="b", token=1)
    story.done("b", 1)


def cancelled_and_done(story: Story) -> None:
    story.enqueue(0, 10, "b")
    story.dequeue(20, 30, "b", 1)
    story.call("cancel", 40, 50, job="b")
    story.call("ack", 60, 70, job="b", token=1)
    story.done("b", 1)


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lost, "tag b was acknowledged and is nowhere in the end"),
        (lost, "no order explains job b"),
        (ack_lost, "no order explains job b"),
        (refused_and_there, "tag b is there although its enqueue was refused"),
        (failed_and_there, "tag b is there although its enqueue was failed"),
        (stored_twice, "tag b is there 2 times: b, c"),
        (invented, "nobody asked for tag b"),
        (ticked_twice, "tick nightly 1 is there 2 times"),
        (acked_twice, "no order explains job b"),
        (stale_ack, "no order explains job b"),
        (tokens_fell, "no order explains job b"),
        (claimed_after_its_end, "no order explains job b"),
        (one_token_to_two, "token 1 was given to two callers"),
        (two_leases, "two leases at once: b token 1 until 1020, b token 2 from 510"),
        (beaten_and_taken, "two leases at once: b token 1 until 1900, b token 2 from 1410"),
        (key_twice, "key 'k' held twice"),
        (fifo_passed, "FIFO zone 'z': c claimed by 50, b was before it"),
        (fifo_two_at_once, "FIFO zone 'z': b token 1 and c token 2 at once"),
        (zone_leased_twice, "zone 'z' leased twice: token 1 until 1000, token 2 from 110"),
        (zone_beaten_and_leased, "zone 'z' leased twice: token 1 until 1900, token 2 from 1410"),
        (two_answers, "request r was answered in 2 ways"),
        (done_and_refused, "request r was carried out and refused"),
        (vanished_to_a_reader, "no order explains job b"),
        (stale_read, "no order explains job b"),
        (cancelled_and_done, "no order explains job b"),
        (given_back_and_done, "no order explains job b"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_broken_promise_is_named(story: Story, mistake: Callable[[Story], None], says: str) -> None:
    finished(story)
    mistake(story)
    assert [problem for problem in story.problems() if says in problem], story.problems()


def test_a_record_is_read_back_and_half_a_line_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "p.record")
    asked = recorder.ask("enqueue", wishes=[Wish("1", key="k")], request="r")
    recorder.answer(asked, Outcome.OK, claims=[Claim("a", "1")])
    recorder.ask("ack", job="a", token=1)
    with (tmp_path / "p.record").open("ab") as file:
        file.write(b'{"asked":{"call":"p/3"')
    first, second = read_records(tmp_path)
    assert (first.verb, first.outcome, first.claims) == ("enqueue", Outcome.OK, (Claim("a", "1"),))
    assert (second.verb, second.outcome) == ("ack", Outcome.UNKNOWN)
    assert first.began_ms <= first.ended_ms <= second.began_ms < second.ended_ms


def test_a_tangle_is_given_up_rather_than_guessed_at(monkeypatch: pytest.MonkeyPatch, story: Story) -> None:
    monkeypatch.setattr("casque.testing.history.linear.STEPS_MAX", 5)
    finished(story)
    verdict = check(story.calls, story.final, ended_ms=END_MS)
    assert verdict.undecided == ["a"]
    with pytest.raises(TooManyOrders):
        fits(history.check.__globals__["register"](story.calls, story.final, END_MS).jobs["a"].steps)


def test_the_checker_imports_nothing_of_the_queue() -> None:
    folder = Path(history.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert not name.startswith("casque") or name.startswith("casque.testing.history"), (path.name, name)
