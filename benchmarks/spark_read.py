"""Spark reads a queue's tables, beside Spark's own JSON reader over the very same objects, on two cores.

Every read goes to the `noop` sink, so that all rows and columns are made and none is kept. Rows as tuples are what a
Python source gives that knows no Arrow: the same columns, handed to Spark row by row.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import Section, Steps, Table, interleaved, median, spread
from benchmarks.scale import Scale
from casque import Queue
from casque.clock import Random
from casque.scan import Scan
from casque.scan import Table as QueueTable
from casque.service import Outcome
from casque.storage.memory import MemoryStore
from casque.storage.url import open_store
from casque.testing.clock import ManualClock
from simulation.known_history import copy_objects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AT_ONCE = 5_000
HOURS = 30 * 24
JSON_RATIO = 1.0
TUPLE_RATIO = 5.0
EVENTS_PER_CORE = 500_000

ARCHIVED = (
    "id string, entrypoint string, payload string, state string, attempts int, created_at timestamp, due_at timestamp, "
    "finished_at timestamp, position bigint, sequence bigint, claimed_at timestamp, worker string, error string, "
    "result string, priority int, max_attempts int, token bigint, key string, headers map<string,string>, zone string"
)
JOB = (
    "id string, entrypoint string, payload string, status string, priority int, created_at timestamp, heartbeat_at "
    "timestamp, sequence bigint, due_ms bigint, token bigint, attempts int, worker string, lease_ms bigint, "
    "claimed_ms bigint, error string, max_attempts int, key string, headers map<string,string>, zone string"
)
COMMIT = "position bigint, at bigint, epoch bigint, writer string, batch bigint, events array<array<string>>"
SPEC = (
    "id string, entrypoint string, payload string, priority int, run_at_ms bigint, attempts_max int, key string, "
    "headers map<string,string>, zone string"
)
EVENT = (
    "row[0] AS kind",
    f"CASE WHEN row[0] = 'added' THEN from_json(row[1], '{SPEC}') END AS job",
    "CASE WHEN row[0] <> 'added' THEN row[1] END AS job_id",
    "CASE WHEN row[0] = 'added' THEN cast(row[2] AS bigint) END AS sequence",
    "CASE WHEN row[0] = 'added' THEN timestamp_millis(cast(row[3] AS bigint)) END AS due_at",
    "CASE WHEN row[0] = 'added' THEN cast(row[4] AS boolean) END AS delayed",
    "CASE WHEN row[0] <> 'added' THEN cast(row[2] AS bigint) END AS token",
    "CASE WHEN row[0] = 'claimed' THEN cast(row[3] AS bigint) END AS lease_ms",
    "CASE WHEN row[0] = 'claimed' THEN row[4] END AS worker",
    "CASE WHEN row[0] = 'acked' THEN row[3] END AS result",
)
"""Events are arrays, of which each kind has a shape of its own: the columns of those kinds that are in this log."""
COMMIT_AS_TEXTS = "position bigint, at bigint, events array<string>"
"""Not taken apart at all: less than casque does, and shown beside it."""
SPLITS = 4
"""Two for each core, as the how-to advises."""


def measure(scale: Scale, steps: Steps) -> Section:
    from casque.spark import register
    from casque.spark.session import local_session

    section = Section()
    # Without the settings for a short life: Spark's own reader shall be as fast as it can be.
    settings = {"spark.log.level": "ERROR", "spark.driver.memory": "2g", "spark.driver.extraJavaOptions": "-Xss4m"}
    with tempfile.TemporaryDirectory(prefix="casque-bench-") as directory:
        rounds = 2 * scale.file_repetitions
        steps.expect(2 + 8 * rounds)
        url, months = (Path(directory) / name for name in ("queue", "months"))
        asyncio.run(_filled(url.as_uri(), scale.spark_read_jobs))
        steps.done("a queue")
        asyncio.run(_thirty_days(months.as_uri(), max(scale.spark_read_jobs // HOURS, 1)))
        steps.done("thirty days")
        spark = local_session("benchmarks", master="local[2]", settings=settings)
        try:
            register(spark)
            spark.dataSource.register(_tuple_source())
            _rates(spark, url, scale, rounds, steps, section)
            _one_hour(spark, months, section)
        finally:
            spark.stop()
        _per_core(url, section)
    return section


async def _filled(url: str, jobs: int) -> None:
    """As many jobs that are finished as that wait: a log, an archive, and a snapshot."""
    store, clock = MemoryStore(), ManualClock(1_767_225_600_000)
    async with Queue.open(store, clock=clock, rng=Random(1), retention=timedelta(days=1)) as queue:
        for start in range(0, 2 * jobs, AT_ONCE):
            some = range(start, min(start + AT_ONCE, 2 * jobs))
            await queue.enqueue_many([("send", b"%0100d" % n) for n in some])
        await _finish(queue, jobs)
        await clock.advance(600)  # a small queue takes a snapshot by time
        await queue.enqueue("send", b"one more")
        await clock.advance(1)
    await _copied(store, url)


async def _copied(store: MemoryStore, url: str) -> None:
    target = open_store(url)
    try:
        await copy_objects(store, target)
    finally:
        await target.close()


async def _finish(queue: Queue[bytes], jobs: int) -> None:
    done = 0
    while done < jobs:
        claimed = await queue.dequeue("send", batch_size=min(AT_ONCE, jobs - done))
        await queue.settle([Outcome(job.id, job.token, result=b"sent") for job in claimed])
        done += len(claimed)


async def _thirty_days(url: str, each: int) -> None:
    """Some jobs in every hour of thirty days, on a clock that is moved."""
    store, clock = MemoryStore(), ManualClock(1_767_225_600_000)
    async with Queue.open(store, clock=clock, rng=Random(1), archive_interval=timedelta(minutes=30)) as queue:
        for _ in range(HOURS):
            await queue.enqueue_many([("send", b"%0100d" % n) for n in range(each)])
            await _finish(queue, each)
            await clock.advance(3600)
    await _copied(store, url)


def _rates(spark: SparkSession, root: Path, scale: Scale, rounds: int, steps: Steps, section: Section) -> None:
    jobs = scale.spark_read_jobs
    url = root.as_uri()

    def casque(name: str, form: str = "casque") -> Callable[[], DataFrame]:
        return lambda: spark.read.format(form).option("table", name).option("splits", SPLITS).load(url)

    def exploded(pattern: str, schema: str, column: str, **options: Any) -> Callable[[], DataFrame]:
        read = spark.read.schema(schema).options(**options)
        return lambda: read.json(f"{root}/{pattern}").selectExpr("*", f"explode({column}) AS row").drop(column)

    events_exploded = exploded("log/*", COMMIT, "events")
    ways: dict[str, tuple[int, Callable[[], DataFrame]]] = {
        "archive": (jobs, casque("archive")),
        "archive, Spark's JSON": (jobs, lambda: spark.read.schema(ARCHIVED).json(f"{root}/archive/*/*.jsonl")),
        "archive, tuples": (jobs, casque("archive", "casque_tuples")),
        "events": (4 * jobs + 1, casque("events")),
        "events, Spark's JSON": (
            4 * jobs + 1,
            lambda: events_exploded().selectExpr("position", "at", "epoch", "writer", "batch", *EVENT),
        ),
        "events as texts, Spark's JSON": (4 * jobs + 1, exploded("log/*", COMMIT_AS_TEXTS, "events")),
        "jobs": (jobs + 1, casque("jobs")),
        "jobs, Spark's JSON": (
            jobs,
            exploded("snapshots/*", f"position bigint, jobs array<struct<{_struct(JOB)}>>", "jobs", multiLine=True),
        ),
    }
    counted = {name: make().count() for name, (_, make) in ways.items() if "tuples" not in name}
    # A snapshot need not be the newest state, and an older one may lie beside it: its own rows are what counts there.
    ways["jobs, Spark's JSON"] = counted["jobs, Spark's JSON"], ways["jobs, Spark's JSON"][1]
    wrong = {name: count for name, count in counted.items() if count != ways[name][0]}
    assert not wrong, f"these do not read what was written: {wrong}"
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn, name in enumerate(interleaved(rounds, *ways)):
        rows, make = ways[name]
        began = time.perf_counter()
        make().write.format("noop").mode("overwrite").save()
        if turn >= len(ways):  # the first round warms up
            rates[name].append(rows / (time.perf_counter() - began))
        steps.done(name)
    table = Table(
        f"spark-read: rows per second, {jobs:,} jobs of each table", ["what", "rows/s", "from to", "/ Spark's JSON"]
    )
    for name, found in rates.items():
        base = f"{name.partition(',')[0].removesuffix(' as texts')}, Spark's JSON"
        table.add(name, median(found), spread(found), median(found) / median(rates[base]))
    section.tables.append(table)
    for name in ("archive", "events", "jobs"):
        ratio = median(rates[name]) / median(rates[f"{name}, Spark's JSON"])
        section.aim_for(f"{name}, against Spark's JSON reader", ratio, at_least=JSON_RATIO, unit="x")
    ratio = median(rates["archive"]) / median(rates["archive, tuples"])
    section.aim_for("Arrow against tuples", ratio, at_least=TUPLE_RATIO, unit="x")


def _struct(ddl: str) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in (field.split(" ", 1) for field in ddl.split(", ")))


def _one_hour(spark: SparkSession, root: Path, section: Section) -> None:
    """How many objects a query for one hour names, of how many."""
    from pyspark.sql.functions import col, lit

    archive = spark.read.format("casque").option("table", "archive").option("splits", 10_000).load(root.as_uri())
    objects_there = sorted(root.glob("archive/*/*"))
    everything, name = len(objects_there), objects_there[len(objects_there) // 2].parent.name
    hour = lit(f"{name}:00:00Z").cast("timestamp")
    asked = archive.where(col("hour") == hour)
    objects, rows = asked.rdd.getNumPartitions(), asked.count()
    there = len(list(root.glob(f"archive/{name}/*")))
    table = Table("spark-read: one hour of thirty days", ["objects", "objects of the hour", "objects read", "rows"])
    table.add(everything, there, objects, rows)
    section.tables.append(table)
    section.keep_below("objects read for one hour", objects, at_most=there)


def _per_core(root: Path, section: Section) -> None:
    """Without Spark, by the time that the processor spends on it: what others do meanwhile does not count."""
    table = Table("spark-read: plain Python, one process", ["table", "rows per second of processor time"])
    with Scan(root.as_uri()) as scan:
        plans: dict[QueueTable, list[Any]] = {
            QueueTable.EVENTS: list(scan.plan_events()),
            QueueTable.ARCHIVE: list(scan.plan_archive()),
            QueueTable.JOBS: list(scan.plan_jobs()),
        }
        for name, splits in plans.items():
            best = 0.0
            for _ in range(3):
                began = time.process_time()
                rows = sum(batch.num_rows for split in splits for batch in scan.read(split))
                best = max(best, rows / (time.process_time() - began))
            table.add(name.value, best)
            if name is QueueTable.EVENTS:
                section.aim_for("events per second and core", best, at_least=EVENTS_PER_CORE, unit="/s")
    section.tables.append(table)


def _tuple_source() -> Any:
    from casque.spark.options import SourceOptions
    from casque.spark.reader import CasqueReader
    from casque.spark.source import CasqueDataSource

    class Tuples(CasqueReader):
        def read(self, partition: Any) -> Iterator[Any]:
            for batch in super().read(partition):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    class TupleSource(CasqueDataSource):
        @classmethod
        def name(cls) -> str:
            return "casque_tuples"

        def reader(self, schema: Any) -> Any:
            return Tuples(SourceOptions.parse(self.options), schema)

    return TupleSource
