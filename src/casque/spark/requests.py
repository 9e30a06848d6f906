"""Cost of operations at the store (`gold/requests`), by Spark SQL, because finding the zone of an event takes a join.

Shares are decimals, so the sum does not depend on order or grouping. Times become whole hours by arithmetic instead of
calendar functions, which depend on the session's time zone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from casque.prices import S3
from casque.spark.combine import DAY_MS, HOUR_MS
from casque.spark.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = "gold/requests"
ONE_TASK_DATES = 3
WRITE_TASKS = 8
PUT_DOLLARS = S3.put
"""S3's list price of one write request."""
WHOSE = ("id", "entrypoint", "zone")
EVENTS = ("at", "job_id", "entrypoint", "zone", "payload_bytes", "operations")
"""Columns that are read of `bronze/events`, and of the other tables that say whose jobs events are about."""


def added(spark: SparkSession, events: DataFrame, known: Sequence[DataFrame]) -> DataFrame:
    """Most events name only a job. Its entrypoint and zone come from its enqueue event, from the queue or from its
    end."""
    return spark.sql(
        f"""
        WITH e AS (SELECT * FROM {{events}} WHERE job_id IS NOT NULL),
        by_job AS (
            SELECT job_id, unix_millis(at) div {HOUR_MS} AS h, count(*) AS operations,
                sum(CAST(1 / operations AS DECIMAL(28, 9))) AS commits, sum(coalesce(payload_bytes, 0L)) AS bytes
            FROM e GROUP BY 1, 2
        ), whose AS (
            SELECT id, max(whose) AS whose FROM (
                SELECT job_id AS id, struct(entrypoint, zone) AS whose FROM e WHERE entrypoint IS NOT NULL
                UNION ALL SELECT id, struct(entrypoint, zone) FROM {{known}}
            ) GROUP BY id
        )
        SELECT h, whose.entrypoint, whose.zone, sum(operations) AS operations,
            CAST(sum(commits) AS DECIMAL(28, 9)) AS commits, sum(bytes) AS bytes
        FROM by_job LEFT JOIN whose ON job_id = id GROUP BY 1, 2, 3
        """,
        events=events,
        known=reduce(lambda some, more: some.union(more), known),
    )


def merged(spark: SparkSession, added_: DataFrame, old: DataFrame, put_dollars: float) -> DataFrame:
    return spark.sql(
        f"""
        WITH everything AS (
            SELECT * FROM {{added}}
            UNION ALL
            SELECT unix_millis(hour) div {HOUR_MS}, entrypoint, zone, operations, commits, bytes FROM {{old}}
        ), summed AS (
            SELECT h, entrypoint, zone, sum(operations) AS operations, CAST(sum(commits) AS DECIMAL(28, 9)) AS commits,
                sum(bytes) AS bytes FROM everything GROUP BY h, entrypoint, zone
        )
        SELECT date_from_unix_date(CAST(h * {HOUR_MS} div {DAY_MS} AS INT)) AS date,
            timestamp_millis(h * {HOUR_MS}) AS hour, entrypoint, zone, operations, commits, bytes,
            CAST(commits AS DOUBLE) * {put_dollars!r}D AS dollars FROM summed
        """,
        added=added_,
        old=old,
    )


def in_order(df: DataFrame, dates: int) -> DataFrame:
    """Ready to write: the table's columns, each partition in one task and sorted."""
    from pyspark.sql import functions as f

    columns = TABLES[TABLE].columns
    chosen = df.select(*(f.col(name).cast(column.type).alias(name) for name, column in columns.items()))
    # A run over new data has few partitions, which are not worth a shuffle.
    spread = chosen.coalesce(1) if dates <= ONE_TASK_DATES else chosen.repartition(min(dates, WRITE_TASKS), "date")
    return spread.sortWithinPartitions("date", *TABLES[TABLE].unique)
