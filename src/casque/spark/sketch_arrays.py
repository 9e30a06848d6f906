"""Many sketches as Arrow columns: gives the same results as `sketch`, which tests compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from casque.spark.sketch import GAMMA, NOTHING, value

_SPAN = 1 << 12
"""More than the number of buckets: a span of a thousand years has number 1,550."""
_VALUES = np.array([value(place) for place in range(NOTHING, _SPAN + NOTHING)])

Entries: TypeAlias = tuple[Any, Any, Any]
"""Arrays of equal length: row, bucket and count."""


def buckets(spans_ms: Any) -> Any:
    logs = np.log(np.maximum(spans_ms, 1)) / np.log(GAMMA)
    return np.where(spans_ms <= 0, NOTHING, np.ceil(logs)).astype(np.int64)


def packed(size: int, entries: Sequence[Entries]) -> Any:
    """`size` sketches with the sums of all entries. Counts that cancel out leave no bucket."""
    keys = np.concatenate([np.zeros(0, np.int64), *(row * _SPAN + bucket - NOTHING for row, bucket, _ in entries)])
    counts = np.concatenate([np.zeros(0, np.int64), *(count for _, _, count in entries)])
    different, group = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(different), np.int64)
    np.add.at(sums, group.reshape(-1), counts)
    different, sums = different[sums != 0], sums[sums != 0]
    offsets = np.searchsorted(different, np.arange(size + 1) * _SPAN).astype(np.int32)
    return pa.MapArray.from_arrays(
        pa.array(offsets), pa.array((different % _SPAN + NOTHING).astype(np.int32)), pa.array(sums)
    )


def unpacked(sketches: Any) -> Entries:
    whole = sketches.combine_chunks() if isinstance(sketches, pa.ChunkedArray) else sketches
    if not len(whole):
        return (np.zeros(0, np.int64),) * 3
    offsets = whole.offsets.to_numpy()
    first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    rows = np.repeat(np.arange(len(whole)), np.diff(offsets))
    return (
        rows,
        whole.keys.slice(first, size).to_numpy().astype(np.int64),
        whole.items.slice(first, size).to_numpy(),
    )


def quantiles(sketches: Any, *qs: float) -> Iterator[Any]:
    """A column for each quantile: null for empty sketches."""
    rows, bucket, count = unpacked(sketches)
    size = len(sketches)
    totals = np.zeros(size, np.int64)
    np.add.at(totals, rows, count)
    before = np.cumsum(totals) - totals
    seen = np.cumsum(count) - before[rows]
    for q in qs:
        passed = np.flatnonzero(seen > (q * (totals - 1))[rows])
        first = passed[np.diff(rows[passed], prepend=-1) != 0]
        found = np.zeros(size)
        found[rows[first]] = _VALUES[bucket[first] - NOTHING]
        unknown = np.ones(size, np.bool_)
        unknown[rows[first]] = False
        yield pa.array(found, mask=unknown)
