"""Mergeable distributions: counts of spans by bucket, each bucket about 2 % wide.

A sketch is a map from bucket to count. Sketches merge by addition, in any order, with the same result; a percentile of
a sketch is within 1 % of the true one, for any distribution. Bucket 0 holds one millisecond, bucket i values above
`GAMMA` to the (i - 1) and at most `GAMMA` to the i, and bucket -1 spans of no time at all.

There are three versions: plain Python, expressions of Spark SQL for any Spark 4, and Arrow columns (`sketch_arrays`).
Tests compare them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

ERROR = 0.01
GAMMA = (1 + ERROR) / (1 - ERROR)
NOTHING = -1
"""The bucket of spans of 0 milliseconds, and of negative ones, which occur because clocks differ."""
_LOG_GAMMA = math.log(GAMMA)


def bucket(span_ms: int) -> int:
    return NOTHING if span_ms <= 0 else math.ceil(math.log(span_ms) / _LOG_GAMMA)


def value(bucket_: int) -> float:
    """The representative value of a bucket in milliseconds: at most 1 % away from anything in it."""
    return 0.0 if bucket_ == NOTHING else 2 * GAMMA**bucket_ / (GAMMA + 1)


def sketch(spans_ms: Iterable[int]) -> dict[int, int]:
    """
    >>> sketch([0, 1, 1, 1000])
    {-1: 1, 0: 2, 346: 1}
    """
    counts: dict[int, int] = {}
    for span_ms in spans_ms:
        place = bucket(span_ms)
        counts[place] = counts.get(place, 0) + 1
    return dict(sorted(counts.items()))


def merge(sketches: Iterable[Mapping[int, int] | None]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for one in sketches:
        for place, count in (one or {}).items():
            counts[place] = counts.get(place, 0) + count
    return dict(sorted(counts.items()))


def quantile(sketch_: Mapping[int, int] | None, q: float) -> float | None:
    """The value at rank `floor(q * (n - 1))` of n, counted from 0; None for an empty sketch.

    >>> round(quantile(sketch(range(1, 1001)), 0.5) or 0)
    498
    """
    if not sketch_:
        return None
    rank = q * (sum(sketch_.values()) - 1)
    seen = 0
    for place in sorted(sketch_):
        seen += sketch_[place]
        if seen > rank:
            return value(place)
    raise AssertionError("the counts add up to more than any rank")


# --- The same for Spark. `sql_merge` and `sql_merged` are aggregates, the others plain functions. ---


def sql_bucket(span_ms: str) -> str:
    # Null has no bucket; it is not a span of 0.
    return (
        f"CASE WHEN {span_ms} IS NULL THEN NULL WHEN {span_ms} <= 0 THEN {NOTHING} "
        f"ELSE CAST(ceil(ln({span_ms}) / {_LOG_GAMMA!r}D) AS INT) END"
    )


def sql_merge(bucket_: str, count: str) -> str:
    """A sketch from rows with one count per bucket; buckets are sorted, so that equal sketches look equal."""
    rows = f"collect_list(struct({bucket_} AS b, {count} AS c)) FILTER (WHERE {bucket_} IS NOT NULL AND {count} != 0)"
    return f"map_from_entries(array_sort({rows}))"


def sql_quantile(sketch_: str, q: float) -> str:
    rank = f"{q!r}D * (aggregate(map_values({sketch_}), 0L, (n, c) -> n + c) - 1)"
    # Walks the buckets in order until the rank is passed; from there on carries the found place along.
    return (
        f"aggregate(array_sort(map_entries({sketch_})), "
        f"struct(0L AS seen, CAST(NULL AS INT) AS place, {rank} AS rank), "
        "(a, e) -> struct(a.seen + e.value AS seen, CASE WHEN a.place IS NULL AND a.seen + e.value > a.rank "
        "THEN e.key ELSE a.place END AS place, a.rank AS rank), "
        f"a -> CASE WHEN a.place = {NOTHING} THEN 0D ELSE 2 * power({GAMMA!r}D, a.place) / {GAMMA + 1!r}D END)"
    )


def sql_merged(sketch_: str) -> str:
    """An aggregate: merges the sketches of a group. For up to a few thousand rows in a group; explode more."""
    start = "CAST(map() AS MAP<INT, BIGINT>)"
    add = "(k, x, y) -> coalesce(x, 0L) + coalesce(y, 0L)"
    merged = f"aggregate(collect_list({sketch_}), {start}, (a, s) -> map_zip_with(a, s, {add}))"
    # Drop buckets whose counts cancel out.
    return f"map_filter({merged}, (k, c) -> c != 0)"


def percentile(column: str, q: float) -> Column:
    """A percentile of a column of sketches, for your own queries: `percentile("wait_sketch", 0.95)`."""
    from pyspark.sql import functions as f

    return f.expr(sql_quantile(column, q))
