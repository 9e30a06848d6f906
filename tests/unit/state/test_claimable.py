"""Whatever is ready and allowed can be claimed, whatever happened before, undone batches included."""

from __future__ import annotations

import msgspec
import pytest

from casque.clock import Random
from casque.errors import CasqueError
from casque.service.requests import (
    Ack,
    Cancel,
    Dequeue,
    Enqueue,
    GiveBack,
    LeaseZone,
    Nack,
    Purge,
    ReleaseZone,
    Reschedule,
    Retry,
    SetGate,
    SetZone,
)
from casque.state import Command, SetSchedule, State, Tick, claiming
from casque.types import Gate, JobRecord, JobSpec, JobState, ScheduleSpec, ZoneRules
from simulation.world.claimable import allowed, claimable, copied, rebuilt

ZONES = ("a", "b")
ENTRYPOINTS = ("x", "y")
LEASE_MS = 60_000


class Life:
    """A state that is led through a random life; a second one replays what it commits."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.state = State()
        self.replica = State()
        self.now_ms = 1_000
        self.names = 0
        self.batches = 0
        self.looks = 0

    def live(self, batches: int) -> None:
        for _ in range(batches):
            for _ in range(self.rng.choice((0, 1, 2, 4))):
                self.ask()
                self.check()
            end = self.rng.random()
            if end < 0.35:
                self.state.rollback()
                self.check()
            elif end < 0.85:
                self.commit()
                self.check()
            if not self.state.events and self.rng.random() < 0.3:
                self.now_ms += self.rng.choice((1, 1, 5, 400))
                self.check()

    def ask(self) -> None:
        try:
            self.state.execute(self.command(), self.now_ms)
        except CasqueError:
            pass

    def commit(self) -> None:
        events = [] if self.state.facets.sources.pending else list(self.state.events)
        self.batches += 1
        self.state.commit(writer="w", batch=self.batches, at_ms=self.now_ms)
        self.replica.replay(events, writer="w", batch=self.batches, at_ms=self.now_ms)

    def command(self) -> Command:
        rng, jobs = self.rng, list(self.state.jobs.values())
        kind = rng.choices(range(12), (34, 14, 26, 8, 5, 5, 4, 12, 2, 6, 8, 1))[0]
        job = rng.choice(jobs) if jobs else JobRecord(JobSpec("none", "x", b""), 0, 0, JobState.READY, 0)
        running = [one for one in jobs if one.state is JobState.RUNNING] or [job]
        zone = rng.choice(ZONES)
        match kind:
            case 0:
                return Enqueue(tuple(self.spec() for _ in range(rng.choice((1, 1, 1, 1, 3)))))
            case 1:
                zones = rng.choice((None, None, (zone,), ZONES))
                entrypoints = rng.choice((None, ("x",), ("y",), ENTRYPOINTS))
                return Dequeue(entrypoints, rng.choice((1, 1, 2, 5)), LEASE_MS, zones=zones)
            case 2:
                return Ack(rng.choice(running).spec.id)
            case 3:
                return Nack(rng.choice(running).spec.id, delay_ms=rng.choice((None, 0, 3)))
            case 4:
                return Cancel(job.spec.id)
            case 5:
                dead = [one for one in jobs if one.state is JobState.DEAD] or [job]
                return Retry(rng.choice(dead).spec.id)
            case 6:
                one = rng.choice(running)
                return GiveBack(one.spec.id, one.token)
            case 7:
                rules = ZoneRules(
                    weight=rng.choice((1.0, 3.0)),
                    running_max=rng.choice((None, 1, 2)),
                    paused=rng.random() < 0.2,
                )
                return SetZone(zone, rules)
            case 8:
                return LeaseZone(zone, LEASE_MS)
            case 9:
                held = rng.choice(list(self.state.zone_leases.values()) or [None])
                return ReleaseZone(zone, 0) if held is None else ReleaseZone(held.zone, held.token)
            case 10:
                at_ms = rng.choice((None, self.now_ms - 3, self.now_ms, self.now_ms + 4))
                return Reschedule(job.spec.id, at_ms, rng.choice((None, 0, rng.randrange(40))))
            case _:
                gate = rng.choice((Gate.PAUSED, Gate.OPEN, Gate.OPEN))
                return rng.choice((Purge(), SetGate(gate, rng.choice(ENTRYPOINTS))))

    def spec(self) -> JobSpec:
        rng = self.rng
        self.names += 1
        zone = rng.choice((None, *ZONES, *ZONES))
        fifo = zone is not None and (self.state.is_fifo(zone) if zone in self.state.zone_jobs else rng.random() < 0.4)
        delay = None if fifo or rng.random() < 0.8 else self.now_ms + rng.choice((1, 5))
        attempts = rng.choice((None, 1, 2))
        priority = rng.choice((0, rng.randrange(40)))
        return JobSpec(
            f"{self.names}",
            rng.choice(ENTRYPOINTS),
            b"",
            priority,
            run_at_ms=delay,
            max_attempts=attempts,
            zone=zone,
            fifo=fifo,
        )

    def check(self) -> None:
        rng = self.rng
        self.looks += 1
        asked: list[tuple[tuple[str, ...] | None, tuple[str, ...] | None]] = [(None, None)]
        if self.looks % 4 == 0:
            asked.append((rng.choice((None, ("x",), ("y",), ENTRYPOINTS)), rng.choice((None, *[(z,) for z in ZONES]))))
        states = {"live": self.state, "restored": rebuilt(self.state)}
        if not self.state.events and self.replica.position == self.state.position:
            states["replayed"] = self.replica
        for entrypoints, zones in asked:
            expected = allowed(self.state, self.now_ms, entrypoints=entrypoints, zones=zones)
            at_once = rng.choice((1, 3))
            for name, state in states.items():
                found = claimable(state, self.now_ms, entrypoints=entrypoints, zones=zones, at_once=at_once)
                assert found == expected, f"{name}, of {entrypoints} in {zones}"


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_ready_and_allowed_can_be_claimed(seed: int) -> None:
    Life(seed).live(50)


def test_a_job_that_gets_the_number_of_an_undone_one_is_claimed_by_its_own_priority() -> None:
    state = State()
    state.execute(Enqueue((JobSpec("c", "x", b"", 9, zone="a"), JobSpec("d", "y", b"", 9, zone="a"))), 1_000)
    state.commit(writer="w", batch=1, at_ms=1_000)
    state.execute(Enqueue((JobSpec("undone", "x", b"", 0, zone="a"),)), 1_000)
    state.rollback()
    state.execute(Enqueue((JobSpec("e", "x", b"", 5, zone="a"),)), 1_000)
    claimed = state.execute(Dequeue(None, 3, LEASE_MS), 1_000)
    assert [job.spec.id for job in claimed] == ["e", "c", "d"]


@pytest.mark.parametrize("first", [True, False])
def test_a_zone_that_was_limited_while_a_job_ran_is_served_after_it_was_empty(first: bool) -> None:
    live, replayed = State(), State()
    commands: list[Command] = [
        Enqueue((JobSpec("1", "x", b"", zone="a", fifo=first),)),
        Dequeue(None, 1, LEASE_MS),
        SetZone("a", ZoneRules(running_max=1)),
        Ack("1"),
        Enqueue((JobSpec("2", "x", b"", zone="a", fifo=not first),)),
    ]
    for batch, command in enumerate(commands, 1):
        live.execute(command, 1_000)
        events = list(live.events)
        live.commit(writer="w", batch=batch, at_ms=1_000)
        replayed.replay(events, writer="w", batch=batch, at_ms=1_000)
    for state in (live, replayed):
        assert claimable(state, 1_000) == {"a": ["2"]}


def test_a_zone_held_back_by_its_rate_goes_on_when_the_clock_is_set_back() -> None:
    state = State()
    state.execute(SetZone("a", ZoneRules(per_second=1.0)), 3_600_000)
    state.execute(Enqueue(tuple(JobSpec(f"{n}", "x", b"", zone="a") for n in range(3))), 3_600_000)
    assert len(state.execute(Dequeue(None, 1, LEASE_MS), 3_600_000)) == 1
    assert state.execute(Dequeue(None, 1, LEASE_MS), 3_600_001) == []
    # An hour back: it waits for about the time between two of its jobs, and not for an hour.
    assert any(state.execute(Dequeue(None, 1, LEASE_MS), now_ms) for now_ms in range(0, 3_000, 100))


@pytest.mark.parametrize("zone_is_fifo", [True, False])
def test_a_tick_joins_a_zone_of_the_other_kind_as_one_of_its_jobs(zone_is_fifo: bool) -> None:
    state = State()
    job = JobSpec("", "y", b"", zone="a", fifo=not zone_is_fifo)
    state.execute(SetSchedule(ScheduleSpec("s", "* * * * *", job), 60_000), 1_000)
    state.execute(Enqueue((JobSpec("1", "x", b"", zone="a", fifo=zone_is_fifo),)), 1_000)
    state.execute(Tick("s", 60_000, 120_000, msgspec.structs.replace(job, id="s@1")), 60_000)
    claimed = []
    for _ in range(2):
        [one] = state.execute(Dequeue(None, 1, LEASE_MS), 60_000)
        claimed.append(one.spec.id)
        state.execute(Ack(one.spec.id), 60_000)
    assert claimed == ["1", "s@1"]
    assert claimable(state, 60_000) == {}


def test_claims_on_a_copy_are_the_copys_alone_whatever_its_methods_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    dequeue = claiming.dequeue

    def renamed(state: State, c: Dequeue, now_ms: int) -> list[JobRecord]:
        return dequeue(state, c, now_ms)

    monkeypatch.setattr(claiming, "dequeue", renamed)
    state = State()
    state.execute(Enqueue((JobSpec("a", "mail", b""),)), 1)
    state.commit(writer="w", batch=1, at_ms=1)
    copy = copied(state)
    assert [job.id for job in copy.execute(Dequeue(None, limit=1, lease_ms=1_000), 1)] == ["a"]
    assert (copy.running, copy.counters.tokens) == (1, 1)
    assert (state.running, state.counters.tokens, state.jobs["a"].state) == (0, 0, JobState.READY)
