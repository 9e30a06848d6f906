"""A driver of its own, to be killed: `python driver.py stream|batch|speculate|connect JSON`.

Prints one line of JSON when it is done. Whatever it is asked to do it does with the session that a user would have.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"}
STRAGGLERS = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.0",
    "spark.speculation.minTaskRuntime": "100ms",
}


def lines(spark: SparkSession, directory: str, files_at_once: int | None = 1) -> DataFrame:
    """Each line is a job, and each file a batch."""
    reader = spark.readStream if files_at_once is None else spark.readStream.option("maxFilesPerTrigger", files_at_once)
    stream = reader.text(directory)
    return stream.select(F.lit("send").alias("entrypoint"), F.col("value").alias("payload"))


def main() -> None:
    task, given = sys.argv[1], json.loads(sys.argv[2])
    said = {"stream": stream, "batch": batch, "speculate": speculate, "connect": connect}[task](given)
    print(json.dumps(said), flush=True)


def local(master: str = "local[2,3]", **settings: str) -> SparkSession:
    from casque.spark.session import local_session

    spark = local_session("casque-test-driver", master=master, settings={**SETTINGS, **settings})
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.spark.faulty import FaultyDataSource

    spark.dataSource.register(FaultyDataSource)


def stream(given: dict[str, Any]) -> Any:
    return follow(local(), given)


def follow(spark: SparkSession, given: dict[str, Any]) -> Any:
    writer = lines(spark, given["input"]).writeStream.format(given.get("source", "casque_faulty"))
    query = writer.trigger(availableNow=True).options(**given["options"]).start(given["url"])
    try:
        query.awaitTermination()
    except Exception as error:
        return {"error": str(error)}
    return {"batches": [progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]]}


def batch(given: dict[str, Any]) -> Any:
    return write(local(), given)


def write(spark: SparkSession, given: dict[str, Any]) -> Any:
    numbers = spark.range(0, given["rows"], 1, 4)
    df = numbers.select(F.lit("send").alias("entrypoint"), F.col("id").cast("string").alias("payload"))
    writer = df.write.format(given.get("source", "casque_faulty")).mode("append")
    writer.options(**given["options"]).save(given["url"])
    return {"rows": given["rows"]}


def speculate(given: dict[str, Any]) -> Any:
    return write(local(given["master"], **STRAGGLERS), given)


def connect(given: dict[str, Any]) -> Any:
    spark = SparkSession.builder.remote(given["remote"]).getOrCreate()
    try:
        return {"write": write(spark, given["write"]), "stream": follow(spark, given["stream"])}
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
