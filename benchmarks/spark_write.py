"""Bulk enqueue with Spark on two cores, beside Spark's own Parquet write of the same frame and a call for each row.

The frame is cached first: what is compared is how rows leave Spark, not how they are made.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import Section, Steps, Table, interleaved, median, spread
from benchmarks.scale import Scale
from casque import SyncQueue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_MICRO_BATCH = 1_000


def measure(scale: Scale, steps: Steps) -> Section:
    from casque.spark.session import local_session

    section = Section()
    quiet = {"spark.log.level": "ERROR", "spark.driver.memory": "2g"}
    spark = local_session("benchmarks", master="local[2]", settings=quiet)
    try:
        with tempfile.TemporaryDirectory() as directory:
            _bulk(spark, Path(directory), scale, steps, section)
            _micro_batches(spark, Path(directory), scale, steps, section)
    finally:
        spark.stop()
    return section


def frame(spark: SparkSession, rows: int) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return spark.range(0, rows, 1, 4).select(
        F.lit("send").alias("entrypoint"),
        F.concat(F.lit('{"to":"somebody@example.org","number":'), F.col("id").cast("string"), F.lit("}")).alias(
            "payload"
        ),
        (F.col("id") % 10).cast("int").alias("priority"),
    )


# --- Bulk ---


def _bulk(spark: SparkSession, directory: Path, scale: Scale, steps: Steps, section: Section) -> None:
    rows = scale.spark_rows
    df = frame(spark, rows).cache()
    df.count()
    spark.dataSource.register(_staging_only())
    fresh = _numbered(directory)

    def save(source: str) -> None:
        df.write.format(source).mode("append").save(next(fresh).as_uri())

    def row_by_row() -> None:
        url = next(fresh).as_uri()

        def one_call_each(partition: Iterator[Any]) -> None:
            with SyncQueue.open(url) as queue:
                for row in partition:
                    queue.enqueue(row.entrypoint, row.payload.encode(), priority=row.priority)

        df.limit(scale.spark_sample).repartition(2).foreachPartition(one_call_each)

    ways: dict[str, tuple[Callable[[], None], int]] = {
        "parquet": (lambda: df.write.parquet(str(next(fresh))), rows),
        "staging": (lambda: save("casque_staging_only"), rows),
        "enqueue": (lambda: save("casque"), rows),
        "call per row": (row_by_row, scale.spark_sample),
    }
    steps.expect(len(ways) * (scale.file_repetitions + 1))
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for number, way in enumerate(interleaved(scale.file_repetitions + 1, *ways)):
        work, count = ways[way]
        started = time.perf_counter()
        work()
        if number >= len(ways):  # the first of each starts Python's workers and compiles
            rates[way].append(count / (time.perf_counter() - started))
        steps.done(way)
    df.unpersist()
    table = Table(
        f"spark-write: {rows:,} rows on local[2], local files",
        ["way", "rows/s", "lowest to highest", "of Parquet"],
        notes=[
            "staging: until all objects are written, without the commit. enqueue: until every job can be claimed.",
            f"call per row: foreachPartition with the client, {scale.spark_sample:,} rows, two tasks on one queue.",
        ],
    )
    whole = median(rates["parquet"])
    for way, found in rates.items():
        table.add(way, median(found), spread(found), f"{median(found) / whole:.2f}")
    section.tables.append(table)
    staging, enqueue = median(rates["staging"]), median(rates["enqueue"])
    section.aim_for("staging, of Spark's own Parquet write", staging / whole, at_least=0.3)
    section.aim_for("jobs per second until all can be claimed", enqueue, at_least=60_000, unit="/s")
    section.aim_for("bulk enqueue, times a call per row", enqueue / median(rates["call per row"]), at_least=10)


def _staging_only() -> Any:
    """The writer without its commit."""
    from pyspark import cloudpickle
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

    from casque.spark.sink import BatchWriter
    from casque.spark.write_options import WriteOptions

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

    class StagingWriter(BatchWriter):
        def commit(self, messages: list[Any]) -> None:
            """What is staged stays where it is."""

    class StagingOnly(DataSource):
        @classmethod
        def name(cls) -> str:
            return "casque_staging_only"

        def writer(self, schema: StructType, overwrite: bool) -> StagingWriter:
            return StagingWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)

    return StagingOnly


# --- Micro-batches ---


def _micro_batches(spark: SparkSession, directory: Path, scale: Scale, steps: Steps, section: Section) -> None:
    """Events of one queue become jobs of another, or nothing at all."""
    from pyspark.sql import functions as F  # noqa: N812

    fresh = _numbered(directory / "micro")
    source = next(fresh).as_uri()
    with SyncQueue.open(source) as queue:
        for _ in range(scale.spark_batches):
            queue.enqueue_many([("send", b'{"to":"somebody@example.org"}')] * ROWS_PER_MICRO_BATCH)

    def run(sink: str) -> float:
        reader = spark.readStream.format("casque").option("table", "events")
        events = reader.option("maxRowsPerTrigger", ROWS_PER_MICRO_BATCH).load(source)
        jobs = events.where("kind = 'added'").select(F.lit("next").alias("entrypoint"), "payload")
        writer = jobs.writeStream.format(sink).option("checkpointLocation", str(next(fresh)))
        query = writer.trigger(availableNow=True).start(next(fresh).as_uri() if sink == "casque" else None)
        query.awaitTermination()
        taken = [one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"]]
        return median(taken[2:])

    sinks = ("noop", "casque")
    steps.expect(len(sinks) * (scale.file_repetitions + 1))
    found: dict[str, list[float]] = {sink: [] for sink in sinks}
    for number, sink in enumerate(interleaved(scale.file_repetitions + 1, *sinks)):
        taken = run(sink)
        if number >= len(sinks):
            found[sink].append(taken)
        steps.done(f"micro-batches, {sink}")
    table = Table(
        f"spark-write: a micro-batch of {ROWS_PER_MICRO_BATCH:,} events of one queue that become jobs of another",
        ["sink", "ms", "lowest to highest", "of no-op"],
    )
    for sink in sinks:
        table.add(sink, median(found[sink]), spread(found[sink]), f"{median(found[sink]) / median(found['noop']):.2f}")
    section.tables.append(table)
    ratio = median(found["casque"]) / median(found["noop"])
    section.keep_below("micro-batch with our source and sink, of one with a no-op sink", ratio, at_most=1.3)


def _numbered(directory: Path) -> Iterator[Path]:
    directory.mkdir(exist_ok=True)
    number = 0
    while True:
        number += 1
        yield directory / f"{number}"
