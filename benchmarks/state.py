"""The state machine alone: commands per second by depth, without bytes, disk or event loop.

A job is three commands (enqueue, dequeue, ack) and fifty commands make a commit, as in the engine under fifty
callers. The depths take turns within one process, so that all of them meet the same minutes of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from benchmarks.report import Section, Steps, Table, median
from benchmarks.scale import Scale
from casque.clock import new_id
from casque.service.requests import Ack, Dequeue, Enqueue
from casque.state import State
from casque.types import JobSpec

PER_COMMIT = 50
LEASE_MS = 300_000
NAMES = [f"task-{n}" for n in range(10)]
PAYLOAD = bytes(100)

Specs = Callable[[Random, int, int], JobSpec]
"""Makes a job from chance, the time, and how far ahead jobs are planned."""


@dataclass(frozen=True)
class Workload:
    name: str
    spec: Specs
    entrypoints: tuple[str, ...] | None


def _plain(rng: Random, _now_ms: int, _ahead_ms: int) -> JobSpec:
    return JobSpec(new_id(rng), NAMES[0], PAYLOAD)


def _prioritised(rng: Random, _now_ms: int, _ahead_ms: int) -> JobSpec:
    return JobSpec(new_id(rng), NAMES[0], PAYLOAD, rng.randrange(10))


def _anything(rng: Random, _now_ms: int, _ahead_ms: int) -> JobSpec:
    return JobSpec(new_id(rng), rng.choice(NAMES), PAYLOAD)


def _delayed(rng: Random, now_ms: int, ahead_ms: int) -> JobSpec:
    return JobSpec(new_id(rng), NAMES[0], PAYLOAD, 0, now_ms + rng.randint(1, ahead_ms))


WORKLOADS = (
    Workload("one entrypoint", _plain, (NAMES[0],)),
    Workload("10 priorities", _prioritised, (NAMES[0],)),
    Workload("10 entrypoints, dequeue any", _anything, None),
    Workload("delayed jobs", _delayed, (NAMES[0],)),
)


def measure(scale: Scale, steps: Steps) -> Section:
    steps.expect(len(WORKLOADS) * (scale.repetitions + 1))
    section = Section()
    columns = [f"{depth:,} jobs" for depth in scale.state_depths]
    ratios = [f"{depth:,} / 0" for depth in scale.state_depths[1:]]
    table = Table("state: commands per second by depth", ["workload", *columns, *ratios])
    for workload in WORKLOADS:
        rates = _rates(workload, scale, steps)
        relative = [rate / rates[0] for rate in rates[1:]]
        table.add(workload.name, *rates, *(f"{ratio:.0%}" for ratio in relative))
        if workload is WORKLOADS[0]:
            section.aim_for("commands per second, lowest of all depths", min(rates), at_least=250_000, unit="/s")
            section.aim_for("rate at the greatest depth", relative[-1] * 100, at_least=80, unit=" % of empty")
    section.tables.append(table)
    return section


def _rates(workload: Workload, scale: Scale, steps: Steps) -> list[float]:
    benches = [_Bench(workload, depth, seed=depth) for depth in scale.state_depths]
    steps.done(f"{workload.name}, filled")
    rates: list[list[float]] = [[] for _ in benches]
    for _ in range(scale.repetitions):
        for bench, found in zip(benches, rates, strict=True):
            found.append(bench.rate(scale.state_jobs))
        steps.done(workload.name)
    return [median(found) for found in rates]


class _Bench:
    """One state at one depth, through which jobs are passed."""

    def __init__(self, workload: Workload, depth: int, *, seed: int) -> None:
        self._workload = workload
        self._rng = Random(seed)
        self._ahead_ms = max(depth, PER_COMMIT)
        self._now_ms = 1_000_000
        self._commits = 0
        self._state = State()
        for chunk in _chunks(self._specs(depth), 1_000):
            self._state.execute(Enqueue(tuple(chunk)), self._now_ms)
            self._commit()
        self.rate(2_000)

    def rate(self, jobs: int) -> float:
        """Commands per second. The specs are made beforehand: that is a client's work."""
        state, take = self._state, Dequeue(self._workload.entrypoints, 1, LEASE_MS)
        commands = 0
        took_s = 0.0
        # One commit's worth at a time, because what a delayed job is planned for depends on the time.
        for _ in range(max(1, jobs // PER_COMMIT)):
            specs = self._specs(PER_COMMIT)
            begun = time.perf_counter()
            for spec in specs:
                state.execute(Enqueue((spec,)), self._now_ms)
            self._commit()
            self._now_ms += PER_COMMIT
            claimed = [job for _ in specs for job in state.execute(take, self._now_ms)]
            self._commit()
            for job in claimed:
                state.execute(Ack(job.spec.id, job.token), self._now_ms)
            self._commit()
            took_s += time.perf_counter() - begun
            commands += 2 * len(specs) + len(claimed)
        return commands / took_s

    def _specs(self, count: int) -> list[JobSpec]:
        return [self._workload.spec(self._rng, self._now_ms, self._ahead_ms) for _ in range(count)]

    def _commit(self) -> None:
        self._commits += 1
        self._state.commit(writer="bench", batch=self._commits, at_ms=self._now_ms)


def _chunks(specs: list[JobSpec], size: int) -> Iterator[list[JobSpec]]:
    for start in range(0, len(specs), size):
        yield specs[start : start + size]
