"""A queue's tables as DataFrames: what waits, what happened, what became of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from casque import SyncQueue
from casque.spark import register
from casque.spark.session import local_session


def write(url: str) -> int:
    """Some orders: two are still to be worked on, one is dead. Returns where the queue stood before the work began."""
    with SyncQueue.open(url, worker="anna", max_attempts=1) as queue:
        queue.enqueue_many([("ship", b"order %d" % n) for n in range(8)])
        before = queue.stats().position
        for job in queue.dequeue("ship", batch_size=6):
            if job.payload == b"order 3":
                job.nack(error="ValueError: no such address")
            else:
                job.ack(result=b"shipped")
    return before


def main(url: str, spark: SparkSession) -> None:
    before = write(url)

    def table(name: str, **options: str | int) -> DataFrame:
        return spark.read.format("casque").option("table", name).options(**options).load(url)

    print("now:", {row["state"]: row["count"] for row in table("jobs").groupBy("state").count().collect()})
    print("before the work:", table("jobs", asOf=before).where("state = 'ready'").count(), "ready")
    kinds = table("events").groupBy("kind").count().orderBy("kind").collect()
    print("events:", ", ".join(f"{row['kind']} {row['count']}" for row in kinds))
    table("attempts").createOrReplaceTempView("attempts")
    [worst] = spark.sql("SELECT error, count(*) AS times FROM attempts WHERE outcome = 'dead' GROUP BY error").collect()
    print("dead:", worst["error"], "x", worst["times"])
    # Only the objects of this hour are read, however long the archive is.
    hour = table("archive").selectExpr("max(hour)").collect()[0][0]
    print("shipped in that hour:", table("archive").where("state = 'done'").where(col("hour") == hour).count())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        session = local_session("casque-example", settings={"spark.log.level": "OFF"})
        register(session)
        main((Path(temporary) / "orders").as_uri(), session)
        session.stop()
