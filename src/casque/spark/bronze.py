"""The change feed as columns, from the segments of a log. Runs on executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from casque.codec.log import Segment
from casque.fields import gained
from casque.spark.arrow_types import INSTANT, arrow_type
from casque.spark.parquet import PARTITION
from casque.spark.tables import TABLES
from casque.state.events import Added, Event, Ringed, subject

_TYPES = {
    name: arrow_type(column.type) for name, column in TABLES["bronze/events"].columns.items() if name != PARTITION
}
_SAME = ("delayed", "token", "lease_ms", "worker", "error", "request_id", "verb", "count")
"""Event fields that have the same name as their column."""


def happened(segments: Sequence[Segment], *, payloads: bool) -> Any:
    """Rows of `bronze/events`; payloads and results only if `payloads` is set."""
    rows = [(segment, index, event) for segment in segments for index, event in enumerate(segment.events)]
    columns: dict[str, list[Any]] = {name: [] for name in _TYPES}
    operations = {segment.position: sum(subject(event) is not None for event in segment.events) for segment in segments}
    columns["operations"] = [operations[segment.position] for segment, _, _ in rows]
    for segment, index, event in rows:
        for name, value in _row(segment, index, event, payloads).items():
            columns[name].append(value)
    arrays = [_array(columns[name], kind) for name, kind in _TYPES.items()]
    return pa.table(arrays, schema=pa.schema(list(_TYPES.items())))


def _row(segment: Segment, index: int, event: Event, payloads: bool) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(name for name in _TYPES if name != "operations")
    row.update(
        shard=0,
        position=segment.position,
        index=index,
        at=segment.at,
        kind=str(event.__struct_config__.tag),
        job_id=subject(event),
        due_at=getattr(event, "due_ms", None),
        epoch=segment.epoch,
        writer=segment.writer,
        batch=segment.batch,
    )
    for name in _SAME:
        row[name] = getattr(event, name, None)
    if isinstance(event, Ringed):
        row["token"] = None  # the token of a ring is not a lease's
    if payloads:
        row["result"] = getattr(event, "result", None)
    if isinstance(event, Added):
        spec = event.spec
        row.update(
            entrypoint=spec.entrypoint,
            zone=spec.zone,
            priority=spec.priority,
            payload=spec.payload if payloads else None,
            payload_bytes=spec.blob_bytes if spec.blob is not None else len(spec.payload),
            key=spec.key,
            headers=None if spec.headers is None else list(spec.headers.items()),
            run_at=spec.run_at_ms,
            max_attempts=spec.max_attempts,
            sequence=event.sequence,
            **gained(spec),
        )
    return row


def _array(values: list[Any], kind: Any) -> Any:
    if kind == INSTANT:
        return pa.array(values, pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(INSTANT)
    return pa.array(values, kind)
