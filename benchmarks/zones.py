"""Zones: what many of them cost beside one, and how small tenants fare beside a giant.

The rates are those of an embedded queue in memory, jobs added, claimed and settled in batches: codec, engine and state,
and no disk. Waits are counted in claims, not in seconds: so many jobs of others went first.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from random import Random

from benchmarks.report import Section, Steps, Table, median
from benchmarks.scale import Scale
from casque import NewJob, Queue
from casque.service.requests import Ack, Dequeue, Enqueue
from casque.state import State
from casque.types import JobSpec

AT_ONCE = 1_000
CLAIMED = 100
SMALL = 100
ENTRYPOINT = "send"


def measure(scale: Scale, steps: Steps) -> Section:
    steps.expect(3 * scale.repetitions + 3)
    section = Section()
    jobs = scale.zone_jobs
    sides = {"no zone": 0, "one zone": 1, f"{jobs:,} zones": jobs}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(scale.repetitions):
        for name, zones in sides.items():
            rates[name].append(asyncio.run(_rate(f"memory://zones-{round_}-{zones}", zones, jobs)))
            steps.done(name)
    found = {name: median(some) for name, some in rates.items()}
    table = Table(f"zones: {jobs:,} jobs added, claimed and settled, per second", ["", "jobs/s", "of one zone"])
    for name, rate in found.items():
        table.add(name, rate, f"{rate / found['one zone']:.0%}")
    section.tables.append(table)
    many = found[f"{jobs:,} zones"] / found["one zone"] * 100
    section.aim_for(f"{jobs:,} zones with a job each", many, at_least=80, unit=" % of one zone")

    table = Table(
        f"zones: {SMALL} tenants with a job now and then beside one with {jobs:,}",
        ["", "jobs of others before it: median", "most", "Jain's index of backlogged tenants"],
    )
    for name, zoned in (("without zones", False), ("with zones", True)):
        waits = _waits(jobs, zoned=zoned)
        table.add(name, median(waits), max(waits), f"{_jain(zoned=zoned):.3f}")
        steps.done(name)
    waits = _waits(jobs, zoned=True)
    steps.done("once more")
    section.keep_below("most jobs of others before a small tenant's", max(waits), at_most=SMALL + 1)
    section.tables.append(table)
    return section


async def _rate(url: str, zones: int, jobs: int) -> float:
    async with Queue.open(url) as queue:
        begun = time.perf_counter()
        for start in range(0, jobs, AT_ONCE):
            named = [None if not zones else f"tenant-{n % zones}" for n in range(start, min(start + AT_ONCE, jobs))]
            await queue.enqueue_many([NewJob(ENTRYPOINT, b"", zone=zone) for zone in named])
        while claimed := await queue.dequeue(ENTRYPOINT, batch_size=CLAIMED):
            await queue.settle(claimed)
        return jobs / (time.perf_counter() - begun)


def _waits(jobs: int, *, zoned: bool) -> list[int]:
    """How many jobs went before each one of a small tenant, from the moment it came."""
    state, rng = State(), Random(7)
    state.execute(Enqueue(tuple(_job(f"g{n}", "giant" if zoned else None) for n in range(jobs))), 0)
    waiting: dict[str, int] = {}
    waits: list[int] = []
    for claim in range(jobs + 10 * SMALL):
        if claim % 10 == 0 and len(waiting) < SMALL and claim < jobs // 2:
            name = f"s{claim}"
            waiting[name] = claim
            state.execute(Enqueue((_job(name, f"small-{rng.randrange(SMALL)}" if zoned else None),)), claim)
        for job in state.execute(Dequeue((ENTRYPOINT,), 1, 1), claim):
            if (came := waiting.pop(job.id, None)) is not None:
                waits.append(claim - came)
            state.execute(Ack(job.id, job.token), claim)
        state.commit(writer="bench", batch=claim, at_ms=claim)
    return waits


def _jain(*, zoned: bool) -> float:
    """Of what ten tenants got who all had jobs waiting, one of them a hundred times as many."""
    state = State()
    for n in range(10):
        many = 10_000 if n == 0 else 100
        specs = [JobSpec(f"{n}-{k}", ENTRYPOINT, b"", zone=f"t{n}" if zoned else None) for k in range(many)]
        state.execute(Enqueue(tuple(specs)), 0)
    served = Counter(job.id.partition("-")[0] for job in state.execute(Dequeue((ENTRYPOINT,), 1_000, 1), 0))
    shares = [served[str(n)] for n in range(10)]
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def _job(name: str, zone: str | None) -> JobSpec:
    return JobSpec(name, ENTRYPOINT, b"", zone=zone)
