"""Snapshot parts as columns, straight from their JSON, for the jobs unchanged since the snapshot."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from casque.client.scan.even_lines import Lines
from casque.client.scan.json_columns import JsonColumns
from casque.client.scan.splits import JobsSplit
from casque.client.scan.tables import Table, arrow_schema, arrow_type
from casque.codec.log import SnapshotRef
from casque.codec.snapshot import Part, part_lines, part_text
from casque.codec.stored import decode_job, record_of
from casque.errors import CorruptQueueError
from casque.fields import ASKED, omitted_values
from casque.types import JobRecord

_TIME = arrow_type("timestamp")
_MS = pa.timestamp("ms", tz="UTC")
_STORED = {
    "id": pa.string(),
    "entrypoint": pa.string(),
    "payload": pa.string(),
    "status": pa.string(),
    "priority": pa.int32(),
    "created_at": _TIME,
    "heartbeat_at": _TIME,
    "sequence": pa.int64(),
    "due_ms": pa.int64(),
    "delayed": pa.bool_(),
    "token": pa.int64(),
    "attempts": pa.int32(),
    "worker": pa.string(),
    "lease_ms": pa.int64(),
    "claimed_ms": pa.int64(),
    "error": pa.string(),
    "run_at_ms": pa.int64(),
    "max_attempts": pa.int32(),
    "key": pa.string(),
    "zone": pa.string(),
    "blob": pa.string(),
    "blob_bytes": pa.int64(),
}
_STORED |= {
    field.stored: arrow_type(field.sql)
    for field in ASKED
    if field.sql is not None and field.name != "headers" and field.stored not in _STORED
}
_NEEDS = {
    "state": ("status", "delayed", "due_ms", "created_at"),
    "payload": ("payload", "blob"),
    "payload_bytes": ("payload", "blob", "blob_bytes"),
    "due_at": ("due_ms", "created_at"),
    "run_at": ("run_at_ms",),
    "claimed_at": ("claimed_ms",),
    "beat_at": ("heartbeat_at",),
}
_OMITTED = {"token": 0, "attempts": 0, "lease_ms": 0, **omitted_values()}
"""Fields that are omitted when they have this value."""


def part_columns(
    split: JobsSplit, part: Part, body: bytes, columns: Sequence[str], touched: Collection[str]
) -> tuple[Any, list[JobRecord]]:
    """The unchanged jobs of a part as a `pyarrow.RecordBatch`, and the changed ones as records.

    Raises:
        CorruptQueueError: these are not the bytes that the snapshot names.
    """
    assert split.base is not None
    asked = {"id", *(field for name in columns for field in _NEEDS.get(name, (name,)))}
    fields = {name: kind for name, kind in _STORED.items() if name in asked}
    try:
        lines, found = _found(split.base, part, body, split.queue_id, fields)
        arrays = [_array(name, found, split) for name in columns]
    except (ValueError, msgspec.DecodeError) as error:
        raise CorruptQueueError(part.key, f"it cannot be read ({error}). Restore it from a backup") from error
    batch = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(Table.JOBS, columns))
    if not touched:
        return batch, []
    changed = pc.is_in(found["id"], value_set=pa.array(touched, pa.string()))
    records = [record_of(decode_job(lines[at]), 0) for at in pc.indices_nonzero(changed).to_pylist()]
    return batch.filter(pc.invert(changed)), records


def _found(
    base: SnapshotRef, part: Part, body: bytes, queue_id: str, fields: Mapping[str, Any]
) -> tuple[Lines | list[msgspec.Raw], JsonColumns]:
    """The part's lines and their columns."""
    text = part_text(base, part, body, queue_id=queue_id)
    if text is not None:
        with suppress(ValueError):  # the parser reports what is wrong, if anything is
            even = Lines(text, between=b",\n")
            return even, JsonColumns(even, fields)
    lines = part_lines(base, part, body, queue_id=queue_id)
    return lines, JsonColumns(b"\n".join(lines), fields)


def _array(name: str, found: JsonColumns, split: JobsSplit) -> Any:
    match name:
        case "shard":
            return pa.repeat(pa.scalar(0, pa.int32()), found.rows)
        case "position":
            return pa.repeat(pa.scalar(split.position, pa.int64()), found.rows)
        case "state":
            return _state(found, split.now_ms)
        case "payload":
            return found.payload(found["blob"].is_valid())
        case "payload_bytes":
            return found.payload_bytes(found["blob"].is_valid())
        case "headers":
            return found.headers()
        case "due_at":
            return _due(found)
        case "run_at" | "claimed_at":
            return found[name.replace("_at", "_at_ms" if name == "run_at" else "_ms")].cast(_MS).cast(_TIME)
        case "beat_at":
            return found["heartbeat_at"]
        case _ if name in _OMITTED:
            return pc.fill_null(found[name], _OMITTED[name])
        case _:
            return found[name]


def _due(found: JsonColumns) -> Any:
    """Omitted where it equals the time of enqueueing."""
    return pc.coalesce(found["due_ms"].cast(_MS).cast(_TIME), found["created_at"])


def _state(found: JsonColumns, now_ms: int) -> Any:
    late = pc.greater(_due(found), pa.scalar(now_ms, _MS).cast(_TIME))
    delayed = pc.and_(pc.fill_null(found["delayed"], False), late)
    waiting = pc.if_else(delayed, "delayed", "ready")
    status = found["status"]
    return pc.case_when(
        pc.make_struct(pc.equal(status, "in_progress"), pc.equal(status, "dead")), "running", "dead", waiting
    )
