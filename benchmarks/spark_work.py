"""Spark as the worker: no-op jobs through the executors, beside what the queue alone and what the trip alone take.

A batch is claimed and settled while others are on their way, so the whole should take less than its parts together.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import Section, Steps, Table, interleaved, median, spread
from benchmarks.scale import Scale
from casque import Job, Queue, SyncQueue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from casque.spark.work import Summary

PAYLOAD = b'{"to":"somebody@example.org","number":12345678}'
FILL_AT_ONCE = 10_000
BATCH = 50_000
CLAIM = 10_000
WARM_UPS = 2
"""The first round starts Python's workers and takes four times as long; in the second Java still compiles."""


def measure(scale: Scale, steps: Steps) -> Section:
    from casque.spark.session import local_session

    section = Section()
    quiet = {"spark.log.level": "ERROR", "spark.driver.memory": "2g"}
    spark = local_session("benchmarks", master="local[2]", settings=quiet)
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            _no_ops(spark, Path(directory), scale, steps, section)
    finally:
        spark.stop()
    return section


def _no_ops(spark: SparkSession, directory: Path, scale: Scale, steps: Steps, section: Section) -> None:
    from casque.spark import process

    jobs = scale.spark_rows // 5
    summaries: list[Summary] = []
    calls_s: list[float] = []

    def by_spark(url: str) -> float:
        started = time.perf_counter()
        summary: Summary = process(spark, url, no_op, batch=BATCH)
        calls_s.append(time.perf_counter() - started)
        assert summary.done == jobs, summary
        summaries.append(summary)
        return summary.seconds

    ways: dict[str, Callable[[str], float]] = {
        "by Spark": by_spark,
        "queue alone": lambda url: asyncio.run(_queue_alone(url)),
        "trip alone": lambda url: _trip_alone(spark, url, jobs),
    }
    rounds = WARM_UPS + 2 * scale.file_repetitions - 1
    steps.expect(len(ways) * rounds)
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for number, way in enumerate(interleaved(rounds, *ways)):
        url = _filled(directory / str(number), jobs)
        took_s = ways[way](url)
        if number >= WARM_UPS * len(ways):
            rates[way].append(jobs / took_s)
        steps.done(way)
    _report(section, rates, summaries[WARM_UPS:], median(calls_s[WARM_UPS:]), jobs)


def no_op(job: Job[bytes]) -> None:
    """Does nothing."""


def _filled(directory: Path, jobs: int) -> str:
    url = directory.as_uri()
    with SyncQueue.open(url) as queue:
        for start in range(0, jobs, FILL_AT_ONCE):
            queue.enqueue_many([("work", PAYLOAD)] * min(FILL_AT_ONCE, jobs - start))
    return url


async def _queue_alone(url: str) -> float:
    """Claimed and settled in one process, with nothing in between."""
    async with Queue.open(url) as queue:
        await queue.settle(await queue.dequeue(batch_size=100))
        started = time.perf_counter()
        while any(claims := await asyncio.gather(*(queue.dequeue(batch_size=CLAIM) for _ in range(BATCH // CLAIM)))):
            await asyncio.gather(*(queue.settle(jobs) for jobs in claims if jobs))
        return time.perf_counter() - started


def _trip_alone(spark: SparkSession, url: str, jobs: int) -> float:
    """To the executors and back, without a queue."""
    from casque.spark.work.calling import Calling
    from casque.spark.work.courier import Courier
    from casque.spark.work.process import loading

    async def some() -> list[Job[bytes]]:
        async with Queue.open(url) as queue:
            return await queue.dequeue(batch_size=CLAIM)

    claimed: list[Any] = asyncio.run(some())
    batch = (claimed * -(-jobs // len(claimed)))[:jobs]
    courier = Courier(spark, Calling(loading(no_op)), tasks=None)
    started = time.perf_counter()
    for start in range(0, jobs, BATCH):
        back = courier.carry(batch[start : start + BATCH], "benchmark")
        assert len(back.done) == min(BATCH, jobs - start)
    return time.perf_counter() - started


def _report(
    section: Section, rates: dict[str, list[float]], summaries: list[Summary], call_s: float, jobs: int
) -> None:
    table = Table(
        f"spark-work: {jobs:,} no-op jobs on local[2], local files",
        ["way", "jobs/s", "lowest to highest", "of the queue alone"],
        notes=[
            f"by Spark: from the first claim to the last settling, handled one by one; batches of {BATCH:,}.",
            "queue alone: claimed and settled in one process. trip alone: to the executors and back, without a queue.",
        ],
    )
    whole = median(rates["queue alone"])
    for way, found in rates.items():
        table.add(way, median(found), spread(found), f"{median(found) / whole:.2f}")
    section.tables.append(table)
    parts = Table(
        "spark-work: where the time goes",
        ["part", "seconds", "µs per job"],
        notes=["Batches overlap, so the parts add up to more than the whole. The trip includes waiting for a core."],
    )
    for name in ("seconds", "claim_s", "run_s", "settle_s"):
        seconds = median([getattr(summary, name) for summary in summaries])
        title = {"seconds": "the whole run", "claim_s": "claims", "run_s": "trips", "settle_s": "settling"}[name]
        parts.add(title, seconds, seconds / jobs * 1e6)
    parts.add("with opening and closing the queue", call_s, call_s / jobs * 1e6)
    section.tables.append(parts)
    section.aim_for("Spark as worker, no-op jobs per second", median(rates["by Spark"]), at_least=100_000, unit="/s")
