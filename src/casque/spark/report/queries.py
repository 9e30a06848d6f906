"""The questions of a report to a warehouse, in SQL, and their answers as the values of `figures`.

Only numbers and names go to Spark and come back: times are milliseconds since the epoch, because a driver's view of a
timestamp depends on two time zones, that of the session and its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from casque.spark.models import models, text
from casque.spark.report.figures import (
    Cost,
    DeadLetters,
    Depth,
    FairHour,
    Fairness,
    Figures,
    Moment,
    Named,
    Standing,
    Tally,
    WorkerUse,
)
from casque.spark.report.period import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Period

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from casque.spark.warehouse import Snapshot

Progress = Callable[[str], None]
"""Called with the title of each step."""

ZONES_MAX = 200
"""Zones that are listed; the others are one."""
EDGES_MS = (0, *sorted({round(10 ** (power / 10)) for power in range(101)}))
"""Edges of the histogram's bars, up to 115 days."""
COMPARED = ", ".join(Fairness.__struct_fields__)
FAIR_HOURS = f"""
    SELECT unix_millis(hour) AS at_ms, struct({COMPARED}) AS fairness FROM gold_fairness
    WHERE unix_millis(hour) >= :hour_ms AND unix_millis(hour) < :to_ms ORDER BY hour
"""
STANDING = """
    SELECT count_if(NOT running AND NOT due) AS scheduled, count_if(NOT running AND due) AS waiting,
      count_if(running) AS running
    FROM (SELECT state = 'running' AS running, first_due_at <= as_of AS due FROM silver_queue WHERE state <> 'dead')
"""
EXTENT = """
    SELECT min(unix_millis(minute)) AS first, max(unix_millis(minute)) AS last
    FROM (SELECT minute FROM gold_minutes UNION ALL SELECT minute FROM gold_depth)
"""

BEGINNING = """
    SELECT min(unix_millis(created_at)) AS first
    FROM (SELECT created_at FROM silver_jobs UNION ALL SELECT created_at FROM silver_queue)
"""


class Questions:
    """A warehouse as one run left it, asked about periods. The views of the session are those of the last period."""

    def __init__(self, spark: SparkSession, snapshot: Snapshot, as_of_ms: int) -> None:
        self._spark = spark
        self._snapshot = snapshot
        self._as_of_ms = as_of_ms
        self._fixed = {"as_of_ms": as_of_ms, "zones_max": ZONES_MAX}
        self._arguments: dict[str, Any] = {}
        self._kept: list[DataFrame] = []

    def extent(self) -> Period | None:
        """The minutes that the warehouse covers, of a short history the seconds; None if it is empty."""
        for table in ("gold/minutes", "gold/depth"):
            self._view(table)
        [row] = self._rows(EXTENT)
        if row["first"] is None:
            return None
        known = Period(row["first"], row["last"] + MINUTE_MS)
        if known.tick_ms == MINUTE_MS:
            return known
        for table in ("silver/jobs", "silver/queue"):
            self._view(table)
        [row] = self._rows(BEGINNING)
        last_ms = min(self._as_of_ms // SECOND_MS * SECOND_MS + SECOND_MS, known.to_ms)
        return Period(row["first"] // SECOND_MS * SECOND_MS, max(last_ms, known.to_ms - MINUTE_MS))

    def ask(self, period: Period, known: Period, say: Progress) -> Figures:
        """All figures of a period; `known` is the extent of the warehouse."""
        # There is no data beyond the known period: covering all known minutes of an hour covers the hour.
        whole_hours = (period.from_ms % HOUR_MS == 0 or period.from_ms <= known.from_ms) and (
            period.to_ms % HOUR_MS == 0 or period.to_ms >= known.to_ms
        )
        self._prepare(period, whole_hours=whole_hours)
        say("counting jobs, merging sketches")
        rows = self._rows(
            text("report_tallies").replace(":edges", f"array({', '.join(f'{edge}L' for edge in EDGES_MS)})")
        )
        every: dict[str, dict[Any, Tally]] = {row["dimension"]: {} for row in rows}
        for row in rows:
            every[row["dimension"]][row["key"]] = msgspec.convert(row["tally"], Tally)
        ranks = next((row for row in rows if row["dimension"] == "all"), {})
        total = every.get("all", {}).get("", Tally())
        say("depth over time")
        depths = self._rows(text("report_depth"))
        standing: Any = next((row["last"] for row in reversed(depths) if row["last"]), {})
        if period.to_ms >= known.to_ms:
            # As of the warehouse's position, which may be within a minute, whose final depth is not known.
            [standing] = self._rows(STANDING)
        say("workers and dead letters")
        workers, dead_letters = self._rows(text("report_workers")), self._rows(text("report_dead_letters"))
        say("fairness and cost")
        fair_hours, costs = self._rows(FAIR_HOURS), self._rows(text("report_costs"))
        return Figures(
            period,
            total,
            _histogram(ranks.get("wait_ranks"), total.wait.count),
            _histogram(ranks.get("run_ranks"), total.run.count),
            _moments(every.get("step", {})),
            _moments(every.get("hour", {})),
            _ranked(every.get("entrypoint", {})),
            _ranked(every.get("zone", {})),
            msgspec.convert(depths, tuple[Depth, ...]),
            msgspec.convert(standing, Standing),
            msgspec.convert(workers, tuple[WorkerUse, ...]),
            msgspec.convert(dead_letters, tuple[DeadLetters, ...]),
            self._fairness(),
            msgspec.convert(fair_hours, tuple[FairHour, ...]),
            msgspec.convert([row for row in costs if not row["other"]], tuple[Cost, ...]),
            every.get("other", {}).get(""),
            msgspec.convert(next((row for row in costs if row["other"]), None), Cost | None),
        )

    def _rows(self, query: str) -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in self._spark.sql(query, self._arguments).collect()]

    def _fairness(self) -> Fairness:
        """The query of `gold/fairness`, with the whole period as one hour."""
        hour = "SELECT timestamp_millis(:from_ms) AS hour, * FROM counted"
        self._spark.sql(hour, self._arguments).drop("at").createOrReplaceTempView("gold_hours")
        rows = self._rows(f"SELECT {COMPARED} FROM ({models()['gold/fairness'].query})")
        return msgspec.convert(rows[0], Fairness) if rows else Fairness()

    # --- Views ---

    def _prepare(self, period: Period, *, whole_hours: bool) -> None:
        hour_ms = period.hours.start
        span = {"from_ms": period.from_ms, "to_ms": period.to_ms, "hour_ms": hour_ms}
        self._arguments = {**self._fixed, **span, "step_ms": period.step_ms, "tick_ms": period.tick_ms}
        # Levels of gold/depth are carried on from the first minute of the day in which the period begins.
        for table in models():
            if table.startswith("gold/"):
                self._view(table, _dates(hour_ms, period.to_ms))
        self._view("silver/queue")
        if not whole_hours:
            self._view("silver/jobs", _dates(hour_ms, period.to_ms), _during(period, "finished_at", "finished_at"))
            self._compute("gold/dead_letters", models()["gold/dead_letters"].query)
        if period.tick_ms == SECOND_MS:
            self._compute_by_second(period)
        hourly = whole_hours and period.step_ms >= HOUR_MS
        table, time, begin_ms = ("hours", "hour", hour_ms) if hourly else ("minutes", "minute", period.from_ms)
        self._spark.sql(
            f"SELECT *, unix_millis({time}) AS at FROM gold_{table} "
            f"WHERE {time} >= timestamp_millis({begin_ms}) AND {time} < timestamp_millis({period.to_ms})"
        ).drop(time).createOrReplaceTempView("counted")

    def _compute_by_second(self, period: Period) -> None:
        """Gold tables with seconds instead of minutes, from the jobs that were in the queue during the period."""
        dates = _dates(period.from_ms, max(self._as_of_ms, period.to_ms) + DAY_MS)
        self._view("silver/jobs", dates, _during(period, "created_at", "finished_at"))
        self._view("silver/attempts", dates, _during(period, "claimed_at", "ended_at"))
        self._view("silver/queue")
        as_of_ms = min(self._as_of_ms, period.to_ms)
        self._spark.sql(
            f"SELECT timestamp_millis({as_of_ms}) AS as_of, timestamp_millis({period.from_ms}) AS since"
        ).createOrReplaceTempView("run")
        self._spark.sql(text("span_ms"))
        for table in ("gold/minutes", "gold/depth", "gold/workers"):
            query = models()[table].query
            for minute, second in (("'MINUTE'", "'SECOND'"), ("1 MINUTE", "1 SECOND"), ("60000", "1000")):
                query = query.replace(minute, second)
            self._compute(table, query)

    def _compute(self, table: str, query: str) -> None:
        rows = self._spark.sql(query)
        if table == "gold/minutes":  # which several questions ask
            self._kept.append(rows.cache())
        rows.createOrReplaceTempView(models()[table].view)

    def close(self) -> None:
        for frame in self._kept:
            frame.unpersist()

    def _view(self, table: str, dates: Collection[str] | None = None, where: str = "true") -> None:
        rows = self._snapshot.read(self._spark, table, dates=dates).where(where)
        rows.createOrReplaceTempView(models()[table].view)


def _dates(from_ms: int, to_ms: int) -> Collection[str]:
    first, last = (datetime.fromtimestamp(at_ms / 1000, UTC).toordinal() for at_ms in (from_ms, to_ms - 1))
    return {str(date.fromordinal(day)) for day in range(first, last + 1)}


def _during(period: Period, begin: str, end: str) -> str:
    """Not over before the period, nor begun after it; in whichever order, because clocks differ."""
    first, last = (f"timestamp_millis({at_ms})" for at_ms in (period.from_ms, period.to_ms))
    return f"({begin} >= {first} OR {end} >= {first}) AND ({begin} < {last} OR {end} < {last})"


def _histogram(ranks: Sequence[float] | None, count: int) -> dict[int, int]:
    """How many spans are at most as long as each edge, and longer than the edge before."""
    upto = [round(rank * count) for rank in ranks or ()]
    each = zip(EDGES_MS, upto, [0, *upto], strict=False)
    return {edge: more - less for edge, more, less in each if more > less}


def _moments(tallies: Mapping[str, Tally]) -> tuple[Moment, ...]:
    return tuple(Moment(at, tally) for at, tally in sorted((int(key), tally) for key, tally in tallies.items()))


def _ranked(tallies: Mapping[str | None, Tally]) -> tuple[Named, ...]:
    named = (Named(name, tally) for name, tally in tallies.items())
    return tuple(sorted(named, key=lambda one: (-one.tally.finished, -one.tally.enqueued, one.name or "")))
