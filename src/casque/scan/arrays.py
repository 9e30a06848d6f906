"""Python values as Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from casque.arrow_types import INSTANT

MS = pa.timestamp("ms", tz="UTC")


def each(field: str, things: Sequence[Any]) -> list[Any]:
    """This field of every item."""
    return _getter(field)(things)


@lru_cache(maxsize=256)
def _getter(field: str) -> Callable[[Sequence[Any]], list[Any]]:
    """Compiled, because an `attrgetter` takes twice as long: it does not specialise the lookup, and reading all columns
    of an archive would be an eighth slower."""
    assert field.isidentifier()
    getter: Callable[[Sequence[Any]], list[Any]] = eval(f"lambda things: [thing.{field} for thing in things]")  # noqa: S307
    return getter


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
    if pa.types.is_list(wanted):  # null if there is none, as in stored lines
        return pa.array([value or None for value in values], wanted)
    return pa.array(values, wanted)


def attempt_lists(lists: Sequence[Sequence[Any]], wanted: Any) -> Any:
    """The failed attempts of each job, from records or from lines of the archive; null for none."""
    flat = [attempt for attempts in lists for attempt in attempts]
    if not flat:
        return pa.nulls(len(lists), wanted)
    children = [_of_attempts(field, flat) for field in wanted.value_type]
    ends = np.cumsum([0, *map(len, lists)])
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()),
        pa.StructArray.from_arrays(children, fields=list(wanted.value_type)),
        type=wanted,
        mask=pa.array([not attempts for attempts in lists]),
    )


def _of_attempts(field: Any, attempts: Sequence[Any]) -> Any:
    if field.name == "outcome":
        return pa.array([str(attempt.how) for attempt in attempts], field.type)
    if not pa.types.is_timestamp(field.type):
        return column(each(field.name, attempts), field.type)
    if hasattr(attempts[0], "ended_ms"):
        return column(each(field.name.replace("_at", "_ms"), attempts), field.type)
    return text_times(each(field.name, attempts))


def text_times(values: Sequence[str | None]) -> Any:
    """Times in ISO 8601, as JSON has them."""
    return pa.array(values, pa.string()).cast(INSTANT)


def times(values: Sequence[Any]) -> Any:
    """Times in ISO 8601, as JSON has them, or `datetime`s, as Parquet is read."""
    first = next((value for value in values if value is not None), None)
    return text_times(values) if isinstance(first, str) else pa.array(values, INSTANT)


def moment(ms: int) -> Any:
    """A scalar to compare a column of times with."""
    return pa.scalar(ms, MS).cast(INSTANT)
