"""The gold tables, by Spark SQL.

Everything in them can be added up. A run therefore looks only at what is new: tasks say what it adds (`combine`), that
is merged here with the partitions that it touches, and percentiles, rates and levels follow from the sums. Counts are
whole numbers and shares are decimals, so that the sum is the same in whatever order and portions it is made. Times are
turned into whole minutes by arithmetic and not by functions of the calendar, which ask for the session's time zone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from casque.spark.combine import COUNTERS, DAY_MS, HOUR_MS, LEVELS, MINUTE_MS
from casque.spark.sketch import sql_merged, sql_quantile
from casque.spark.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ONE_TASK_DATES = 3
WRITE_TASKS = 8
PUT_DOLLARS = 0.005 / 1000
"""S3's list price of one write request."""
WHOSE = ("id", "entrypoint", "zone")
EVENTS = ("at", "job_id", "entrypoint", "zone", "payload_bytes", "operations")
"""What is read of `bronze/events` for the requests, and of other tables to know whose jobs they are about."""


def minutes(spark: SparkSession, added: DataFrame, old: DataFrame) -> DataFrame:
    counters = ", ".join(COUNTERS)
    return spark.sql(
        f"""
        WITH everything AS (
            SELECT m, entrypoint, zone, {counters}, wait_sketch, run_sketch FROM {{added}}
            UNION ALL
            SELECT unix_millis(minute) div {MINUTE_MS}, entrypoint, zone, {counters}, wait_sketch, run_sketch
            FROM {{old}}
        ), summed AS (
            SELECT m, entrypoint, zone, {_sums()}, {sql_merged("wait_sketch")} AS wait_sketch,
                {sql_merged("run_sketch")} AS run_sketch FROM everything GROUP BY m, entrypoint, zone
        )
        SELECT {_date("m", MINUTE_MS)}, {_time("m", MINUTE_MS)} AS minute, entrypoint, zone, {_measures(60)} FROM summed
        WHERE enqueued != 0 OR finished != 0 OR attempts != 0
        """,
        added=added,
        old=old,
    )


def hours(spark: SparkSession, minutes_: DataFrame) -> DataFrame:
    return spark.sql(
        f"""
        WITH summed AS (
            SELECT unix_millis(minute) div {HOUR_MS} AS h, entrypoint, zone, {_sums()},
                {sql_merged("wait_sketch")} AS wait_sketch, {sql_merged("run_sketch")} AS run_sketch
            FROM {{minutes}} GROUP BY 1, 2, 3
        )
        SELECT {_date("h", HOUR_MS)}, {_time("h", HOUR_MS)} AS hour, entrypoint, zone, {_measures(3600)} FROM summed
        """,
        minutes=minutes_,
    )


def but_for(old: DataFrame, hours_: Sequence[int]) -> DataFrame:
    """Rows by hour that stay as they are, because nothing happened to these hours."""
    return old.where(f"unix_millis(hour) div {HOUR_MS} NOT IN ({', '.join(map(str, hours_))})")


def dead_letters(spark: SparkSession, added: DataFrame, old: DataFrame) -> DataFrame:
    return spark.sql(
        f"""
        WITH everything AS (
            SELECT h, entrypoint, zone, error_class, jobs, timestamp_millis(last_ms) AS last_at,
                struct(timestamp_millis(first_ms) AS first_at, sample_job, sample_error) AS first FROM {{added}}
            UNION ALL
            SELECT unix_millis(hour) div {HOUR_MS}, entrypoint, zone, error_class, jobs, last_at,
                struct(first_at, sample_job, sample_error) FROM {{old}}
        ), summed AS (
            SELECT h, entrypoint, zone, error_class, sum(jobs) AS jobs, min(first) AS first, max(last_at) AS last_at
            FROM everything GROUP BY h, entrypoint, zone, error_class
        )
        SELECT {_date("h", HOUR_MS)}, {_time("h", HOUR_MS)} AS hour, entrypoint, zone, error_class, jobs,
            first.sample_job, first.sample_error, first.first_at, last_at FROM summed
        """,
        added=added,
        old=old,
    )


def levels(spark: SparkSession, added: DataFrame) -> DataFrame:
    """How many jobs more or less there were in each minute, and for how long.

    Jobs come and go at points in time: what changes at the points of a minute, and how long the change lasted within
    it, adds up. Between two minutes in which anything changed the level stays, and stands in every minute.
    """
    something = " OR ".join(f"sum({name}) != 0" for name in LEVELS)
    return spark.sql(
        f"""
        WITH changes AS (
            SELECT entrypoint, zone, m, {", ".join(f"sum({name}) AS {name}" for name in LEVELS)}
            FROM {{added}} GROUP BY entrypoint, zone, m HAVING {something}
        ), levels AS (
            SELECT *, sum(s) OVER w AS ls, sum(d) OVER w AS ld, sum(r) OVER w AS lr, lead(m) OVER w AS next
            FROM changes WINDOW w AS (PARTITION BY entrypoint, zone ORDER BY m)
        ), spread AS (
            SELECT entrypoint, zone, m, ls, ld, lr, (ls - s) * {MINUTE_MS} + s_ms AS s_ms,
                (ld - d) * {MINUTE_MS} + d_ms AS d_ms, (lr - r) * {MINUTE_MS} + r_ms AS r_ms FROM levels
            UNION ALL
            SELECT entrypoint, zone, between, ls, ld, lr, ls * {MINUTE_MS}, ld * {MINUTE_MS}, lr * {MINUTE_MS}
            FROM levels LATERAL VIEW explode(sequence(m + 1, next - 1)) t AS between
            WHERE next > m + 1 AND (ls != 0 OR ld != 0 OR lr != 0)
        )
        SELECT m, entrypoint, zone, ls AS scheduled, ld - lr AS waiting, lr AS running,
            s_ms AS scheduled_ms, d_ms - r_ms AS waiting_ms, r_ms AS running_ms FROM spread
        """,
        added=added,
    )


def depth(spark: SparkSession, added: DataFrame, old: DataFrame) -> DataFrame:
    columns = ("scheduled", "waiting", "running", "scheduled_ms", "waiting_ms", "running_ms")
    return spark.sql(
        f"""
        WITH everything AS (
            SELECT * FROM {{added}}
            UNION ALL
            SELECT unix_millis(minute) div {MINUTE_MS}, entrypoint, zone, {", ".join(columns)} FROM {{old}}
        ), summed AS (
            SELECT m, entrypoint, zone, {", ".join(f"sum({name}) AS {name}" for name in columns)}
            FROM everything GROUP BY m, entrypoint, zone
        )
        SELECT {_date("m", MINUTE_MS)}, {_time("m", MINUTE_MS)} AS minute, entrypoint, zone, {", ".join(columns)}
        FROM summed WHERE {" OR ".join(f"{name} != 0" for name in columns)}
        """,
        added=added,
        old=old,
    )


def workers(spark: SparkSession, added: DataFrame, old: DataFrame) -> DataFrame:
    return spark.sql(
        f"""
        WITH everything AS (
            SELECT * FROM {{added}}
            UNION ALL
            SELECT unix_millis(minute) div {MINUTE_MS}, worker, busy_ms, attempts, failed FROM {{old}}
        ), summed AS (
            SELECT m, worker, sum(busy_ms) AS busy_ms, sum(attempts) AS attempts, sum(failed) AS failed
            FROM everything GROUP BY m, worker
        )
        SELECT {_date("m", MINUTE_MS)}, {_time("m", MINUTE_MS)} AS minute, worker, busy_ms,
            busy_ms / {MINUTE_MS}D AS utilisation, attempts, failed
        FROM summed WHERE busy_ms != 0 OR attempts != 0
        """,
        added=added,
        old=old,
    )


def fairness(spark: SparkSession, hours_: DataFrame) -> DataFrame:
    return spark.sql(
        f"""
        WITH z AS (
            SELECT hour, zone, sum(finished) AS jobs, sum(run_ms_sum) AS run, sum(wait_ms_sum) AS wait,
                sum(wait_count) AS waits FROM {{hours}} GROUP BY hour, zone HAVING sum(finished) > 0
        ), ranked AS (
            SELECT *, wait / nullif(waits, 0) AS mean,
                sum(jobs) OVER (PARTITION BY hour ORDER BY jobs DESC, zone
                    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) - jobs AS above,
                sum(jobs) OVER (PARTITION BY hour) AS all
            FROM z
        ), sized AS (SELECT *, above * 2 < all AS large FROM ranked),
        summed AS (
            SELECT hour, CAST(count(*) AS INT) AS zones, sum(jobs) AS jobs,
                power(sum(CAST(run AS DOUBLE)), 2) / nullif(count(*) * sum(power(CAST(run AS DOUBLE), 2)), 0D)
                    AS jain_service,
                power(sum(mean), 2) / nullif(count(mean) * sum(power(mean, 2)), 0D) AS jain_wait,
                min(CASE WHEN above = 0 THEN struct(zone, jobs) END) AS largest,
                CAST(count_if(large) AS INT) AS large_zones,
                sum(wait) FILTER (WHERE large) / nullif(sum(waits) FILTER (WHERE large), 0) AS large_wait_ms,
                sum(wait) FILTER (WHERE NOT large) / nullif(sum(waits) FILTER (WHERE NOT large), 0) AS small_wait_ms
            FROM sized GROUP BY hour
        )
        SELECT {_date(f"(unix_millis(hour) div {HOUR_MS})", HOUR_MS)}, hour, zones, jobs, jain_service, jain_wait,
            largest.zone AS largest_zone, largest.jobs / CAST(jobs AS DOUBLE) AS largest_share, large_zones,
            large_wait_ms, small_wait_ms, small_wait_ms / nullif(large_wait_ms, 0D) AS small_to_large FROM summed
        """,
        hours=hours_,
    )


def requests_added(spark: SparkSession, events: DataFrame, known: Sequence[DataFrame]) -> DataFrame:
    """Most events name only a job: whose it is, is known from its being added, from the queue or from its finish."""
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


def requests(spark: SparkSession, added: DataFrame, old: DataFrame, put_dollars: float) -> DataFrame:
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
        SELECT {_date("h", HOUR_MS)}, {_time("h", HOUR_MS)} AS hour, entrypoint, zone, operations, commits, bytes,
            CAST(commits AS DOUBLE) * {put_dollars!r}D AS dollars FROM summed
        """,
        added=added,
        old=old,
    )


def hours_of(added: DataFrame) -> list[int]:
    """The hours that rows by minute fall into, counted from 1970."""
    found = added.selectExpr(f"m * {MINUTE_MS} div {HOUR_MS} AS h").distinct().collect()
    return sorted(row.h for row in found)


def in_columns(df: DataFrame, table: str) -> DataFrame:
    """The table's columns, in its order and types."""
    from pyspark.sql import functions as f

    return df.select(*(f.col(name).cast(column.type).alias(name) for name, column in TABLES[table].columns.items()))


def in_order(df: DataFrame, table: str, dates: int) -> DataFrame:
    """As it is to be written: the table's columns, a partition in one task and in order."""
    chosen = in_columns(df, table)
    # For a few partitions, which is what a run over something new has, no shuffle is worth it.
    spread = chosen.coalesce(1) if dates <= ONE_TASK_DATES else chosen.repartition(min(dates, WRITE_TASKS), "date")
    return spread.sortWithinPartitions("date", *TABLES[table].unique)


def columns(table: str) -> Mapping[str, str]:
    return {name: column.type for name, column in TABLES[table].columns.items()}


# --- Pieces of SQL ---


def _sums() -> str:
    return ", ".join(f"{'max' if name.endswith('_max') else 'sum'}({name}) AS {name}" for name in COUNTERS)


def _date(count: str, unit_ms: int) -> str:
    return f"date_from_unix_date(CAST({count} * {unit_ms} div {DAY_MS} AS INT)) AS date"


def _time(count: str, unit_ms: int) -> str:
    return f"timestamp_millis({count} * {unit_ms})"


def _measures(seconds: int) -> str:
    """The counters, and what follows from them."""
    counters = [name for name in COUNTERS if not name.startswith(("wait", "run"))]
    parts = [
        *counters,
        f"finished / {seconds}D AS throughput",
        "retried / nullif(CAST(done + dead AS DOUBLE), 0D) AS retry_rate",
        "dead / nullif(CAST(done + dead AS DOUBLE), 0D) AS failure_rate",
        "failed / nullif(CAST(attempts AS DOUBLE), 0D) AS attempt_failure_rate",
    ]
    for span in ("wait", "run"):
        parts += [f"{span}_count", f"{span}_ms_sum", f"{span}_ms_max"]
        parts += [f"{sql_quantile(f'{span}_sketch', q / 100)} AS {span}_p{q}_ms" for q in (50, 90, 99)]
        parts.append(f"{span}_sketch")
    return ", ".join(parts)
