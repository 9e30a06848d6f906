"""The tables of `casque pipeline run` as a Spark Declarative Pipeline, from the same SQL files.

`bronze_events` is a streaming table: each run of the pipeline adds the events since the last one. Silver and gold are
materialized views, which Spark computes anew from everything.
"""

from __future__ import annotations

import re
from functools import partial

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from casque.spark.models import models, text

spark = SparkSession.active()
URL = spark.conf.get("casque.url")
SOURCES = ("archive", "jobs")
"""Tables of the queue that the SQL files read."""
NOT_HERE = ("bronze/events", "bronze/gaps", "quality/rules", "quality/rows")
"""The stream below, and tables about the runs of `casque pipeline run`."""


def inlined(sql: str) -> str:
    """A query without our two SQL functions: a declarative pipeline cannot declare any."""
    for name in ("span_ms", "error_class"):
        declared = re.search(r"FUNCTION \w+\((.*?)\) RETURNS \w+ RETURN\s+(.*)", text(name), re.DOTALL)
        assert declared is not None
        parameters = [one.split()[0] for one in declared[1].split(", ")]

        def body(call: re.Match[str], parameters: list[str] = parameters, whole: str = declared[2]) -> str:
            given = dict(zip(parameters, call[1].split(", "), strict=True))
            return "(" + re.sub(rf"\b({'|'.join(given)})\b", lambda found: given[found[0]], whole.strip()) + ")"

        sql = re.sub(rf"\b{name}\(([\w., ]+)\)", body, sql)
    return sql


def source(table: str) -> DataFrame:
    return spark.read.format("casque").option("table", table).load(URL)


def query(sql: str) -> DataFrame:
    return spark.sql(sql)


for table in SOURCES:
    dp.temporary_view(name=table)(partial(source, table))


@dp.temporary_view(name="run")
def describe_run() -> DataFrame:
    return spark.sql(
        "SELECT current_timestamp() AS as_of, TIMESTAMP'1970-01-01 00:00:00Z' AS since, 0.000005D AS put_dollars"
    )


@dp.table(name="bronze_events")
def bronze_events() -> DataFrame:
    events = spark.readStream.format("casque").option("table", "events").option("archived", "true").load(URL)
    return events.selectExpr("to_date(at) AS date", "*")


for model in models().values():
    if model.name not in NOT_HERE:
        dp.materialized_view(name=model.view, comment=model.rows)(partial(query, inlined(model.query)))
