"""Turns between zones: shares, weights, priorities, limits, FIFO zones, and what a zone costs."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from typing import Any

import pytest

from casque.clock import Random
from casque.errors import InvalidInputError
from casque.service import Outcome, OutcomeKind
from casque.service.requests import Ack, Cancel, Dequeue, Enqueue, Nack, Retry, Settle, SetZone
from casque.state import Expire, Observed, State, fair
from casque.state.zone_lines import Line
from casque.types import JobRecord, JobSpec, JobState, ZoneRules


class Played:
    """A state with a clock and commits."""

    def __init__(self) -> None:
        self.state = State()
        self.now_ms = 1_000
        self.number = 0

    def run(self, command: Any) -> Any:
        answer = self.state.execute(command, self.now_ms)
        self.state.commit(writer="w", batch=1, at_ms=self.now_ms)
        return answer

    def add(self, zone: str | None, jobs: int = 1, **fields: Any) -> list[str]:
        entrypoint = fields.pop("entrypoint", "a")
        specs = []
        for _ in range(jobs):
            self.number += 1
            specs.append(JobSpec(f"{zone}-{self.number}", entrypoint, b"", zone=zone, **fields))
        self.run(Enqueue(tuple(specs)))
        return [spec.id for spec in specs]

    def claim(self, limit: int = 1, *, entrypoints: Any = None, zones: Any = None) -> list[JobRecord]:
        claimed: list[JobRecord] = self.run(Dequeue(entrypoints, limit, 60_000, "w", None, zones))
        return claimed

    def zones(self, limit: int, **asked: Any) -> list[str | None]:
        """Whose the next jobs are; each is done at once."""
        claimed: list[str | None] = []
        for _ in range(limit):
            for job in self.claim(**asked):
                claimed.append(job.spec.zone)
                self.run(Ack(job.id, job.token))
        return claimed


@pytest.fixture
def play() -> Played:
    return Played()


def test_a_giant_delays_nobody_beyond_one_round(play: Played) -> None:
    play.add("giant", 5_000)
    assert set(play.zones(500)) == {"giant"}  # alone, it has everything
    for n in range(20):
        play.add(f"small-{n}")
    round_ = play.zones(22)
    assert {f"small-{n}" for n in range(20)} < set(round_)
    assert round_.count("giant") == 2
    assert set(play.zones(100)) == {"giant"}


def test_jobs_without_a_zone_take_turns_like_a_zone(play: Played) -> None:
    play.add(None, 100)
    play.add("acme", 100)
    assert Counter(play.zones(100)) == {None: 50, "acme": 50}
    assert Counter(play.zones(100)) == {None: 50, "acme": 50}
    assert play.zones(1) == []


def test_shares_follow_the_weights_whatever_the_size_of_a_claim(play: Played) -> None:
    for zone, weight in (("one", 1.0), ("two", 2.0), ("half", 0.5)):
        play.run(SetZone(zone, ZoneRules(weight=weight)))
        play.add(zone, 1_000)
    shares = Counter(job.spec.zone for _ in range(70) for job in play.claim(10))
    assert shares == {"one": 200, "two": 400, "half": 100}


def test_whoever_comes_and_goes_gains_nothing_by_it(play: Played) -> None:
    for n in range(4):
        play.add(f"backlog-{n}", 1_000)
    play.add("hopping")
    served: Counter[str | None] = Counter()
    for _ in range(500):
        [zone] = play.zones(1)
        served[zone] += 1
        if zone == "hopping":
            play.add("hopping")
    assert served == dict.fromkeys([*(f"backlog-{n}" for n in range(4)), "hopping"], 100)


def test_time_without_jobs_is_not_saved_up(play: Played) -> None:
    play.add("busy", 1_000)
    play.add("late")
    play.zones(600)
    play.add("late", 100)
    assert Counter(play.zones(20)) == {"busy": 10, "late": 10}


def test_priorities_come_before_turns_and_each_has_turns_of_its_own(play: Played) -> None:
    play.add("giant", 100, priority=-1)
    play.add("small", priority=0)
    play.add("giant", 100, priority=0)
    assert set(play.zones(100)) == {"giant"}
    assert "small" in play.zones(2)


def test_a_zone_that_has_jobs_of_several_entrypoints_has_one_share_and_one_order(play: Played) -> None:
    rng = Random(1)
    for _ in range(50):
        play.add("many", entrypoint=rng.choice("abcd"))
        play.add("one", entrypoint="b")
        play.now_ms += rng.randrange(2)
    claimed = play.claim(100, entrypoints=("a", "b", "c", "d"))
    for zone in ("many", "one"):
        numbers = [job.sequence for job in claimed if job.spec.zone == zone]
        assert numbers == sorted(numbers)
        assert len(numbers) == 50
    assert Counter(job.spec.zone for job in claimed[:60]) == {"many": 30, "one": 30}


def test_a_zone_that_is_named_has_one_order_though_one_of_its_entrypoints_has_waited_longer(play: Played) -> None:
    [given_up] = play.add("acme", entrypoint="mail")
    play.add("initech", 10, entrypoint="mail")
    play.zones(5, zones=("initech",))
    in_order = play.add("acme", entrypoint="report") + play.add("acme", entrypoint="mail")
    play.run(Cancel(given_up))
    assert [job.id for job in play.claim(2, zones=("acme",))] == in_order


def test_claims_by_zone_take_from_these_alone(play: Played) -> None:
    for zone in ("x", "y", "z", None):
        play.add(zone, 3)
    assert Counter(play.zones(5, zones=("x", "z"))) == {"x": 3, "z": 2}
    assert play.claim(5, zones=("nobody",)) == []
    assert play.claim(5, zones=("y",), entrypoints=("other",)) == []
    assert Counter(play.zones(10)) == {"y": 3, "z": 1, None: 3}


@pytest.mark.parametrize("asked", [{}, {"zones": ("acme",)}, {"entrypoints": ("a", "b")}])
def test_running_jobs_of_a_zone_are_limited_by_its_live_leases(play: Played, asked: Any) -> None:
    play.add("acme", 10)
    play.add("acme", 10, entrypoint="b")
    play.run(SetZone("acme", ZoneRules(running_max=3)))
    first = play.claim(10, **asked)
    assert len(first) == 3
    assert play.claim(10, **asked) == []
    play.run(Ack(first[0].id, first[0].token))
    play.run(Nack(first[1].id, first[1].token))
    assert len(play.claim(10, **asked)) == 2
    play.run(Expire((Observed(first[2].id, first[2].token, first[2].beat_ms),)))
    assert len(play.claim(10, **asked)) == 1
    # What was undone is not counted.
    play.run(SetZone("acme", ZoneRules(running_max=5)))
    assert len(play.state.execute(Dequeue(None, 10, 1), play.now_ms)) == 2
    play.state.rollback()
    assert len(play.claim(10, **asked)) == 2
    play.run(SetZone("acme", ZoneRules()))
    assert len(play.claim(100)) == 20 - 1 - 5


def test_a_rate_spreads_the_jobs_of_a_zone_and_tells_when_it_goes_on(play: Played) -> None:
    play.run(SetZone("slow", ZoneRules(per_second=20)))
    play.add("slow", 100)
    play.add("other")
    claimed = len(play.claim(100, zones=("slow",)))
    assert claimed == 2  # a tenth of a second at once
    assert play.zones(5) == ["other"]
    assert not play.state.has_due(None, play.now_ms)
    for _ in range(20):
        due_ms = play.state.next_due_ms()
        assert due_ms is not None
        assert play.now_ms < due_ms <= play.now_ms + 50
        play.now_ms = due_ms
        assert play.state.has_due(("a",), play.now_ms)
        claimed += len(play.claim(100))
    assert play.now_ms == 2_000
    assert claimed == 22
    play.now_ms += 60_000  # nothing is saved up beyond that tenth
    assert len(play.claim(100)) == 2
    play.run(SetZone("slow", ZoneRules()))
    assert len(play.claim(100)) == 100 - 24


def test_a_paused_zone_keeps_its_jobs_and_the_others_go_on(play: Played) -> None:
    play.add("acme", 3)
    play.add("other", 2)
    play.run(SetZone("acme", ZoneRules(paused=True)))
    assert play.zones(5) == ["other", "other"]
    assert not play.state.has_due(None, play.now_ms)
    play.add("acme")
    assert play.claim(zones=("acme",)) == []
    play.run(SetZone("acme", ZoneRules()))
    assert play.zones(5) == ["acme"] * 4


# --- FIFO ---


def test_a_fifo_zone_ignores_priorities_and_gives_one_job_at_a_time(play: Played) -> None:
    first, second = play.add("line", priority=9, fifo=True), play.add("line", priority=-9, fifo=True, entrypoint="b")
    play.add("line", 3, fifo=True)
    play.add(None, priority=1)
    [job] = play.claim(10, zones=("line",))
    assert [job.id] == first
    assert play.claim(10, zones=("line",)) == []
    assert [one.spec.zone for one in play.claim(10)] == [None]
    play.run(Ack(job.id, job.token))
    assert play.claim(entrypoints=("a",)) == []  # a job of another entrypoint is first
    [job] = play.claim(entrypoints=("b", "a"))
    assert [job.id] == second


def test_a_fifo_zone_waits_for_a_job_that_failed_crashed_or_was_undone(play: Played) -> None:
    ids = play.add("line", 4, fifo=True, max_attempts=3)
    [job] = play.claim()
    play.run(Nack(job.id, job.token, delay_ms=500))
    assert play.claim(10) == []
    assert play.state.next_due_ms() == play.now_ms + 500
    play.now_ms += 500
    [job] = play.claim(10)
    assert job.id == ids[0]
    play.run(Expire((Observed(job.id, job.token, job.beat_ms),)))
    [job] = play.claim(10)
    assert job.id == ids[0]
    assert play.claim(10) == []
    play.state.execute(Ack(job.id, job.token), play.now_ms)
    [undone] = play.state.execute(Dequeue(None, 10, 1), play.now_ms)
    assert undone.id == ids[1]
    play.state.rollback()
    assert play.claim(10) == []
    play.run(Nack(job.id, job.token))  # its last attempt: the line goes on without it
    assert play.state.jobs[ids[0]].state is JobState.DEAD
    [job] = play.claim(10)
    assert job.id == ids[1]
    play.run(Ack(job.id, job.token))
    play.run(Retry(ids[0]))
    [job] = play.claim(10)
    assert job.id == ids[0]
    play.run(Cancel(job.id))
    play.run(Cancel(ids[2]))
    [job] = play.claim(10)
    assert job.id == ids[3]
    play.run(Settle((Outcome(job.id, job.token, how=OutcomeKind.SNOOZED, delay_ms=100),)))
    assert play.claim(10) == []
    play.add("line", fifo=True)
    play.now_ms += 100
    assert [one.id for one in play.claim(10)] == [ids[3]]


def test_the_order_of_a_fifo_zone_survives_storage(play: Played) -> None:
    ids = play.add("line", 20, fifo=True)
    [job] = play.claim()
    play.run(Nack(job.id, job.token, delay_ms=50))
    again = Played()
    again.state.restore(play.state.jobs.values(), play.state.counters, play.state.position)
    assert again.claim(10) == []
    again.now_ms = play.now_ms + 50
    order = []
    for _ in ids:
        [job] = again.claim(10)
        order.append(job.id)
        again.run(Ack(job.id, job.token))
    assert order == ids


@pytest.mark.parametrize(
    ("first", "then", "problem"),
    [
        ({"fifo": True}, {}, "is FIFO: enqueue with fifo=True"),
        ({}, {"fifo": True}, "is not FIFO"),
        ({"fifo": True}, {"fifo": True, "run_at_ms": 5_000}, "none of them can be delayed"),
    ],
)
def test_what_does_not_fit_a_fifo_zone_is_refused(play: Played, first: Any, then: Any, problem: str) -> None:
    [job_id] = play.add("line", **first)
    with pytest.raises(InvalidInputError, match=problem):
        play.add("line", **then)
    assert list(play.state.jobs) == [job_id]
    play.run(Cancel(job_id))
    if "run_at_ms" not in then:
        play.add("line", **then)  # an empty zone is whatever its next job says


def test_fifo_without_a_zone_and_mixed_calls_are_refused(play: Played) -> None:
    with pytest.raises(InvalidInputError, match="say which zone"):
        play.add(None, fifo=True)
    mixed = (JobSpec("1", "a", b"", zone="z", fifo=True), JobSpec("2", "a", b"", zone="z"))
    with pytest.raises(InvalidInputError, match="another zone"):
        play.run(Enqueue(mixed))
    assert not play.state.jobs
    assert not play.state.zone_jobs


# --- Cost ---


def test_a_zone_with_jobs_costs_little_and_one_without_nothing() -> None:
    def filled(zones: int) -> tuple[State, int]:
        gc.collect()
        tracemalloc.start()
        state = State()
        names = [f"tenant-{n}" for n in range(zones)]
        specs = [JobSpec(f"job-{n}", "a", b"", zone=names[n % zones]) for n in range(20_000)]
        before = tracemalloc.get_traced_memory()[0]
        for start in range(0, len(specs), 1_000):
            state.execute(Enqueue(tuple(specs[start : start + 1_000])), 1_000)
            state.commit(writer="w", batch=start, at_ms=1_000)
        state.peek(None, None, 100, 1_000)  # which keeps zones by vesting time from then on
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        return state, used

    _, few = filled(1)
    state, many = filled(20_000)
    assert (many - few) / 20_000 < 500
    for job in state.execute(Dequeue(None, 20_000, 1), 1_000):
        state.execute(Ack(job.id, job.token), 1_000)
    state.commit(writer="w", batch=0, at_ms=1_000)
    assert not state.has_due(None, 1_000)
    fair = state.ready.fair
    limits = fair.limits
    held = (
        state.zone_jobs,
        fair.boards,
        limits.running,
        fair.fifos,
        fair._levels.known,
        fair._parked,
        limits.paced_ms,
    )
    assert not any(held)


@pytest.mark.parametrize("seed", range(12))
def test_many_entrypoints_change_nothing_about_whose_turn_it_is(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few boards are looked through, many have heaps: both hand out the same jobs in the same order."""
    answers: list[list[list[str]]] = []
    for few in (0, 10**9):
        monkeypatch.setattr(fair, "BOARDS_FEW", few)
        answers.append(played_at_random(Random(seed)))
    assert answers[0] == answers[1]


def played_at_random(rng: Random) -> list[list[str]]:
    play, claimed, running = Played(), [], []
    for _ in range(400):
        chosen = rng.random()
        if chosen < 0.4:
            zone = rng.choice([None, "a", "b", "c", "d"])
            play.add(zone, rng.randint(1, 4), entrypoint=f"e{rng.randint(0, 9)}", priority=rng.randint(0, 1))
        elif chosen < 0.45:
            play.add("strict", 1, entrypoint=f"e{rng.randint(0, 9)}", fifo=True)
        elif chosen < 0.5:
            rules = ZoneRules(rng.choice([0.5, 1.0, 4.0]), rng.choice([None, 2]), None, rng.random() < 0.2)
            play.run(SetZone(rng.choice("abcd"), rules))
        elif chosen < 0.8:
            some = tuple(f"e{n}" for n in sorted(rng.sample(range(10), rng.randint(1, 9))))
            jobs = play.claim(rng.randint(1, 6), entrypoints=rng.choice([None, None, some]))
            claimed.append([job.id for job in jobs])
            running += jobs
        elif running:
            job = running.pop(rng.randrange(len(running)))
            outcome = Ack(job.id, job.token) if rng.random() < 0.5 else Nack(job.id, job.token, delay_ms=0)
            play.run(outcome)
        play.now_ms += rng.randint(0, 5)
    return claimed


def test_a_claim_from_many_zones_and_entrypoints_looks_only_at_what_it_takes(
    play: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"z{n}" for n in range(1_000)]
    for n, name in enumerate(names):
        play.add(name, 2, entrypoint=f"e{n}")
        play.add(None, 1, entrypoint=f"e{n}")
    play.claim(1)  # the first one of all looks at everything
    looks = count_heads(monkeypatch)

    assert len(play.claim(100)) == 100
    assert len(play.claim(100, zones=tuple(names))) == 100
    assert looks[0] < 20_000  # and not 100 times 1,000 lines


def count_heads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    looks = [0]
    head = Line.head

    def counted(line: Line, jobs: dict[str, JobRecord]) -> JobRecord | None:
        looks[0] += 1
        return head(line, jobs)

    monkeypatch.setattr(Line, "head", counted)
    return looks
