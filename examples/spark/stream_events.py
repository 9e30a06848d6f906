"""Follow a queue with Structured Streaming: every event once, also after the stream was stopped and started again."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from casque import SyncQueue
from casque.spark import register
from casque.spark.session import local_session


def follow(spark: SparkSession, url: str, lake: Path) -> str:
    """Take over what is there now, and say where the stream stands."""
    events = spark.readStream.format("casque").option("table", "events").option("maxRowsPerTrigger", 6).load(url)
    query = (
        events.select("position", "index", "at", "kind", "job_id", "entrypoint")
        .writeStream.format("parquet")
        .option("path", str(lake / "events"))
        .option("checkpointLocation", str(lake / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.lastProgress is not None
    return str(query.lastProgress["sources"][0]["endOffset"])


def main(directory: Path, spark: SparkSession) -> None:
    url, lake = (directory / "orders").as_uri(), directory / "lake"
    with SyncQueue.open(url) as queue:
        queue.enqueue_many([("ship", b"%d" % n) for n in range(5)])
        for job in queue.dequeue("ship", batch_size=3):
            job.ack()
    follow(spark, url, lake)
    taken = spark.read.parquet(str(lake / "events"))
    print("first run:", taken.count(), "events")

    with SyncQueue.open(url) as queue:
        for job in queue.dequeue("ship", batch_size=3):
            job.ack()
    follow(spark, url, lake)
    taken = spark.read.parquet(str(lake / "events"))
    print("second run:", taken.count(), "events")
    print("each once:", taken.count() == taken.select("position", "index").distinct().count())
    kinds = {row["kind"]: row["count"] for row in taken.groupBy("kind").count().collect()}
    print("added, claimed, acked:", kinds["added"], kinds["claimed"], kinds["acked"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        session = local_session("casque-example", settings={"spark.log.level": "OFF"})
        register(session)
        main(Path(temporary), session)
        session.stop()
