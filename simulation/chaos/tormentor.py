"""Who is hit next, and how: decided by a seed, so that a run can be repeated roughly."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from enum import StrEnum

from casque.clock import Random, SystemClock
from simulation.chaos.fleet import Fleet, Health, Kind, Member
from simulation.chaos.shifted_clock import RANGE_S

_CLOCK = SystemClock()
BROKERS_SHARE = 0.6
LEADER_SHARE = 0.6
PRODUCERS_SHARE = 0.25
MANAGERS_SHARE = 0.1
"""Of operators and stewards: one of each is all there is."""
REMEMBERED = 8


class Fault(StrEnum):
    KILL = "kill -9"
    STOP = "SIGSTOP"
    """Longer than a lease, then SIGCONT."""
    LEAVE = "SIGTERM"
    CLOCK = "clock step"
    """By up to twenty minutes."""


FAULTS = {
    Kind.BROKER: (Fault.KILL, Fault.KILL, Fault.STOP, Fault.STOP, Fault.LEAVE, Fault.LEAVE, Fault.CLOCK),
    Kind.WORKER: (Fault.KILL, Fault.KILL, Fault.STOP, Fault.LEAVE, Fault.CLOCK),
    Kind.PRODUCER: (Fault.KILL, Fault.STOP, Fault.LEAVE),
    Kind.OPERATOR: (Fault.KILL, Fault.KILL, Fault.STOP, Fault.LEAVE),
    Kind.STEWARD: (Fault.KILL, Fault.KILL, Fault.STOP, Fault.LEAVE),
}


class Tormentor:
    """Hits a process every now and then. At least one broker, one worker and one producer are always left alone: what
    is to be proved is that work goes on there."""

    def __init__(
        self, fleet: Fleet, rng: Random, *, every_s: float, stop_s: float, leader: Callable[[], str | None]
    ) -> None:
        self._fleet = fleet
        self._rng = rng
        self._every_s = every_s
        self._stop_s = stop_s
        self._leader = leader
        self.counts: Counter[str] = Counter()
        """By kind and fault: `broker kill -9`."""
        self.leaders_hit = 0
        self.recent: deque[str] = deque(maxlen=REMEMBERED)
        self.problems: list[str] = []

    async def run(self, seconds: float) -> None:
        """For so long; then everybody is helped up again."""
        until_ms = _CLOCK.monotonic_ms() + seconds * 1000
        async with asyncio.TaskGroup() as group:
            while _CLOCK.monotonic_ms() < until_ms:
                await _CLOCK.sleep(self._every_s * self._rng.uniform(0.5, 1.5))
                victim = self._choose()
                fault = self._rng.choice(FAULTS[victim.kind])
                self._remember(victim, fault)
                group.create_task(self._hit(victim, fault, self._rng.random()))

    def _choose(self) -> Member:
        managers = [one for one in self._fleet.managers if one.health is Health.UP]
        if managers and self._rng.random() < MANAGERS_SHARE:
            return self._rng.choice(managers)
        brokers = [broker for broker in self._fleet.brokers if broker.health is Health.UP]
        workers = [worker for worker in self._fleet.of(Kind.WORKER) if worker.health is Health.UP]
        producers = [producer for producer in self._fleet.of(Kind.PRODUCER) if producer.health is Health.UP]
        wants_broker, wants_leader = self._rng.random() < BROKERS_SHARE, self._rng.random() < LEADER_SHARE
        if len(brokers) < 2 or (workers and not wants_broker):
            if len(producers) > 1 and self._rng.random() < PRODUCERS_SHARE:
                return self._rng.choice(producers)
            return self._rng.choice(workers or self._fleet.of(Kind.WORKER))
        leader = [broker for broker in brokers if broker.address == self._leader()]
        return self._rng.choice(leader if leader and wants_leader else brokers)

    def _remember(self, victim: Member, fault: Fault) -> None:
        leads = victim.kind is Kind.BROKER and getattr(victim, "address", None) == self._leader()
        self.leaders_hit += leads
        self.counts[f"{victim.kind.value} {fault.value}"] += 1
        self.recent.append(f"{fault.value} {victim.name}{' (leader)' if leads else ''}")

    async def _hit(self, victim: Member, fault: Fault, chance: float) -> None:
        if victim.health is not Health.UP:
            return
        match fault:
            case Fault.STOP:
                victim.stop()
                await _CLOCK.sleep(self._stop_s * (1.2 + 1.3 * chance))
                victim.wake()
                return
            case Fault.CLOCK:
                victim.step_clock()
                return
            case Fault.KILL:
                victim.kill()
            case Fault.LEAVE:
                victim.ask_to_leave()
                code = await victim.ended(within_s=40)
                if code != 0:
                    self.problems.append(f"{victim.name} was asked to leave and ended with {code}")
                    victim.kill()
        await _CLOCK.sleep(chance)
        if victim.clock_s is not None:
            victim.clock_s = self._rng.randint(-RANGE_S, RANGE_S)
        victim.start()
        await victim.ready()
