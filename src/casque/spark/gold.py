"""The gold tables: merges the sums of a run with the rows that the tables have. Runs on executors.

All figures are additive. So a run looks only at new data: tasks compute the sums to add (`combine`), this module adds
them to the partitions that they change, and percentiles, rates and levels follow from the totals. Counts are integers,
so the total does not depend on order or grouping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from casque.scan.arrow_types import INSTANT, arrow_schema
from casque.spark.combine import ADDED, COUNTERS, HOUR_MS, LEVELS, MINUTE_MS, WORKED, changes_minutes
from casque.spark.groups import Groups
from casque.spark.parquet import PARTITION
from casque.spark.sketch_arrays import quantiles, unpacked
from casque.spark.tables import TABLES

BY_MINUTE = frozenset({"gold/minutes", "gold/depth", "gold/workers"})
WHOSE = ("entrypoint", "zone")
DEPTHS = ("scheduled", "waiting", "running", "scheduled_ms", "waiting_ms", "running_ms")
_NOTHING = pa.scalar(None, pa.float64())


def columns(table: str) -> dict[str, str]:
    return {name: column.type for name, column in TABLES[table].columns.items()}


def summed(table: str, added: Any) -> Any:
    """Merge the sums of many tasks. Sums that cancel out vanish: a job that was in the queue and is finished by now was
    enqueued only once."""
    match table:
        case "gold/minutes":
            totals = _totals([(added.column("m").to_numpy(), added)])
            return _of(ADDED[table], {"m": totals["count"], **totals}).filter(pa.array(changes_minutes(totals)))
        case "gold/workers":
            totals = _sums([(added.column("m").to_numpy(), added)], ("worker",), WORKED)
            changed = np.any([totals[name] != 0 for name in WORKED], axis=0)
            return _of(ADDED[table], {"m": totals["count"], **totals}).filter(pa.array(changed))
        case _:
            return added


def merged(table: str, added: Any, old: Any) -> Any:
    """The new rows of a table: added sums plus old rows. Tables by minute are merged by hours, others by date."""
    match table:
        case "gold/minutes":
            return _minutes(added, old)
        case "gold/depth":
            return _depth(added, old)
        case "gold/workers":
            return _workers(added, old)
        case _:
            return _dead_letters(added, old)


# --- Minutes and hours ---


def _minutes(added: Any, old: Any) -> Any:
    totals = _totals([(added.column("m").to_numpy(), added), (_counts(old, "minute", MINUTE_MS), old)])
    something = (totals["enqueued"] != 0) | (totals["finished"] != 0) | (totals["attempts"] != 0)
    return _measured("gold/minutes", totals, "minute", MINUTE_MS, something)


def hours(minutes: Any) -> Any:
    """Rows of `gold/hours`, from all minutes of these hours."""
    totals = _totals([(_counts(minutes, "minute", HOUR_MS), minutes)])
    return _measured("gold/hours", totals, "hour", HOUR_MS)


def _totals(parts: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    groups = Groups(parts, WHOSE)
    totals: dict[str, Any] = {"count": groups.counts, **groups.names}
    for name in COUNTERS:
        values = [(groups.of[number], rows.column(name).to_numpy()) for number, (_, rows) in enumerate(parts)]
        totals[name] = groups.largest(values) if name.endswith("_max") else groups.sums(values)
    for sketch in ("wait_sketch", "run_sketch"):
        entries = []
        for number, (_, rows) in enumerate(parts):
            row, bucket, count = unpacked(rows.column(sketch))
            entries.append((groups.of[number][row], bucket, count))
        totals[sketch] = groups.sketches(entries)
    return totals


def _measured(table: str, totals: Mapping[str, Any], unit: str, unit_ms: int, chosen: Any = None) -> Any:
    """The counters, and the columns computed from them."""
    ended = totals["done"] + totals["dead"]
    measures = {
        **totals,
        unit: _instants(totals["count"] * unit_ms),
        "throughput": totals["finished"] / (unit_ms / 1000),
        "retry_rate": _share(totals["retried"], ended),
        "failure_rate": _share(totals["dead"], ended),
        "attempt_failure_rate": _share(totals["failed"], totals["attempts"]),
    }
    for span in ("wait", "run"):
        found = quantiles(totals[f"{span}_sketch"], 0.5, 0.9, 0.99)
        for q, column in zip((50, 90, 99), found, strict=True):
            measures[f"{span}_p{q}_ms"] = column
    return _rows(table, measures, chosen)


# --- Depth ---


class Levels:
    """The number of jobs in each minute, and for how long.

    Jobs come and go at points in time. The changes at the points of a minute, and their duration within it, are
    additive. Between two minutes with changes the level stays the same and is repeated in every minute.
    """

    def __init__(self, added: Any) -> None:
        groups = Groups([(added.column("m").to_numpy(), added)], WHOSE)
        sums = {name: groups.sums([(groups.of[0], added.column(name).to_numpy())]) for name in LEVELS}
        changed = np.flatnonzero(np.any([sums[name] != 0 for name in LEVELS], axis=0))
        order = changed[np.lexsort((groups.counts[changed], groups.names_of[changed]))]
        self._names = {name: column.take(pa.array(order)) for name, column in groups.names.items()}
        self._minute = groups.counts[order]
        starts = np.diff(groups.names_of[order], prepend=-1) != 0
        # The minute of the next change of the same series; after the last change the level is 0.
        self._next = np.where(np.append(starts[1:], True), self._minute + 1, np.append(self._minute[1:], 0))
        self._level: dict[str, Any] = {}
        self._lasted: dict[str, Any] = {}
        for name in ("s", "d", "r"):
            change = sums[name][order]
            level = _running_total(change, starts)
            self._level[name] = level
            self._lasted[name] = (level - change) * MINUTE_MS + sums[f"{name}_ms"][order]

    def between(self, first: int, end: int) -> Any:
        """A half-open range of minutes: the columns of `gold/depth`, with `m` in place of the minute."""
        inside = np.flatnonzero((self._minute >= first) & (self._minute < end))
        begin, stop = np.maximum(self._minute + 1, first), np.minimum(self._next, end)
        something = np.any([level != 0 for level in self._level.values()], axis=0)
        lasting = np.flatnonzero((stop > begin) & something)
        times = (stop - begin)[lasting]
        which = np.concatenate([inside, np.repeat(lasting, times)])
        offsets = np.arange(len(which) - len(inside)) - np.repeat(np.cumsum(times) - times, times)
        minute = np.concatenate([self._minute[inside], np.repeat(begin[lasting], times) + offsets])
        level = {name: values[which] for name, values in self._level.items()}
        lasted = {
            name: np.concatenate([values[inside], np.repeat(self._level[name][lasting] * MINUTE_MS, times)])
            for name, values in self._lasted.items()
        }
        found = {
            "m": minute,
            **{name: column.take(pa.array(which)) for name, column in self._names.items()},
            "scheduled": level["s"],
            "waiting": level["d"] - level["r"],
            "running": level["r"],
            "scheduled_ms": lasted["s"],
            "waiting_ms": lasted["d"] - lasted["r"],
            "running_ms": lasted["r"],
        }
        return _of({"m": "bigint", **dict.fromkeys(WHOSE, "string"), **dict.fromkeys(DEPTHS, "bigint")}, found)


def _running_total(change: Any, starts: Any) -> Any:
    """Cumulative sum, starting again for each series."""
    total = np.cumsum(change)
    first = np.flatnonzero(starts)
    sizes = np.diff(np.append(first, len(change)))
    return total - np.repeat((total - change)[first], sizes)


def _depth(added: Any, old: Any) -> Any:
    totals = _sums([(added.column("m").to_numpy(), added), (_counts(old, "minute", MINUTE_MS), old)], WHOSE, DEPTHS)
    something = np.any([totals[name] != 0 for name in DEPTHS], axis=0)
    return _rows("gold/depth", {"minute": _instants(totals["count"] * MINUTE_MS), **totals}, something)


# --- Workers, dead letters ---


def _workers(added: Any, old: Any) -> Any:
    parts = [(added.column("m").to_numpy(), added), (_counts(old, "minute", MINUTE_MS), old)]
    totals = _sums(parts, ("worker",), WORKED)
    measures = {
        **totals,
        "minute": _instants(totals["count"] * MINUTE_MS),
        "utilisation": totals["busy_ms"] / MINUTE_MS,
    }
    return _rows("gold/workers", measures, (totals["busy_ms"] != 0) | (totals["attempts"] != 0))


def _dead_letters(added: Any, old: Any) -> Any:
    """Row by row: there are few."""
    found: dict[tuple[Any, ...], tuple[int, tuple[Any, ...], int]] = {}
    new = added.select(["h", *WHOSE, "error_class", "jobs", "first_ms", "sample_job", "sample_error", "last_ms"])
    before = pa.table(
        {
            "h": _counts(old, "hour", HOUR_MS),
            **{name: old.column(name) for name in (*WHOSE, "error_class", "jobs")},
            "first_ms": _ms(old, "first_at"),
            **{name: old.column(name) for name in ("sample_job", "sample_error")},
            "last_ms": _ms(old, "last_at"),
        }
    )
    for row in (*new.to_pylist(), *before.to_pylist()):
        key = row["h"], row["entrypoint"], row["zone"], row["error_class"]
        first = row["first_ms"], row["sample_job"], row["sample_error"]
        jobs, earliest, last_ms = found.get(key, (0, first, row["last_ms"]))
        found[key] = jobs + row["jobs"], min(earliest, first, key=_when), max(last_ms, row["last_ms"])
    deaths = list(found.values())
    return _rows(
        "gold/dead_letters",
        {
            "hour": _instants(np.array([hour for hour, *_ in found], np.int64) * HOUR_MS),
            "entrypoint": [entrypoint for _, entrypoint, _, _ in found],
            "zone": [zone for _, _, zone, _ in found],
            "error_class": [kind for _, _, _, kind in found],
            "jobs": [jobs for jobs, _, _ in deaths],
            "sample_job": [first[1] for _, first, _ in deaths],
            "sample_error": [first[2] for _, first, _ in deaths],
            "first_at": _instants(np.array([first[0] for _, first, _ in deaths], np.int64)),
            "last_at": _instants(np.array([last_ms for _, _, last_ms in deaths], np.int64)),
        },
    )


def _when(death: tuple[Any, ...]) -> tuple[int, str]:
    return death[0], death[1]


# --- Fairness ---


def fairness(hours_: Any) -> Any:
    """Rows of `gold/fairness`, from all rows of `gold/hours` of these hours."""
    names = ("finished", "run_ms_sum", "wait_ms_sum", "wait_count")
    totals = _sums([(_counts(hours_, "hour", HOUR_MS), hours_)], ("zone",), names)
    zones = pa.table({"hour": totals["count"], "zone": totals["zone"], **{name: totals[name] for name in names}})
    zones = zones.filter(pa.array(totals["finished"] > 0))
    zones = _ordered(zones, hour="ascending", finished="descending", zone="ascending")
    hour, jobs, run, wait, waits = (zones.column(name).to_numpy() for name in ("hour", *names))
    starts = np.diff(hour, prepend=-1) != 0
    first, place = np.flatnonzero(starts), np.cumsum(starts) - 1

    def together(values: Any) -> Any:
        total = np.zeros(len(first), values.dtype)
        np.add.at(total, place, values)
        return total

    all_jobs, count = together(jobs), together(np.ones(len(jobs), np.int64))
    large = (_running_total(jobs, starts) - jobs) * 2 < all_jobs[place]
    mean = np.divide(wait, waits, out=np.zeros(len(wait)), where=waits != 0)
    large_wait = _share(together(wait * large), together(waits * large))
    small_wait = _share(together(wait * ~large), together(waits * ~large))
    measures = {
        "hour": _instants(hour[first] * HOUR_MS),
        "zones": count,
        "jobs": all_jobs,
        "jain_service": _jain(together(run.astype(np.float64)), count, together(run.astype(np.float64) ** 2)),
        "jain_wait": _jain(together(mean), together((waits != 0).astype(np.int64)), together(mean**2)),
        "largest_zone": zones.column("zone").take(pa.array(first)),
        "largest_share": jobs[first] / all_jobs,
        "large_zones": together(large.astype(np.int64)),
        "large_wait_ms": large_wait,
        "small_wait_ms": small_wait,
        "small_to_large": pc.divide(small_wait, pc.if_else(pc.equal(large_wait, 0.0), _NOTHING, large_wait)),
    }
    return _rows("gold/fairness", measures)


def _jain(total: Any, count: Any, squares: Any) -> Any:
    return _share(total**2, count * squares)


def but_for(old: Any, touched: Sequence[int]) -> Any:
    """Rows of the hours that are not touched, which stay as they are."""
    return old.filter(pa.array(~np.isin(_counts(old, "hour", HOUR_MS), touched)))


# --- Adding up, and columns ---


def _sums(parts: Sequence[tuple[Any, Any]], names: Sequence[str], figures: Sequence[str]) -> dict[str, Any]:
    groups = Groups(parts, names)
    totals: dict[str, Any] = {"count": groups.counts, **groups.names}
    for name in figures:
        totals[name] = groups.sums([(groups.of[n], rows.column(name).to_numpy()) for n, (_, rows) in enumerate(parts)])
    return totals


def _share(part: Any, whole: Any) -> Any:
    """Null if `whole` is 0."""
    return pa.array(part / np.where(whole == 0, 1, whole), mask=whole == 0)


def _ms(rows: Any, name: str) -> Any:
    return rows.column(name).cast(pa.int64()).to_numpy() // 1000


def _counts(rows: Any, name: str, unit_ms: int) -> Any:
    """Times as the number of minutes, or hours, since 1970."""
    return _ms(rows, name) // unit_ms


def _instants(times_ms: Any) -> Any:
    return pa.array(times_ms * 1000, pa.int64()).cast(INSTANT)


def _of(types: Mapping[str, str], found: Mapping[str, Any]) -> Any:
    schema = arrow_schema(dict(types))
    arrays = [
        column if isinstance(column := found[field.name], pa.Array | pa.ChunkedArray) else pa.array(column, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _rows(table: str, found: Mapping[str, Any], chosen: Any = None) -> Any:
    """A table's columns in order, without the partition, which comes from the file name."""
    rows = _of({name: kind for name, kind in columns(table).items() if name != PARTITION}, found)
    if chosen is not None:
        rows = rows.filter(pa.array(chosen))
    return _ordered(rows, **dict.fromkeys(TABLES[table].unique, "ascending"))


def _ordered(rows: Any, **keys: str) -> Any:
    """Nulls first, as in Spark. Sorted by explicit null columns, because Arrow's option for nulls changes."""
    by: dict[str, Any] = {}
    for name in keys:
        by |= {f"{name} known": rows.column(name).is_valid(), name: rows.column(name)}
    order = [(name, keys.get(name, "ascending")) for name in by]
    return rows.take(pc.sort_indices(pa.table(by), sort_keys=order))
