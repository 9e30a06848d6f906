"""Leases that are watched: what is due, when, and what is forgotten."""

from __future__ import annotations

from datetime import timedelta

import pytest

from casque.clock import Random
from casque.engine.reaper import SLACK, Reaper
from casque.environment import Environment
from casque.service import Outcome
from casque.service.requests import Dequeue, Enqueue, Heartbeat, Settle
from casque.settings import QueueSettings
from casque.state import Expire, Observed, State
from casque.state.commands import Command
from casque.testing.clock import ManualClock
from casque.types import JobRecord, JobSpec

LEASE_S = 30


class Watched:
    """A state, and a reaper that takes note of all that happens to it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.state = State()
        self.reaper = Reaper(
            Environment(QueueSettings(stale_timeout=timedelta(seconds=LEASE_S)), self.clock, Random(7))
        )

    def do(self, command: Command) -> object:
        answer = self.state.execute(command, self.clock.wall_ms())
        events = self.state.events
        self.state.commit(writer="w", batch=self.state.position + 1, at_ms=self.clock.wall_ms())
        self.reaper.observe(events, self.state)
        return answer

    def claimed(self, count: int, lease_ms: int = LEASE_S * 1000) -> list[JobRecord]:
        first = self.state.counters.enqueued
        self.do(Enqueue(tuple(JobSpec(f"j{first + n}", "send", b"") for n in range(count))))
        jobs = self.do(Dequeue(None, count, lease_ms, "w1"))
        assert isinstance(jobs, list)
        return jobs

    async def later(self, seconds: float) -> list[str]:
        """The jobs whose leases have run out by then."""
        for _ in range(int(seconds)):
            await self.clock.advance(1)
            self.reaper.awake()
        due = self.reaper.due(self.state)
        return [lease.job_id for lease in due if isinstance(lease, Observed)]


@pytest.fixture
def watched() -> Watched:
    return Watched()


async def test_a_claim_that_nobody_renews_runs_out_and_is_taken_back(watched: Watched) -> None:
    watched.claimed(3)
    assert await watched.later(LEASE_S - 1) == []
    assert await watched.later(1) == ["j0", "j1", "j2"]
    due = watched.reaper.due(watched.state)
    assert watched.do(Expire(due)) == 3
    watched.reaper.acted_on(due, watched.state)
    assert await watched.later(LEASE_S) == []


async def test_a_renewed_lease_starts_again_at_full_length(watched: Watched) -> None:
    first, second = watched.claimed(2)
    await watched.later(20)
    watched.do(Heartbeat(second.id, second.token))
    assert await watched.later(10) == [first.id]
    watched.do(Settle((Outcome(first.id, first.token),)))
    assert await watched.later(9) == []
    assert await watched.later(11) == [second.id]


async def test_leases_of_several_lengths_in_one_commit_run_out_each_at_its_time(watched: Watched) -> None:
    now_ms = watched.clock.wall_ms()
    watched.do(Enqueue(tuple(JobSpec(f"j{n}", "send", b"") for n in range(4))))
    for lease_ms in (10_000, 20_000, 10_000, 20_000):
        watched.state.execute(Dequeue(None, 1, lease_ms, "w1"), now_ms)
    events = watched.state.events
    watched.state.commit(writer="w", batch=9, at_ms=now_ms)
    watched.reaper.observe(events, watched.state)
    assert await watched.later(10) == ["j0", "j2"]
    assert await watched.later(10) == ["j0", "j2", "j1", "j3"]


async def test_a_state_read_anew_keeps_the_deadlines_of_leases_that_look_as_before(watched: Watched) -> None:
    claimed, beaten = watched.claimed(2)
    watched.do(Heartbeat(beaten.id, beaten.token))
    await watched.later(20)
    watched.reaper.resync(watched.state)
    assert await watched.later(10) == [claimed.id, beaten.id]


async def test_without_a_state_nobody_is_accused(watched: Watched) -> None:
    watched.claimed(1)
    await watched.later(LEASE_S)
    assert watched.reaper.due(None) == ()
    assert watched.reaper.next_deadline_ms() is not None


async def test_what_has_ended_is_not_watched_for_ever(watched: Watched) -> None:
    kept = watched.claimed(1)
    for _ in range(3 * SLACK // 100):
        done = watched.claimed(100)
        watched.do(Settle(tuple(Outcome(job.id, job.token) for job in done)))
    assert watched.reaper._watched <= 2 * watched.state.running + SLACK
    assert await watched.later(LEASE_S) == [kept[0].id]
