"""Jobs by the ten thousand: claimed in bulk and settled in bulk on local files, beside acks one call at a time.

Everything is synced to disk before it is answered. The acks that it is compared with come from a thousand callers at
once, so that they share commits as well as calls can.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Sequence

from benchmarks.load import PAYLOAD
from benchmarks.report import Section, Steps, Table, median, spread
from benchmarks.scale import Scale
from casque import Outcome, Queue
from casque.client.job import Job

PER_CALL = 50_000
CALLERS = 1_000
RATE = 300_000
TIMES_ACKS = 5.0
FOUND = ("enqueue_many", "dequeue", "settle, all done", "settle, all failed", "ack, one job per call")


def measure(scale: Scale, steps: Steps) -> Section:
    steps.expect(scale.repetitions)
    rates: dict[str, list[float]] = {name: [] for name in FOUND}
    for _ in range(scale.repetitions):
        with tempfile.TemporaryDirectory(prefix="casque-bench-") as directory:
            for name, rate in asyncio.run(_measured(f"file://{directory}", scale.bulk_jobs)).items():
                rates[name].append(rate)
        steps.done(f"{scale.bulk_jobs:,} jobs")
    section = Section()
    per_call = min(PER_CALL, scale.bulk_jobs)
    table = Table(
        f"bulk: {scale.bulk_jobs:,} jobs on local files, {per_call:,} per call, {len(PAYLOAD)}-byte payloads",
        ["what", "jobs/s", "from to", "/ ack, one job per call"],
    )
    single = median(rates[FOUND[-1]])
    for name in FOUND:
        table.add(name, median(rates[name]), spread(rates[name]), f"{median(rates[name]) / single:.1f}")
    section.tables.append(table)
    for name in ("dequeue", "settle, all done"):
        section.aim_for(f"{name}, jobs per second", median(rates[name]), at_least=RATE, unit="/s")
    times = median(rates["settle, all done"]) / single
    section.aim_for("settle beside single acks", times, at_least=TIMES_ACKS, unit=" times")
    return section


async def _measured(place: str, jobs: int) -> dict[str, float]:
    per_call = min(PER_CALL, jobs)
    calls = range(0, jobs, per_call)
    found: dict[str, float] = {}
    async with Queue.open(place) as queue:
        found["enqueue_many"] = await _rate(jobs, _enqueued(queue, calls, per_call))
        claimed: list[Job[bytes]] = []
        found["dequeue"] = await _rate(jobs, _claimed(queue, calls, per_call, claimed))
        failures = [Outcome(job.id, job.token, error="try again", delay_ms=0) for job in claimed]
        found["settle, all failed"] = await _rate(jobs, _settled(queue, calls, per_call, failures))
        claimed.clear()
        await _claimed(queue, calls, per_call, claimed)
        outcomes = [Outcome(job.id, job.token) for job in claimed]
        found["settle, all done"] = await _rate(jobs, _settled(queue, calls, per_call, outcomes))
        single = min(jobs, 20_000)
        await queue.enqueue_many([("task", PAYLOAD)] * single)
        claimed = await queue.dequeue("task", batch_size=single)
        found["ack, one job per call"] = await _rate(single, _acked(queue, claimed))
    return found


async def _rate(jobs: int, work: Awaitable[None]) -> float:
    begun = time.perf_counter()
    await work
    return jobs / (time.perf_counter() - begun)


async def _enqueued(queue: Queue[bytes], calls: range, per_call: int) -> None:
    for _ in calls:
        await queue.enqueue_many([("task", PAYLOAD)] * per_call)


async def _claimed(queue: Queue[bytes], calls: range, per_call: int, claimed: list[Job[bytes]]) -> None:
    for _ in calls:
        claimed += await queue.dequeue("task", batch_size=per_call, wait=5)


async def _settled(queue: Queue[bytes], calls: range, per_call: int, outcomes: Sequence[Outcome]) -> None:
    for start in calls:
        answers = await queue.settle(outcomes[start : start + per_call])
        assert not any(answers), "no lease is lost here"


async def _acked(queue: Queue[bytes], claimed: list[Job[bytes]]) -> None:
    waiting = iter(claimed)

    async def caller() -> None:
        for job in waiting:
            await queue.ack(job.id, job.token)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
