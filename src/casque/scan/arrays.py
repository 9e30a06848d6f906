"""Python values as Arrow arrays."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa

from casque.scan.tables import arrow_type

TIME = arrow_type("timestamp")
MS = pa.timestamp("ms", tz="UTC")


def each(field: str, things: Sequence[Any]) -> list[Any]:
    """This field of every item."""
    return list(map(attrgetter(field), things))


def column(values: list[Any], wanted: Any) -> Any:
    """Python values as Arrow; times come as milliseconds, maps as dictionaries."""
    if values and values[0] is None and values.count(None) == len(values):
        return pa.nulls(len(values), wanted)
    if pa.types.is_timestamp(wanted):
        return pa.array(values, MS).cast(wanted)
    if pa.types.is_map(wanted):
        if not any(values):
            return pa.nulls(len(values), wanted)
        return pa.array([None if value is None else list(value.items()) for value in values], wanted)
    return pa.array(values, wanted)


def text_times(values: Sequence[str | None]) -> Any:
    """Times in ISO 8601, as JSON has them."""
    return pa.array(values, pa.string()).cast(TIME)


def moment(ms: int) -> Any:
    """A scalar to compare a column of times with."""
    return pa.scalar(ms, MS).cast(TIME)
