"""The gold tables, by Spark SQL.

Everything in them can be added up. A run therefore looks only at what is new: finished jobs and attempts since the last
run count for more, the jobs in the queue now count for more and those that were in it at the last run for less, and
the sum goes to the partitions that it touches. Counts are whole numbers and shares are decimals, so that the sum
is the same in whatever order and portions it is made. Times are turned into whole minutes by arithmetic and not by
functions of the calendar, because those ask for the session's time zone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from casque.spark.sketch import sql_bucket, sql_merge, sql_merged, sql_quantile
from casque.spark.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
PUT_DOLLARS = 0.005 / 1000
"""S3's list price of one write request."""

NEEDED = {
    "silver/jobs": (
        "position",
        "id",
        "entrypoint",
        "zone",
        "state",
        "attempts",
        "created_at",
        "first_due_at",
        "first_claimed_at",
        "finished_at",
        "wait_ms",
        "error",
        "error_class",
        "revived",
    ),
    "silver/attempts": ("entrypoint", "zone", "worker", "claimed_at", "ended_at", "outcome"),
    "silver/queue": (
        "as_of",
        "id",
        "entrypoint",
        "zone",
        "state",
        "worker",
        "created_at",
        "first_due_at",
        "claimed_at",
        "revived",
        "tried",
    ),
    "bronze/events": ("position", "at", "job_id", "entrypoint", "zone", "payload_bytes"),
}
"""What is read of the tables that gold is made of."""


@dataclass(frozen=True)
class News:
    """What happened since the last run, as frames with the columns above."""

    jobs: DataFrame
    attempts: DataFrame
    queue: DataFrame
    queue_before: DataFrame
    events: DataFrame


# --- Each table twice: what is new, as rows to be added; and rows added up, as the table has them. ---


def minutes_added(spark: SparkSession, news: News) -> DataFrame:
    """Rows of one minute, entrypoint and zone, and of one bucket of waits or runs: null for what is about neither."""
    return spark.sql(
        f"""
        WITH j AS (
            SELECT unix_millis(finished_at) div {MINUTE_MS} AS m, unix_millis(created_at) div {MINUTE_MS} AS cm, *,
                {sql_bucket("wait_ms")} AS wb FROM {{jobs}}
        ), {_QUEUES}, {_ATTEMPTS}, a AS (
            SELECT ended div {MINUTE_MS} AS m, *, {sql_bucket("run_ms")} AS rb
            FROM (SELECT *, greatest(ended - began, 0L) AS run_ms FROM tried)
        ), enqueued AS (
            SELECT cm AS m, entrypoint, zone, count_if(NOT revived) AS enqueued FROM j GROUP BY 1, 2, 3
            UNION ALL
            SELECT unix_millis(created_at) div {MINUTE_MS}, entrypoint, zone, sum(sign) FROM q
            WHERE NOT revived AND state != 'dead' GROUP BY 1, 2, 3
        ), added AS (
            SELECT m, entrypoint, zone, enqueued, {_zeros("finished", "run_ms_max")}, {_NO_BUCKETS} FROM enqueued
            UNION ALL
            SELECT m, entrypoint, zone, 0L, count(*), count_if(state = 'done'), count_if(state = 'dead'),
                count_if(state = 'cancelled'), count_if(attempts > 1), 0L, 0L,
                count(wait_ms), coalesce(sum(wait_ms), 0L), coalesce(max(wait_ms), 0L), 0L, 0L, 0L,
                wb, count(wait_ms), CAST(NULL AS INT), 0L
            FROM j GROUP BY m, entrypoint, zone, wb
            UNION ALL
            SELECT m, entrypoint, zone, 0L, 0L, 0L, 0L, 0L, 0L, sum(sign), sum(sign * failed), 0L, 0L, 0L,
                coalesce(sum(sign) FILTER (WHERE run_ms IS NOT NULL), 0L), coalesce(sum(sign * run_ms), 0L),
                coalesce(max(run_ms), 0L), CAST(NULL AS INT), 0L, rb,
                coalesce(sum(sign) FILTER (WHERE run_ms IS NOT NULL), 0L)
            FROM a GROUP BY m, entrypoint, zone, rb
        )
        SELECT * FROM (
            SELECT m, entrypoint, zone, {_sums()}, wb, sum(wc) AS wc, rb, sum(rc) AS rc
            FROM added GROUP BY m, entrypoint, zone, wb, rb
        ) WHERE {_SOMETHING}
        """,
        jobs=news.jobs,
        attempts=news.attempts,
        queue=news.queue,
        before=news.queue_before,
    )


def minutes(spark: SparkSession, added: DataFrame, old: DataFrame) -> DataFrame:
    return spark.sql(
        f"""
        WITH o AS (SELECT unix_millis(minute) div {MINUTE_MS} AS m, * FROM {{old}}),
        everything AS (
            SELECT * FROM {{added}}
            UNION ALL
            SELECT m, entrypoint, zone, {", ".join(_COUNTERS)}, {_NO_BUCKETS} FROM o
            UNION ALL
            SELECT m, entrypoint, zone, {_zeros("enqueued", "run_ms_max")}, b, c, CAST(NULL AS INT), 0L
            FROM o LATERAL VIEW explode(wait_sketch) t AS b, c
            UNION ALL
            SELECT m, entrypoint, zone, {_zeros("enqueued", "run_ms_max")}, CAST(NULL AS INT), 0L, b, c
            FROM o LATERAL VIEW explode(run_sketch) t AS b, c
        ), by_bucket AS (
            SELECT m, entrypoint, zone, {_sums()}, wb, sum(wc) AS wc, rb, sum(rc) AS rc
            FROM everything GROUP BY m, entrypoint, zone, wb, rb
        ), summed AS (
            SELECT m, entrypoint, zone, {_sums()},
                {sql_merge("wb", "wc")} AS wait_sketch, {sql_merge("rb", "rc")} AS run_sketch
            FROM by_bucket GROUP BY m, entrypoint, zone
        )
        SELECT {_date("m", MINUTE_MS)}, {_time("m", MINUTE_MS)} AS minute, entrypoint, zone, {_measures(60)} FROM summed
        WHERE {_SOMETHING}
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


def dead_letters_added(spark: SparkSession, news: News) -> DataFrame:
    return spark.sql(
        f"""
        SELECT unix_millis(finished_at) div {HOUR_MS} AS h, entrypoint, zone, error_class, count(*) AS jobs,
            min(struct(finished_at AS first_at, id AS sample_job, error AS sample_error)) AS first,
            max(finished_at) AS last_at
        FROM {{jobs}} WHERE state = 'dead' GROUP BY 1, 2, 3, 4
        """,
        jobs=news.jobs,
    )


def dead_letters(spark: SparkSession, added: DataFrame, old: DataFrame) -> DataFrame:
    return spark.sql(
        f"""
        WITH everything AS (
            SELECT * FROM {{added}}
            UNION ALL
            SELECT unix_millis(hour) div {HOUR_MS}, entrypoint, zone, error_class, jobs,
                struct(first_at, sample_job, sample_error), last_at FROM {{old}}
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


def depth_added(spark: SparkSession, news: News) -> DataFrame:
    """How many jobs more or less there were in each minute, and for how long.

    Jobs come and go at points in time: what changes at the points of a minute, and how long the change lasted within
    it, adds up. Between two minutes in which anything changed the level stays, and stands in every minute.
    """
    return spark.sql(
        f"""
        WITH {_QUEUES}, j AS (
            SELECT 1L AS sign, entrypoint, zone, unix_millis(created_at) AS created,
                least(unix_millis(first_due_at), unix_millis(first_claimed_at), unix_millis(finished_at)) AS due,
                unix_millis(finished_at) AS ended, revived FROM {{jobs}}
            UNION ALL
            SELECT sign, entrypoint, zone, unix_millis(created_at),
                least(unix_millis(first_due_at), greatest(unix_millis(as_of), unix_millis(created_at))),
                greatest(unix_millis(as_of), unix_millis(created_at)), revived FROM q WHERE state != 'dead'
        ), {_ATTEMPTS}, a AS (
            SELECT sign, entrypoint, zone, began, ended FROM tried WHERE began < ended
            UNION ALL
            SELECT sign, entrypoint, zone, unix_millis(claimed_at), unix_millis(as_of) FROM q
            WHERE state = 'running' AND claimed_at < as_of
        ), points AS (
            SELECT entrypoint, zone, p.* FROM j LATERAL VIEW explode(array(
                struct(created AS at, CASE WHEN revived OR due <= created THEN 0L ELSE sign END AS s, 0L AS d, 0L AS r),
                struct(due AS at, CASE WHEN revived OR due <= created THEN 0L ELSE -sign END AS s, sign AS d, 0L AS r),
                struct(ended AS at, 0L AS s, -sign AS d, 0L AS r))) t AS p
            UNION ALL
            SELECT entrypoint, zone, p.* FROM a LATERAL VIEW explode(array(
                struct(began AS at, 0L AS s, 0L AS d, sign AS r),
                struct(ended AS at, 0L AS s, 0L AS d, -sign AS r))) t AS p
        ), changes AS (
            SELECT * FROM (
                SELECT entrypoint, zone, at div {MINUTE_MS} AS m, sum(s) AS s, sum(d) AS d, sum(r) AS r,
                    sum(s * left) AS s_ms, sum(d * left) AS d_ms, sum(r * left) AS r_ms
                FROM (SELECT *, {MINUTE_MS} - at % {MINUTE_MS} AS left FROM points) GROUP BY 1, 2, 3
            ) WHERE s != 0 OR d != 0 OR r != 0 OR s_ms != 0 OR d_ms != 0 OR r_ms != 0
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
        jobs=news.jobs,
        attempts=news.attempts,
        queue=news.queue,
        before=news.queue_before,
    )


def depth(spark: SparkSession, added: DataFrame, old: DataFrame) -> DataFrame:
    levels = ("scheduled", "waiting", "running", "scheduled_ms", "waiting_ms", "running_ms")
    return spark.sql(
        f"""
        WITH everything AS (
            SELECT * FROM {{added}}
            UNION ALL
            SELECT unix_millis(minute) div {MINUTE_MS}, entrypoint, zone, {", ".join(levels)} FROM {{old}}
        ), summed AS (
            SELECT m, entrypoint, zone, {", ".join(f"sum({name}) AS {name}" for name in levels)}
            FROM everything GROUP BY m, entrypoint, zone
        )
        SELECT {_date("m", MINUTE_MS)}, {_time("m", MINUTE_MS)} AS minute, entrypoint, zone, {", ".join(levels)}
        FROM summed WHERE {" OR ".join(f"{name} != 0" for name in levels)}
        """,
        added=added,
        old=old,
    )


def workers_added(spark: SparkSession, news: News) -> DataFrame:
    within = f"least(ended, (m + 1) * {MINUTE_MS}) - greatest(began, m * {MINUTE_MS})"
    return spark.sql(
        f"""
        WITH {_QUEUES}, {_ATTEMPTS}, a AS (
            SELECT sign, worker, began, ended, failed, 1L AS over FROM tried WHERE began <= ended
            UNION ALL
            SELECT sign, worker, unix_millis(claimed_at), unix_millis(as_of), 0L, 0L FROM q
            WHERE state = 'running' AND claimed_at < as_of
        ), spread AS (
            SELECT sign, worker, m, {within} AS busy, CASE WHEN m = ended div {MINUTE_MS} THEN over ELSE 0L END AS over,
                CASE WHEN m = ended div {MINUTE_MS} THEN failed ELSE 0L END AS failed
            FROM a LATERAL VIEW explode(sequence(began div {MINUTE_MS}, ended div {MINUTE_MS})) t AS m
        )
        SELECT * FROM (
            SELECT m, worker, sum(sign * busy) AS busy_ms, sum(sign * over) AS attempts, sum(sign * failed) AS failed
            FROM spread GROUP BY m, worker
        ) WHERE busy_ms != 0 OR attempts != 0
        """,
        attempts=news.attempts,
        queue=news.queue,
        before=news.queue_before,
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


def requests_added(spark: SparkSession, news: News) -> DataFrame:
    """Most events name only a job: whose it is, is known from its being added, from the queue or from its finish."""
    return spark.sql(
        f"""
        WITH e AS (SELECT * FROM {{events}} WHERE job_id IS NOT NULL),
        sizes AS (SELECT position, CAST(1 / count(*) AS DECIMAL(28, 9)) AS share FROM e GROUP BY position),
        by_job AS (
            SELECT job_id, unix_millis(at) div {HOUR_MS} AS h, count(*) AS operations, sum(share) AS commits,
                sum(coalesce(payload_bytes, 0L)) AS bytes FROM e JOIN sizes USING (position) GROUP BY 1, 2
        ), whose AS (
            SELECT id, max(whose) AS whose FROM (
                SELECT job_id AS id, struct(entrypoint, zone) AS whose FROM e WHERE entrypoint IS NOT NULL
                UNION ALL SELECT id, struct(entrypoint, zone) FROM {{queue}}
                UNION ALL SELECT id, struct(entrypoint, zone) FROM {{before}}
                UNION ALL SELECT id, struct(entrypoint, zone) FROM {{jobs}}
            ) GROUP BY id
        )
        SELECT h, whose.entrypoint, whose.zone, sum(operations) AS operations,
            CAST(sum(commits) AS DECIMAL(28, 9)) AS commits, sum(bytes) AS bytes
        FROM by_job LEFT JOIN whose ON job_id = id GROUP BY 1, 2, 3
        """,
        events=news.events,
        queue=news.queue,
        before=news.queue_before,
        jobs=news.jobs,
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


def dates(added: Mapping[str, tuple[DataFrame, int]]) -> dict[str, list[str]]:
    """The partitions that the rows to be added to each table fall into; with each frame, its unit of time."""
    from pyspark.sql import functions as f

    found: dict[str, list[str]] = {table: [] for table in added}
    asked = [
        df.select(f.lit(table).alias("name"), f.expr(_date(df.columns[0], unit))).distinct()
        for table, (df, unit) in added.items()
    ]
    for row in reduce(lambda some, more: some.union(more), asked).collect():
        found[row.name].append(str(row.date))
    return {table: sorted(some) for table, some in found.items()}


def in_order(df: DataFrame, table: str, dates_: int) -> DataFrame:
    """As it is to be written: the table's columns, a partition in one task and in order."""
    from pyspark.sql import functions as f

    relation = TABLES[table]
    columns = [f.col(name).cast(column.type).alias(name) for name, column in relation.columns.items()]
    spread = df.select(*columns).repartition(max(1, min(dates_, 4)), "date")
    return spread.sortWithinPartitions("date", *relation.unique)


def columns(table: str) -> Mapping[str, str]:
    return {name: column.type for name, column in TABLES[table].columns.items()}


# --- Pieces of SQL ---

_COUNTERS = (
    "enqueued",
    "finished",
    "done",
    "dead",
    "cancelled",
    "retried",
    "attempts",
    "failed",
    "wait_count",
    "wait_ms_sum",
    "wait_ms_max",
    "run_count",
    "run_ms_sum",
    "run_ms_max",
)
_NO_BUCKETS = "CAST(NULL AS INT) AS wb, 0L AS wc, CAST(NULL AS INT) AS rb, 0L AS rc"
_SOMETHING = "enqueued != 0 OR finished != 0 OR attempts != 0"


_QUEUES = "q AS (SELECT 1L AS sign, * FROM {queue} UNION ALL SELECT -1L, * FROM {before})"
_ATTEMPTS = """tried AS (
            SELECT 1L AS sign, entrypoint, zone, worker, unix_millis(claimed_at) AS began,
                unix_millis(ended_at) AS ended, CASE WHEN outcome IN ('failed', 'expired', 'dead') THEN 1L ELSE 0L END
                AS failed FROM {attempts}
            UNION ALL
            SELECT sign, entrypoint, zone, t.worker, t.claimed_ms, t.ended_ms, 1L
            FROM q LATERAL VIEW explode(tried) e AS t
        )"""
"""Attempts that are over, of finished jobs and of those in the queue. The latter are taken off again when their job is
looked at the next time, and added again with it, as long as it is there or when it has finished."""


def _sums() -> str:
    return ", ".join(f"{'max' if name.endswith('_max') else 'sum'}({name}) AS {name}" for name in _COUNTERS)


def _zeros(first: str, last: str) -> str:
    names = _COUNTERS[_COUNTERS.index(first) : _COUNTERS.index(last) + 1]
    return ", ".join(f"0L AS {name}" for name in names)


def _date(count: str, unit_ms: int) -> str:
    return f"date_from_unix_date(CAST({count} * {unit_ms} div {DAY_MS} AS INT)) AS date"


def _time(count: str, unit_ms: int) -> str:
    return f"timestamp_millis({count} * {unit_ms})"


def _measures(seconds: int) -> str:
    """The counters, and what follows from them."""
    counters = [name for name in _COUNTERS if not name.startswith(("wait", "run"))]
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
