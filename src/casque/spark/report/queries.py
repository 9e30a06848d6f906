"""The queries of a report to a warehouse, answered by Spark, few and small.

Only numbers and names go to Spark and come back: times are milliseconds since the epoch, because a driver's view of a
timestamp depends on two time zones, that of the session and its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from casque.spark.models import text
from casque.spark.report.figures import (
    Cost,
    DeadLetters,
    Depth,
    FairHour,
    Fairness,
    Figures,
    Moment,
    Named,
    Spread,
    Standing,
    Tally,
    WorkerUse,
    fairness,
)
from casque.spark.report.period import HOUR_MS, MINUTE_MS, Period

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row


class Tables(Protocol):
    """Reads tables of a warehouse by name: the dates of a period, or all, and some columns, or all."""

    as_of_ms: int
    """The moment that the warehouse describes."""

    def __call__(self, table: str, period: Period | None = None, columns: Sequence[str] | None = None) -> DataFrame: ...


Progress = Callable[[str], None]
"""Called with the title of each step."""

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
DEAD_LETTERS_MAX = 100
COUNTS = ("enqueued", "finished", "done", "dead", "cancelled", "retried", "attempts", "failed")
SPANS = ("wait", "run")
DEPTHS = ("scheduled", "waiting", "running")
EDGES_MS = (0, *sorted({round(10 ** (power / 10)) for power in range(101)}))
"""Of the bars of a histogram: up to 115 days."""


def _silent(_what: str) -> None:
    pass


def extent(tables: Tables) -> Period | None:
    """The minutes that the warehouse covers; None if it is empty."""
    from pyspark.sql import functions as f

    minutes = tables("gold/minutes", columns=["minute"]).unionAll(tables("gold/depth", columns=["minute"]))
    [row] = minutes.agg(
        f.min(f.unix_millis("minute")).alias("first"), f.max(f.unix_millis("minute")).alias("last")
    ).collect()
    return None if row["first"] is None else Period(row["first"], row["last"] + MINUTE_MS)


def collect(tables: Tables, period: Period, known: Period, progress: Progress = _silent) -> Figures:
    """All figures of a period; `known` is the extent of the warehouse."""
    return _Questions(tables, period, known).ask(progress)


class _Dimension(NamedTuple):
    """One way to group the same jobs."""

    name: str
    key: Any


class _Questions:
    """The queries about one period."""

    def __init__(self, tables: Tables, period: Period, known: Period) -> None:
        self._tables = tables
        self._period = period
        self._histograms: dict[str, dict[int, int]] = {}
        self._reaches_the_end = period.to_ms >= known.to_ms
        # There is no data beyond the known period: covering all known minutes of an hour covers the hour.
        self._by_hours = all(
            edge % HOUR_MS == 0 or beyond
            for edge, beyond in (
                (period.from_ms, period.from_ms <= known.from_ms),
                (period.to_ms, self._reaches_the_end),
            )
        )

    def ask(self, progress: Progress) -> Figures:
        progress("counting jobs")
        tallies = self._tallies(progress)
        [(_, total)] = tallies["all"].items() or [("", Tally())]
        progress("depth over time")
        depth, standing = self._depth()
        if self._reaches_the_end:
            standing = self._standing_now()
        progress("workers")
        workers = self._workers()
        progress("dead letters")
        dead_letters = self._dead_letters()
        progress("fairness")
        fair_hours = self._fair_hours()
        progress("cost")
        costs = self._costs()
        return Figures(
            self._period,
            total,
            self._histograms.get("wait", {}),
            self._histograms.get("run", {}),
            _moments(tallies["step"]),
            _moments(tallies["hour"]),
            _ranked(tallies["entrypoint"]),
            _ranked(tallies["zone"]),
            depth,
            standing,
            workers,
            dead_letters,
            fairness(_ranked(tallies["zone"])),
            fair_hours,
            costs,
        )

    # --- Counts and spans ---

    def _tallies(self, progress: Progress) -> dict[str, dict[Any, Tally]]:
        """By dimension and key."""
        hourly = self._by_hours and self._period.step_ms >= HOUR_MS
        time = "hour" if hourly else "minute"
        rows = self._touched("gold/hours") if hourly else self._of("gold/minutes", "minute")
        progress("merging sketches")
        tallies: dict[str, dict[Any, Tally]] = {name: {} for name in ("all", "step", "hour", "entrypoint", "zone")}
        for row in self._sums(rows, time):
            tallies[row["dimension"]][row["key"]] = _tally(row)
            if row["dimension"] == "all":
                self._histograms = {span: _histogram(row, span) for span in SPANS}
        return tallies

    def _sums(self, rows: DataFrame, time: str) -> list[Row]:
        """Sums of counts, and percentiles from the merged sketches of all rows of a key."""
        from pyspark.sql import functions as f

        sums = [*COUNTS, *(f"{span}_{what}" for span in SPANS for what in ("count", "ms_sum"))]
        merged = (
            rows.select(
                self._divided(time), *sums, *(f"{span}_{what}" for span in SPANS for what in ("ms_max", "sketch"))
            )
            .groupBy("d.dimension", "d.key")
            .agg(
                *(f.sum(name).alias(name) for name in sums),
                *(f.max(f"{span}_ms_max").alias(f"{span}_ms_max") for span in SPANS),
                *(f.expr(f"kll_merge_agg_bigint({span}_sketch)").alias(f"{span}_sketch") for span in SPANS),
            )
        )
        quantiles = [_of_sketch(span, "quantile", QUANTILES.values(), "D") for span in SPANS]
        ranks = [_of_sketch(span, "rank", EDGES_MS, "L", " AND dimension = 'all'") for span in SPANS]
        return merged.selectExpr("*", *quantiles, *ranks).drop("wait_sketch", "run_sketch").collect()

    def _divided(self, time: str) -> Column:
        """Repeat each row for every dimension, with keys as text so that they fit into one column."""
        from pyspark.sql import functions as f

        at = f.unix_millis(time)
        dimensions = [
            _Dimension("all", f.lit("")),
            _Dimension("step", _floor(at, self._period.step_ms).cast("string")),
            _Dimension("hour", _floor(at, HOUR_MS).cast("string")),
            _Dimension("entrypoint", f.col("entrypoint")),
            _Dimension("zone", f.col("zone")),
        ]
        return f.explode(
            f.array(*(f.struct(f.lit(one.name).alias("dimension"), one.key.alias("key")) for one in dimensions))
        ).alias("d")

    # --- The rest ---

    def _depth(self) -> tuple[tuple[Depth, ...], Standing]:
        period = self._period
        # Levels are carried on from the first minute of the day in which the period begins.
        depth = self._tables("gold/depth", period)
        depth.createOrReplaceTempView("gold_depth")
        given = {"from_ms": period.from_ms, "to_ms": period.to_ms, "step_ms": period.step_ms}
        given["as_of_ms"] = self._tables.as_of_ms
        by_step = {row["step"]: row for row in depth.sparkSession.sql(text("report_depth"), given).collect()}
        standing = Standing()
        points = []
        for step in period.steps:
            row = by_step.get(step)
            if row is None:
                points.append(Depth(step, 0.0, 0.0, 0.0, 0))
                continue
            length_ms = period.within(step, period.step_ms)
            scheduled, waiting, running = (row[f"{state}_ms"] / length_ms for state in DEPTHS)
            points.append(Depth(step, scheduled, waiting, running, row["waiting_max"]))
            standing = Standing(*row["last"])
        return tuple(points), standing

    def _standing_now(self) -> Standing:
        """As of the warehouse's position, which may be within a minute, whose final depth is not known."""
        from pyspark.sql import functions as f

        queue = self._tables("silver/queue", columns=["state", "first_due_at", "as_of"]).where("state != 'dead'")
        running, due = f.col("state") == "running", f.col("first_due_at") <= f.col("as_of")
        [row] = queue.agg(
            f.count_if(~running & ~due).alias("scheduled"),
            f.count_if(~running & due).alias("waiting"),
            f.count_if(running).alias("running"),
        ).collect()
        return Standing(row["scheduled"], row["waiting"], row["running"])

    def _workers(self) -> tuple[WorkerUse, ...]:
        from pyspark.sql import functions as f

        step_ms, period = self._period.step_ms, self._period
        rows = (
            self._of("gold/workers", "minute")
            .groupBy("worker", _floor(f.unix_millis("minute"), step_ms).alias("step"))
            .agg(*(f.sum(name).alias(name) for name in ("busy_ms", "attempts", "failed")))
            .collect()
        )
        by_worker: dict[str | None, list[Row]] = {}
        for row in rows:
            by_worker.setdefault(row["worker"], []).append(row)
        uses = [
            WorkerUse(
                worker,
                busy_ms := sum(row["busy_ms"] for row in its),
                busy_ms / period.span_ms,
                sum(row["attempts"] for row in its),
                sum(row["failed"] for row in its),
                {
                    row["step"]: row["busy_ms"] / period.within(row["step"], step_ms)
                    for row in sorted(its, key=lambda row: row["step"])
                    if row["busy_ms"]
                },
            )
            for worker, its in by_worker.items()
        ]
        return tuple(sorted(uses, key=lambda use: (-use.busy_ms, use.worker or "")))

    def _dead_letters(self) -> tuple[DeadLetters, ...]:
        from pyspark.sql import functions as f

        if self._by_hours:
            letters = self._touched("gold/dead_letters")
        else:
            # Hours are too coarse; the jobs themselves have the minute.
            columns = ("state", "finished_at", "error_class", "entrypoint", "id", "error")
            dead = self._of("silver/jobs", "finished_at", columns).where("state = 'dead'")
            letters = dead.select(
                "error_class",
                "entrypoint",
                f.lit(1).alias("jobs"),
                f.col("id").alias("sample_job"),
                f.col("error").alias("sample_error"),
                f.col("finished_at").alias("first_at"),
                f.col("finished_at").alias("last_at"),
            )
        rows = (
            letters.groupBy("error_class", "entrypoint")
            .agg(
                f.sum("jobs").alias("jobs"),
                f.min(f.struct(f.unix_millis("first_at").alias("at"), "sample_job", "sample_error")).alias("first"),
                f.max(f.unix_millis("last_at")).alias("last"),
            )
            .orderBy(f.desc("jobs"), "error_class", "entrypoint")
            .limit(DEAD_LETTERS_MAX)
            .collect()
        )
        return tuple(
            DeadLetters(
                row["error_class"],
                row["entrypoint"],
                row["jobs"],
                row["first"]["sample_job"],
                row["first"]["sample_error"],
                row["first"]["at"],
                row["last"],
            )
            for row in rows
        )

    def _fair_hours(self) -> tuple[FairHour, ...]:
        from pyspark.sql import functions as f

        rows = self._touched("gold/fairness").withColumn("at", f.unix_millis("hour")).drop("hour", "date").collect()
        return tuple(
            FairHour(
                row["at"],
                Fairness(
                    row["zones"],
                    row["jain_service"],
                    row["jain_wait"],
                    row["large_zones"],
                    row["large_wait_ms"],
                    row["small_wait_ms"],
                    row["small_to_large"],
                ),
            )
            for row in sorted(rows, key=lambda row: row["at"])
        )

    def _costs(self) -> tuple[Cost, ...]:
        from pyspark.sql import functions as f

        rows = (
            self._touched("gold/requests")
            .groupBy("zone")
            .agg(*(f.sum(name).alias(name) for name in ("operations", "commits", "bytes", "dollars")))
            .collect()
        )
        costs = [
            Cost(row["zone"], row["operations"], float(row["commits"]), row["bytes"] or 0, row["dollars"])
            for row in rows
        ]
        return tuple(sorted(costs, key=lambda cost: (-cost.dollars, cost.zone or "")))

    def _of(self, table: str, time: str, columns: Sequence[str] | None = None) -> DataFrame:
        """The rows of the period."""
        return _between(self._tables(table, self._period, columns), time, self._period)

    def _touched(self, table: str) -> DataFrame:
        """The rows of every hour that overlaps the period."""
        whole = Period(self._period.hours.start, self._period.to_ms)
        return _between(self._tables(table, whole), "hour", whole)


def _between(rows: DataFrame, time: str, period: Period) -> DataFrame:
    from pyspark.sql import functions as f

    begin, end = (f.timestamp_millis(f.lit(at_ms)) for at_ms in (period.from_ms, period.to_ms))
    return rows.where((f.col(time) >= begin) & (f.col(time) < end))


def _floor(at_ms: Column, step_ms: int) -> Column:
    from pyspark.sql import functions as f

    return f.floor(at_ms / step_ms) * step_ms


def _of_sketch(span: str, what: str, values: Iterable[float], kind: str, only: str = "") -> str:
    """Quantiles, or ranks, of a sketch; null if it is empty, because Spark refuses to look into such."""
    listed = ", ".join(f"{value}{kind}" for value in values)
    asked = f"kll_sketch_get_{what}_bigint({span}_sketch, array({listed}))"
    return f"IF({span}_count > 0{only}, {asked}, NULL) AS {span}_{what}s"


def _tally(row: Row) -> Tally:
    counts = {name: row[name] for name in COUNTS}
    ended = row["done"] + row["dead"]
    return Tally(
        **counts,
        retry_rate=row["retried"] / ended if ended else None,
        failure_rate=row["dead"] / ended if ended else None,
        attempt_failure_rate=row["failed"] / row["attempts"] if row["attempts"] else None,
        wait=_spread(row, "wait"),
        run=_spread(row, "run"),
    )


def _spread(row: Row, span: str) -> Spread:
    count, total_ms = row[f"{span}_count"] or 0, row[f"{span}_ms_sum"] or 0
    if not count:
        return Spread()
    quantiles = dict(zip((f"{name}_ms" for name in QUANTILES), row[f"{span}_quantiles"], strict=True))
    return Spread(count, total_ms, total_ms / count, max_ms=row[f"{span}_ms_max"], **quantiles)


def _histogram(row: Row, span: str) -> dict[int, int]:
    """How many spans are at most as long as each edge, and longer than the edge before."""
    count = row[f"{span}_count"] or 0
    upto = [round(rank * count) for rank in row[f"{span}_ranks"] or ()]
    each = zip(EDGES_MS, upto, [0, *upto], strict=False)
    return {edge: more - less for edge, more, less in each if more > less}


def _moments(tallies: dict[str, Tally]) -> tuple[Moment, ...]:
    return tuple(Moment(at, tally) for at, tally in sorted((int(key), tally) for key, tally in tallies.items()))


def _ranked(tallies: dict[str | None, Tally]) -> tuple[Named, ...]:
    named: Iterable[Named] = (Named(name, tally) for name, tally in tallies.items())
    return tuple(sorted(named, key=lambda one: (-one.tally.finished, -one.tally.enqueued, one.name or "")))
