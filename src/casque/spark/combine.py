"""Sums that finished jobs, or a change of the queue, add to the gold tables; computed on the executor that has the
rows.

Spark then only merges the sums of many tasks, which are small however many jobs there were. Every figure is additive;
rows that no longer hold are subtracted (`sign` is -1). Rows are by minute, or by hour for dead letters; percentiles and
levels are computed from the sums when they are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from casque.scan.arrow_types import arrow_schema
from casque.spark.groups import Groups
from casque.spark.sketch_arrays import buckets

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
COUNTERS = (
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
WORKED = ("busy_ms", "attempts", "failed")
LEVELS = ("s", "d", "r", "s_ms", "d_ms", "r_ms")
"""For scheduled, due and running jobs: the change of their number at the points of a minute, and its duration within
it."""
ADDED: dict[str, dict[str, str]] = {
    "gold/minutes": {
        "m": "bigint",
        "entrypoint": "string",
        "zone": "string",
        **dict.fromkeys(COUNTERS, "bigint"),
        "wait_sketch": "map<int,bigint>",
        "run_sketch": "map<int,bigint>",
    },
    "gold/depth": {"m": "bigint", "entrypoint": "string", "zone": "string", **dict.fromkeys(LEVELS, "bigint")},
    "gold/workers": {"m": "bigint", "worker": "string", **dict.fromkeys(WORKED, "bigint")},
    "gold/dead_letters": {
        "h": "bigint",
        "entrypoint": "string",
        "zone": "string",
        "error_class": "string",
        "jobs": "bigint",
        "first_ms": "bigint",
        "sample_job": "string",
        "sample_error": "string",
        "last_ms": "bigint",
    },
}
"""Columns of the rows that are added to each table."""
UNITS = {"gold/minutes": MINUTE_MS, "gold/depth": MINUTE_MS, "gold/workers": MINUTE_MS, "gold/dead_letters": HOUR_MS}
_FAILED = ("failed", "expired", "crashed", "dead")


class Jobs:
    """Jobs as arrays: finished ones, or those in the queue at a moment."""

    def __init__(self, rows: Any, *, finished: bool, sign: int = 1) -> None:
        self.rows = rows
        self.sign = sign
        self.created = _ms(rows, "created_at")
        self.due = _ms(rows, "first_due_at")
        self.claimed = _ms(rows, "first_claimed_at")
        self.ended = _ms(rows, "finished_at" if finished else "as_of")
        self.revived = _bools(rows, "revived")
        self.state = rows.column("state").to_numpy()


class Attempts:
    """Attempts as arrays: finished ones, or those under way up to a moment."""

    def __init__(self, rows: Any, began: Any, ended: Any, *, failed: Any, sign: Any, finished: bool = True) -> None:
        self.rows = rows
        self.began = began
        """-1 if unknown."""
        self.ended = ended
        self.failed = failed
        self.sign = sign
        self.finished = finished

    @classmethod
    def of(cls, rows: Any) -> Attempts:
        failed = np.isin(rows.column("outcome").to_numpy(), _FAILED).astype(np.int64)
        ones = np.ones(rows.num_rows, np.int64)
        return cls(rows, _ms(rows, "claimed_at"), _ms(rows, "ended_at"), failed=failed, sign=ones)


def of_finished(jobs: Any, attempts: Any) -> dict[str, Any]:
    """The sums that rows of `silver/jobs` and `silver/attempts` add, by table."""
    some = Jobs(jobs, finished=True)
    tried = [Attempts.of(attempts)]
    return {
        "gold/minutes": _minutes([_finishes(some), _creations(some, ~some.revived), *map(_ends, tried)]),
        "gold/depth": _depth([*_coming_and_going(some), *_running(tried)]),
        "gold/workers": _workers(tried),
        "gold/dead_letters": _dead_letters(some),
    }


def of_queue(now: Any, before: Any) -> dict[str, Any]:
    """The sums of the jobs now in the queue, minus those of the previous run."""
    sides = [_Side(rows, sign) for rows, sign in ((now, 1), (before, -1))]
    ended = [tried for side in sides for tried in side.tried]
    under_way = [side.running for side in sides]
    return {
        "gold/minutes": _minutes([*(_creations(side.jobs, ~side.jobs.revived) for side in sides), *map(_ends, ended)]),
        "gold/depth": _depth(
            [*(p for side in sides for p in _coming_and_going(side.jobs)), *_running(ended + under_way)]
        ),
        "gold/workers": _workers(ended + under_way),
    }


def hours(table: str, rows: Any) -> list[int]:
    """The hours of these rows, counted from 1970."""
    found: list[int] = np.unique(rows.column(0).to_numpy() * UNITS[table] // HOUR_MS).tolist()
    return found


def dates(hours_: Iterable[int]) -> list[str]:
    """The partitions of these hours."""
    days = np.unique(np.fromiter(hours_, np.int64) * HOUR_MS // DAY_MS)
    return [str(day) for day in days.astype("datetime64[D]")]


def hours_between(first: str, last: str) -> tuple[int, int]:
    """The hours from one date to another, both included, as a half-open range."""
    return span("gold/dead_letters", first)[0], span("gold/dead_letters", last)[1]


def span(table: str, date: str) -> tuple[int, int]:
    """A date as a half-open range of minutes or hours since 1970, depending on the table."""
    per_day = DAY_MS // UNITS[table]
    first = int(np.datetime64(date, "D").astype(np.int64)) * per_day
    return first, first + per_day


class _Side:
    """The queue at one of two moments. Dead jobs are left out: their end has been counted."""

    def __init__(self, rows: Any, sign: int) -> None:
        alive = rows.filter(pa.array(rows.column("state").to_numpy() != "dead"))
        self.jobs = Jobs(alive, finished=False, sign=sign)
        as_of = _ms(alive, "as_of")
        at_work = (self.jobs.state == "running") & (_ms(alive, "claimed_at") < as_of) & (_ms(alive, "claimed_at") >= 0)
        chosen = alive.filter(pa.array(at_work))
        nothing = np.zeros(chosen.num_rows, np.int64)
        signs = np.full(chosen.num_rows, sign, np.int64)
        self.running = Attempts(
            chosen, _ms(chosen, "claimed_at"), _ms(chosen, "as_of"), failed=nothing, sign=signs, finished=False
        )
        self.tried = list(self._tried(alive, sign))

    def _tried(self, alive: Any, sign: int) -> Iterator[Attempts]:
        tried = alive.column("tried").combine_chunks()
        values = tried.flatten()
        if not len(values):
            return
        lengths = np.array([len(some or ()) for some in tried.to_pylist()], np.int64)
        jobs = alive.select(["entrypoint", "zone"]).take(pa.array(np.repeat(np.arange(alive.num_rows), lengths)))
        rows = jobs.append_column("worker", values.field("worker"))
        ones = np.ones(len(values), np.int64)
        began = values.field("claimed_ms").fill_null(-1).to_numpy(zero_copy_only=False)
        yield Attempts(rows, began, values.field("ended_ms").to_numpy(), failed=ones, sign=ones * sign)


# --- Minutes ---


def _finishes(jobs: Jobs) -> dict[str, Any]:
    waits = jobs.rows.column("wait_ms")
    known = waits.is_valid().to_numpy()
    wait = waits.fill_null(0).to_numpy()
    return {
        "rows": jobs.rows,
        "m": jobs.ended // MINUTE_MS,
        "finished": np.ones(len(wait), np.int64),
        **{state: (jobs.state == state).astype(np.int64) for state in ("done", "dead", "cancelled")},
        "retried": (jobs.rows.column("attempts").to_numpy() > 1).astype(np.int64),
        "wait_count": known.astype(np.int64),
        "wait_ms_sum": wait,
        "wait_ms_max": wait,
        "wait": wait,
        "wait_known": known,
        "sign": np.ones(len(wait), np.int64),
    }


def _creations(jobs: Jobs, counted: Any) -> dict[str, Any]:
    return {"rows": jobs.rows, "m": jobs.created // MINUTE_MS, "enqueued": counted.astype(np.int64) * jobs.sign}


def _ends(tried: Attempts) -> dict[str, Any]:
    known = tried.began >= 0
    run = np.where(known, np.maximum(tried.ended - tried.began, 0), 0)
    return {
        "rows": tried.rows,
        "m": tried.ended // MINUTE_MS,
        "attempts": tried.sign,
        "failed": tried.failed * tried.sign,
        "run_count": known * tried.sign,
        "run_ms_sum": run * tried.sign,
        "run_ms_max": run,
        "run": run,
        "run_known": known,
        "sign": tried.sign,
    }


def _minutes(parts: Sequence[Mapping[str, Any]]) -> Any:
    groups = Groups([(part["m"], part["rows"]) for part in parts], ("entrypoint", "zone"))
    columns: dict[str, Any] = {"m": groups.counts, **groups.names}
    for name in COUNTERS:
        values = [(groups.of[number], part[name]) for number, part in enumerate(parts) if name in part]
        columns[name] = groups.largest(values) if name.endswith("_max") else groups.sums(values)
    for span in ("wait", "run"):
        spans = []
        for number, part in enumerate(parts):
            if span in part:
                known = part[f"{span}_known"]
                spans.append((groups.of[number][known], buckets(part[span][known]), part["sign"][known]))
        columns[f"{span}_sketch"] = groups.sketches(spans)
    return _table("gold/minutes", columns).filter(pa.array(changes_minutes(columns)))


def changes_minutes(totals: Mapping[str, Any]) -> Any:
    """Whether anything is added to each minute. A sum of 0 is not enough to skip it: one attempt more and another one
    less may have taken different times."""
    something = np.any([totals[name] != 0 for name in COUNTERS if not name.endswith("_max")], axis=0)
    for sketch in ("wait_sketch", "run_sketch"):
        something |= np.diff(totals[sketch].offsets.to_numpy()) > 0
    return something


# --- Depth ---


def _coming_and_going(jobs: Jobs) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Points in time at which the number of scheduled (`s`) or due (`d`) jobs changes."""
    end = np.maximum(jobs.ended, jobs.created)
    due = np.minimum(jobs.due, end)
    # Clocks differ: a claimed job was due.
    due = np.where(jobs.claimed >= 0, np.minimum(due, jobs.claimed), due)
    put_off = ((due > jobs.created) & ~jobs.revived).astype(np.int64) * jobs.sign
    one = np.full(len(end), jobs.sign, np.int64)
    return [
        (jobs.created, jobs.rows, {"s": put_off}),
        (due, jobs.rows, {"s": -put_off, "d": one}),
        (end, jobs.rows, {"d": -one}),
    ]


def _running(tried: Sequence[Attempts]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    for some in tried:
        counted = ((some.began >= 0) & (some.began < some.ended)) * some.sign
        yield np.maximum(some.began, 0) + (some.began < 0) * some.ended, some.rows, {"r": counted}
        yield some.ended, some.rows, {"r": -counted}


def _depth(points: Sequence[tuple[Any, Any, dict[str, Any]]]) -> Any:
    groups = Groups([(at // MINUTE_MS, rows) for at, rows, _ in points], ("entrypoint", "zone"))
    columns: dict[str, Any] = {"m": groups.counts, **groups.names}
    for name in ("s", "d", "r"):
        values = [
            (groups.of[number], changes[name]) for number, (_, _, changes) in enumerate(points) if name in changes
        ]
        columns[name] = groups.sums(values)
        lasted = [
            (groups.of[number], changes[name] * (MINUTE_MS - at % MINUTE_MS))
            for number, (at, _, changes) in enumerate(points)
            if name in changes
        ]
        columns[f"{name}_ms"] = groups.sums(lasted)
    something = np.any([columns[name] != 0 for name in LEVELS], axis=0)
    return _table("gold/depth", columns).filter(pa.array(something))


# --- Workers and dead letters ---


def _workers(tried: Sequence[Attempts]) -> Any:
    parts: list[tuple[Any, Any]] = []
    figures: list[dict[str, Any]] = []
    for some in tried:
        began = np.where(some.began >= 0, np.minimum(some.began, some.ended), some.ended)
        first, last = began // MINUTE_MS, some.ended // MINUTE_MS
        times = last - first + 1
        which = np.repeat(np.arange(len(began)), times)
        minute = np.arange(len(which)) - np.repeat(np.cumsum(times) - times, times) + first[which]
        end = np.minimum(some.ended[which], (minute + 1) * MINUTE_MS)
        busy = (end - np.maximum(began[which], minute * MINUTE_MS)) * some.sign[which]
        is_last = (minute == last[which]) * some.sign[which] * some.finished
        parts.append((minute, some.rows.select(["worker"]).take(pa.array(which))))
        figures.append({"busy_ms": busy, "attempts": is_last, "failed": is_last * some.failed[which]})
    groups = Groups(parts, ("worker",))
    columns: dict[str, Any] = {"m": groups.counts, **groups.names}
    for name in WORKED:
        columns[name] = groups.sums([(groups.of[number], each[name]) for number, each in enumerate(figures)])
    something = np.any([columns[name] != 0 for name in WORKED], axis=0)
    return _table("gold/workers", columns).filter(pa.array(something))


def _dead_letters(jobs: Jobs) -> Any:
    """Row by row: there are few."""
    found: dict[tuple[Any, ...], list[tuple[int, str, str | None]]] = {}
    names = ["id", "entrypoint", "zone", "error_class", "error"]
    dead = np.flatnonzero(jobs.state == "dead")
    for row, at in zip(
        jobs.rows.select(names).take(pa.array(dead)).to_pylist(), jobs.ended[dead].tolist(), strict=True
    ):
        key = at // HOUR_MS, row["entrypoint"], row["zone"], row["error_class"]
        found.setdefault(key, []).append((at, row["id"], row["error"]))
    rows = []
    for key, deaths in found.items():
        first = min(deaths, key=lambda death: death[:2])
        rows.append((*key, len(deaths), *first, max(at for at, _, _ in deaths)))
    schema = arrow_schema(ADDED["gold/dead_letters"])
    return pa.table([pa.array([row[n] for row in rows], f.type) for n, f in enumerate(schema)], schema=schema)


def _table(name: str, columns: Mapping[str, Any]) -> Any:
    schema = arrow_schema(ADDED[name])
    arrays = [
        column
        if isinstance(column := columns[field.name], pa.Array | pa.ChunkedArray)
        else pa.array(column, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _ms(rows: Any, name: str) -> Any:
    """Milliseconds; -1 for null."""
    return rows.column(name).cast(pa.int64()).fill_null(-1_000).to_numpy() // 1000


def _bools(rows: Any, name: str) -> Any:
    return rows.column(name).fill_null(False).to_numpy()
