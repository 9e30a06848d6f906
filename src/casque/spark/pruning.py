"""Finds the objects that need not be read, from the filters that Spark pushes down.

Spark evaluates every filter again on the rows, so pruning need not be exact: it leaves out only those in which no row
can match. Filters on other columns are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from casque.scan import Chosen
from casque.scan.tables import Table

HOUR = timedelta(hours=1)
TICK = timedelta(milliseconds=1)


_TIMES = {
    Table.EVENTS: {"at": TICK},
    Table.ARCHIVE: {"hour": HOUR, "finished_at": TICK},
    Table.ATTEMPTS: {"hour": HOUR},
    Table.JOBS: {},
}
"""Columns that hold a time, and the span that one value covers."""


def pruned(table: Table, filters: Iterable[Any]) -> Chosen:
    """The bounds that Spark's filters, all of which hold, leave."""
    bounds = Chosen()
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        if len(path) != 1:
            continue
        bounds = within(
            bounds, _bounds(table, path[0].removeprefix("_"), type(one).__name__, getattr(one, "value", None))
        )
    return bounds


def within(one: Chosen, other: Chosen) -> Chosen:
    """The intersection of both."""
    return Chosen(
        after=_tighter(max, one.after, other.after),
        upto=_tighter(min, one.upto, other.upto),
        since=_tighter(max, one.since, other.since),
        until=_tighter(min, one.until, other.until),
        shards=_tighter(frozenset.intersection, one.shards, other.shards),
    )


def _bounds(table: Table, column: str, kind: str, value: Any) -> Chosen:
    if kind == "In":
        values = [each for each in value if each is not None]
        if not values:
            return Chosen()
        if column == "shard":
            return Chosen(shards=frozenset(values))
        low = _bounds(table, column, "GreaterThanOrEqual", min(values))
        return within(low, _bounds(table, column, "LessThanOrEqual", max(values)))
    if column == "shard" and kind in ("EqualTo", "EqualNullSafe"):
        return Chosen(shards=frozenset({value}))
    if column == "position" and isinstance(value, int):
        return _by_position(kind, value)
    length = _TIMES[table].get(column)
    if length is not None and isinstance(value, datetime) and value.tzinfo is not None:
        try:
            return _by_time(kind, value, length)
        except OverflowError:  # the last hour of the year 9999
            return Chosen()
    return Chosen()


def _by_position(kind: str, value: int) -> Chosen:
    match kind:
        case "EqualTo" | "EqualNullSafe":
            return Chosen(after=value - 1, upto=value)
        case "GreaterThan":
            return Chosen(after=value)
        case "GreaterThanOrEqual":
            return Chosen(after=value - 1)
        case "LessThan":
            return Chosen(upto=value - 1)
        case "LessThanOrEqual":
            return Chosen(upto=value)
    return Chosen()


def _by_time(kind: str, value: datetime, length: timedelta) -> Chosen:
    match kind:
        case "EqualTo" | "EqualNullSafe":
            return Chosen(since=value, until=value + length)
        case "GreaterThan" | "GreaterThanOrEqual":
            return Chosen(since=value)
        case "LessThan":
            return Chosen(until=value + TICK)  # times are kept to the millisecond, and a filter may be finer
        case "LessThanOrEqual":
            return Chosen(until=value + length)
    return Chosen()


def _tighter(choose: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else choose(one, other)
