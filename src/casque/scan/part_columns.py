"""Snapshot parts as columns, straight from their JSON, for the jobs unchanged since the snapshot."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from casque.arrow_types import INSTANT
from casque.codec.snapshot import Part, part_lines
from casque.codec.stored import StoredJob, decode_job, record_of
from casque.errors import CorruptQueueError
from casque.scan.arrays import attempt_lists, column, each, moment, text_times
from casque.scan.splits import JobsSplit
from casque.scan.stored_fields import UNFIT, decoder_of
from casque.scan.tables import Table, arrow_schema
from casque.types import JobRecord

_NEEDS = {
    "state": ("status", "delayed", "due_ms", "created_at"),
    "payload": ("payload", "blob"),
    "payload_bytes": ("payload", "blob", "blob_bytes"),
    "due_at": ("due_ms", "created_at"),
    "run_at": ("run_at_ms",),
    "claimed_at": ("claimed_ms",),
    "beat_at": ("heartbeat_at",),
}


def part_columns(
    split: JobsSplit, part: Part, body: bytes, columns: Sequence[str], touched: Collection[str]
) -> tuple[Any, list[JobRecord]]:
    """The unchanged jobs of a part as a `pyarrow.RecordBatch`, and the changed ones as records.

    Raises:
        CorruptQueueError: these are not the bytes that the snapshot names.
    """
    assert split.base is not None
    schema = arrow_schema(Table.JOBS, columns)
    decode = decoder_of(
        StoredJob, frozenset({"id", *(f for name in columns for f in _NEEDS.get(name, (name,)))})
    ).decode
    lines = part_lines(split.base, part, body, queue_id=split.queue_id)
    try:
        jobs = [decode(line) for line in lines]
        changed = [record_of(decode_job(line), 0) for line, job in zip(lines, jobs, strict=True) if job.id in touched]
        if changed:
            jobs = [job for job in jobs if job.id not in touched]
        arrays = [_array(field.name, jobs, split, field.type) for field in schema]
    except UNFIT as error:
        raise CorruptQueueError(part.key, f"it cannot be read ({error}). Restore it from a backup") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema), changed


def _array(name: str, jobs: Sequence[Any], split: JobsSplit, wanted: Any) -> Any:
    match name:
        case "shard" | "position":
            return pa.repeat(pa.scalar(0 if name == "shard" else split.position, wanted), len(jobs))
        case "state":
            return _states(jobs, split.now_ms)
        case "payload":
            return pa.array([None if job.blob else job.payload for job in jobs], wanted)
        case "payload_bytes":
            return pa.array([job.blob_bytes if job.blob else len(job.payload) for job in jobs], wanted)
        case "due_at":
            return _due(jobs)
        case "tries":
            return attempt_lists(each(name, jobs), wanted)
        case "run_at" | "claimed_at":
            return column(each(_NEEDS[name][0], jobs), wanted)
        case "created_at":
            return text_times(each(name, jobs))
        case "beat_at":
            return text_times(each("heartbeat_at", jobs))
        case _:
            return column(each(name, jobs), wanted)


def _due(jobs: Sequence[Any]) -> Any:
    """Omitted where it equals the time of enqueueing."""
    due = column(each("due_ms", jobs), INSTANT)
    return due if not due.null_count else pc.coalesce(due, text_times(each("created_at", jobs)))


def _states(jobs: Sequence[Any], now_ms: int) -> Any:
    late = pc.greater(_due(jobs), moment(now_ms))
    delayed = pc.and_(pa.array(each("delayed", jobs), pa.bool_()), late)
    waiting = pc.if_else(delayed, "delayed", "ready")
    status = pa.array(each("status", jobs), pa.string())
    return pc.case_when(
        pc.make_struct(pc.equal(status, "in_progress"), pc.equal(status, "dead")), "running", "dead", waiting
    )
