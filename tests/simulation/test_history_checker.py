"""The checker of recorded histories: a sound one passes, and each broken promise is named."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from simulation import history
from simulation.history import Call, Outcome, Recorder, check, read_records
from simulation.history.call import Answered, Asked, Claim, Wish
from simulation.history.linear import TooManyOrders, fits

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
        **more: Any,
    ) -> None:
        name = f"p/{len(self.calls)}"
        asked = Asked(name, verb, began_ms, tuple(wishes), job, token, zone, LEASE_MS, request, **more)
        answered = None if ended_ms is None else Answered(name, ended_ms, outcome, tuple(claims), granted)
        self.calls.append(Call(asked, answered))

    def admit(self, began_ms: int, ended_ms: int | None, *jobs: str, added: int = -1, repeated: bool = False) -> None:
        """An attempt at batch 1 of one source."""
        name = f"p/{len(self.calls)}"
        wishes = tuple(Wish(f"tag {job}") for job in jobs)
        asked = Asked(name, "admit", began_ms, wishes, request="nightly 1", whole=True)
        answer = Answered(name, ended_ms or 0, Outcome.OK, repeated=repeated, jobs=len(jobs) if added < 0 else added)
        self.calls.append(Call(asked, answer if ended_ms is not None else None))

    def gate(self, began_ms: int, ended_ms: int | None, gate: str, request: str | None = None) -> None:
        self.call("gate", began_ms, ended_ms, entrypoint="send", gate=gate, request=request)

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


def test_a_batch_that_is_repeated_is_admitted_once(story: Story) -> None:
    story.admit(0, None, "a", "b")
    story.admit(20, 30, "a", "b", repeated=True)
    story.dequeue(40, 50, "a", 1)
    story.call("ack", 60, 70, job="a", token=1)
    story.admit(80, 90, "a", "b", repeated=True)
    story.done("a", 1)
    story.left("b")
    assert story.problems() == []


def test_a_batch_that_nobody_heard_of_again_is_there_or_is_not(story: Story) -> None:
    story.admit(0, None, "a", "b")
    assert story.problems() == []
    story.left("a")
    story.left("b")
    assert story.problems() == []


def died(story: Story, job: str = "b") -> None:
    """A job with one attempt, which failed."""
    story.enqueue(0, 10, job, once=True)
    story.dequeue(20, 30, job, 1)
    story.call("nack", 40, 50, job=job, token=1)


def test_a_dead_job_runs_again_when_it_is_retried(story: Story) -> None:
    died(story)
    story.call("cancel", 55, 58, Outcome.REFUSED, job="b")
    story.call("retry", 60, 70, job="b", request="r")
    story.call("retry", 80, 90, job="b", request="r")
    story.dequeue(100, 110, "b", 2)
    story.call("retry", 112, 118, Outcome.REFUSED, job="b")
    story.call("give_back", 120, 130, job="b", token=2)
    story.dequeue(140, 150, "b", 3)
    story.call("ack", 160, 170, job="b", token=3)
    story.done("b", 3)
    assert story.problems() == []


def test_a_job_with_one_attempt_dies_with_a_lease_that_runs_out(story: Story) -> None:
    story.enqueue(0, 10, "b", once=True)
    story.dequeue(20, 30, "b", 1)
    story.call("ack", 2_000, 2_010, Outcome.REFUSED, job="b", token=1)
    story.call("read", 2_020, 2_030, job="b", claims=[Claim("b", "tag b", 1, "dead")])
    story.call("retry", 2_040, 2_050, job="b")
    story.left("b")
    assert story.problems() == []


def test_a_claim_that_never_arrived_may_have_been_given_back(story: Story) -> None:
    story.enqueue(0, 10, "b", once=True)
    story.call("dequeue", 20, None)
    story.call("read", 30, 40, job="b", claims=[Claim("b", "tag b", 1, "running")])
    story.dequeue(50, 60, "b", 2)
    story.call("ack", 70, 80, job="b", token=2)
    story.done("b", 2)
    assert story.problems() == []


def test_a_gate_is_judged_only_where_it_certainly_was_closed(story: Story) -> None:
    story.enqueue(0, 10, "b", entrypoint="send")
    story.gate(100, 200, "paused")
    story.dequeue(150, 250, "b", 1)  # perhaps before it was closed
    story.call("nack", 260, 270, job="b", token=1)
    story.gate(300, 400, "open")
    story.dequeue(280, 310, "b", 2)  # perhaps when it was open again
    story.call("nack", 410, 420, job="b", token=2)
    story.gate(500, 510, "paused", request="p")
    story.gate(520, None, "open", request="o")
    story.dequeue(700, 710, "b", 3)  # who knows what became of the call that opens it
    story.call("ack", 720, 730, job="b", token=3)
    story.done("b", 3)
    assert story.problems() == []


def test_what_drains_is_still_claimed_and_what_is_paused_is_still_added(story: Story) -> None:
    story.gate(0, 10, "paused")
    story.enqueue(20, 30, "b", entrypoint="send")
    story.gate(40, 50, "draining")
    story.dequeue(60, 70, "b", 1)
    story.call("ack", 80, 90, job="b", token=1)
    story.done("b", 1)
    assert story.problems() == []


def test_a_dequeue_that_is_repeated_answers_what_it_still_holds(story: Story) -> None:
    story.enqueue(0, 10, "b")
    story.enqueue(0, 10, "c")
    both = [Claim("b", "tag b", 1), Claim("c", "tag c", 2)]
    story.call("dequeue", 20, None, request="d")
    story.call("dequeue", 30, 40, claims=both, request="d")
    story.call("ack", 50, 60, job="b", token=1)
    story.call("dequeue", 70, 80, claims=both[1:], request="d")
    story.done("b", 1)
    story.left("c")
    assert story.problems() == []


def test_an_ack_that_was_refused_when_it_was_repeated_never_acted(story: Story) -> None:
    story.enqueue(0, 10, "b")
    story.dequeue(20, 30, "b", 1)
    story.call("ack", 40, None, job="b", token=1, request="k")
    story.call("ack", 2_000, 2_010, Outcome.REFUSED, job="b", token=1, request="k")
    story.left("b")
    assert story.problems() == []


def test_a_resize_changes_nothing_about_jobs_keys_and_zones(story: Story) -> None:
    story.enqueue(0, 10, "b", key="k")
    story.call("resize", 20, 30, shards=8)
    story.call("enqueue", 40, 50, wishes=[Wish("tag c", key="k")], claims=[Claim("b", "tag b")])
    story.dequeue(60, 70, "b", 1)
    story.call("resize", 80, None, shards=2)
    story.call("ack", 90, 100, job="b", token=1)
    story.done("b", 1)
    assert story.problems() == []


def admitted_twice(story: Story) -> None:
    story.admit(0, 10, "b")
    story.admit(20, 30, "b")
    story.left("b")


def admitted_again_after_its_end(story: Story) -> None:
    story.admit(0, 10, "b")
    story.dequeue(20, 30, "b", 1)
    story.call("ack", 40, 50, job="b", token=1)
    story.done("b", 1)
    story.admit(60, 70, "b", repeated=True)
    story.left("b")


def staged_and_admitted_under_new_ids(story: Story) -> None:
    story.admit(0, 10, "b")
    story.left("b")
    story.final.append(Claim("b2", "tag b", 0, "waiting"))


def admission_lost(story: Story) -> None:
    story.admit(0, None, "b")
    story.admit(20, 30, "b", repeated=True)


def admitted_in_part(story: Story) -> None:
    story.admit(0, None, "b", "c")
    story.left("b")


def admitted_fewer_than_asked(story: Story) -> None:
    story.admit(0, 10, "b", "c", added=1)
    story.left("b")
    story.left("c")


def enqueued_in_part(story: Story) -> None:
    story.call("enqueue", 0, None, wishes=[Wish("tag b"), Wish("tag c")], whole=True)
    story.left("c")


def admission_refused_and_there(story: Story) -> None:
    story.call("admit", 0, 10, Outcome.REFUSED, wishes=[Wish("tag b")], request="nightly 1")
    story.left("b")


def ran_twice_after_one_retry(story: Story) -> None:
    died(story)
    story.call("retry", 60, 70, job="b")
    story.dequeue(80, 90, "b", 2)
    story.call("nack", 100, 110, job="b", token=2)
    story.dequeue(120, 130, "b", 3)
    story.left("b", "dead")


def retry_carried_out_twice(story: Story) -> None:
    died(story)
    story.call("retry", 60, 70, job="b", request="r")
    story.dequeue(80, 90, "b", 2)
    story.call("nack", 100, 110, job="b", token=2)
    story.call("retry", 120, 130, job="b", request="r")
    story.dequeue(140, 150, "b", 3)
    story.left("b", "dead")


def ran_without_a_retry(story: Story) -> None:
    died(story)
    story.dequeue(60, 70, "b", 2)
    story.left("b", "dead")


def ran_again_after_its_lease_without_a_retry(story: Story) -> None:
    story.enqueue(0, 10, "b", once=True)
    story.dequeue(20, 30, "b", 1)
    story.dequeue(2_000, 2_010, "b", 2)
    story.left("b", "dead")


def retry_lost(story: Story) -> None:
    died(story)
    story.call("retry", 60, 70, job="b")
    story.call("read", 80, 90, job="b", claims=[Claim("b", "tag b", 1, "waiting")])
    story.call("retry", 100, 110, Outcome.REFUSED, job="b")
    story.call("cancel", 120, 130, job="b")
    story.left("b", "dead")


def retry_refused_although_dead(story: Story) -> None:
    died(story)
    story.call("retry", 60, 70, Outcome.REFUSED, job="b")
    story.left("b", "dead")


def cancelled_although_dead(story: Story) -> None:
    died(story)
    story.call("cancel", 60, 70, job="b")
    story.left("b", "cancelled")


def claimed_while_paused(story: Story) -> None:
    story.enqueue(0, 10, "b", entrypoint="send")
    story.gate(20, 30, "paused")
    story.dequeue(40, 50, "b", 1)
    story.gate(60, 70, "open")
    story.left("b")


def claimed_before_an_older_pause_was_lifted(story: Story) -> None:
    story.gate(0, 10, "open")
    story.enqueue(0, 10, "b", entrypoint="send")
    story.gate(20, None, "paused", request="p")
    story.gate(100, 110, "paused", request="p")
    story.dequeue(120, 130, "b", 1)
    story.left("b")


def added_while_draining(story: Story) -> None:
    story.gate(20, 30, "draining")
    story.enqueue(40, 50, "b", entrypoint="send")
    story.left("b")


def acted_and_refused_when_repeated(story: Story) -> None:
    story.enqueue(0, 10, "b")
    story.dequeue(20, 30, "b", 1)
    story.call("ack", 40, None, job="b", token=1, request="k")
    story.call("ack", 60, 70, Outcome.REFUSED, job="b", token=1, request="k")
    story.done("b", 1)


def claimed_anew_when_repeated(story: Story) -> None:
    for job, token in (("b", 1), ("c", 2)):
        story.enqueue(0, 10, job)
        story.call("dequeue", 20 * token, 20 * token + 10, claims=[Claim(job, f"tag {job}", token)], request="d")
        story.left(job)


def lost_by_a_resize(story: Story) -> None:
    story.enqueue(0, 10, "b")
    story.call("resize", 20, 30, shards=2)
    story.call("read", 40, 50, job="b")
    story.left("b")


def in_two_shards_after_a_resize(story: Story) -> None:
    story.enqueue(0, 10, "b")
    story.call("resize", 20, 30, shards=8)
    story.left("b")
    story.left("b")


def key_twice_across_a_resize(story: Story) -> None:
    story.enqueue(0, 10, "b", key="k")
    story.call("resize", 12, 18, shards=8)
    story.enqueue(20, 30, "c", key="k")
    story.left("b")
    story.left("c")


def zone_in_two_shards(story: Story) -> None:
    story.enqueue(0, 10, "b", zone="z", fifo=True)
    story.call("resize", 12, 18, shards=8)
    story.enqueue(20, 30, "c", zone="z", fifo=True)
    story.dequeue(40, 50, "b", 1)
    story.dequeue(60, 70, "c", 1)
    story.left("b")
    story.left("c")


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
        (admitted_twice, "batch nightly 1 was admitted 2 times"),
        (admitted_again_after_its_end, "job b is there twice in the end"),
        (staged_and_admitted_under_new_ids, "tag b is there 2 times: b, b2"),
        (admission_lost, "tag b was acknowledged and is nowhere in the end"),
        (admitted_in_part, "1 of 2 jobs of one admit are there, tag c is not"),
        (admitted_fewer_than_asked, "batch nightly 1 has 2 jobs, and 1 were admitted"),
        (enqueued_in_part, "1 of 2 jobs of one enqueue are there, tag b is not"),
        (admission_refused_and_there, "tag b is there although its admit was refused"),
        (ran_twice_after_one_retry, "no order explains job b"),
        (retry_carried_out_twice, "no order explains job b"),
        (ran_without_a_retry, "no order explains job b"),
        (ran_again_after_its_lease_without_a_retry, "no order explains job b"),
        (retry_lost, "no order explains job b"),
        (retry_refused_although_dead, "no order explains job b"),
        (cancelled_although_dead, "no order explains job b"),
        (claimed_while_paused, "'send' was paused since 30, and b was claimed with token 1"),
        (claimed_before_an_older_pause_was_lifted, "'send' was paused since 110, and b was claimed with token 1"),
        (added_while_draining, "'send' was draining since 30, and b was added"),
        (acted_and_refused_when_repeated, "no order explains job b"),
        (claimed_anew_when_repeated, "request d claimed once more"),
        (lost_by_a_resize, "no order explains job b"),
        (in_two_shards_after_a_resize, "job b is there twice in the end"),
        (key_twice_across_a_resize, "key 'k' held twice"),
        (zone_in_two_shards, "FIFO zone 'z': b token 1 and c token 1 at once"),
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
    monkeypatch.setattr("simulation.history.linear.STEPS_MAX", 5)
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
                outside = name.startswith(("casque", "simulation")) and not name.startswith("simulation.history")
                assert not outside, (path.name, name)
