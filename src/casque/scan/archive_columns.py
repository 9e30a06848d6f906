"""Archive objects as Arrow columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import reduce
from itertools import compress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from casque.errors import CorruptQueueError
from casque.scan.arrays import attempt_lists, column, each, moment, text_times
from casque.scan.splits import ArchiveObject, ArchiveSplit
from casque.scan.stored_fields import UNFIT, decoder_of
from casque.scan.tables import Table, arrow_schema
from casque.service import ArchivedJob
from casque.types import to_ms

_NEEDS = {
    "payload": ("payload", "blob_bytes"),
    "payload_bytes": ("payload", "blob_bytes"),
    "result_bytes": ("result",),
}


def archive_batch(split: ArchiveSplit, one: ArchiveObject, body: bytes, columns: Sequence[str]) -> Any:
    """The jobs of an archive object that a split asks for, as a `pyarrow.RecordBatch`.

    Raises:
        CorruptQueueError: it is not an archive object.
    """
    schema = arrow_schema(Table.ARCHIVE, columns)
    needed = [field for name in columns for field in _NEEDS.get(name, (name,))]
    try:
        jobs = chosen_jobs(split, one, body, needed)
        arrays = [_array(field.name, jobs, one.hour, field.type) for field in schema]
    except UNFIT as error:
        raise no_archive(one.key, error) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def chosen_jobs(split: ArchiveSplit, one: ArchiveObject, body: bytes, fields: Iterable[str]) -> Sequence[Any]:
    """The jobs that a split asks for, with these fields of `ArchivedJob`; times are text.

    Raises:
        ValueError, OverflowError, RecursionError: it is not an archive object.
    """
    jobs = finished_jobs(body, {"position", "finished_at", *fields})
    if not jobs:
        raise ValueError("it is empty")
    masks = []
    if split.after >= one.first:
        masks.append(pc.greater(pa.array(each("position", jobs), pa.int64()), split.after))
    if split.since_ms is not None or split.until_ms is not None:
        finished = text_times(each("finished_at", jobs))
        if split.since_ms is not None:
            masks.append(pc.greater_equal(finished, moment(split.since_ms)))
        if split.until_ms is not None:
            masks.append(pc.less(finished, moment(split.until_ms)))
    return list(compress(jobs, reduce(pc.and_, masks).to_pylist())) if masks else jobs


def finished_jobs(body: bytes, fields: Iterable[str] = ArchivedJob.__struct_fields__) -> Sequence[Any]:
    """All jobs of an archive object. Raises as above."""
    return decoder_of(ArchivedJob, frozenset(fields)).decode_lines(body)


def _array(name: str, jobs: Sequence[Any], hour: str, wanted: Any) -> Any:
    match name:
        case "shard" | "hour":
            return constant(name, hour, len(jobs))
        case "payload":
            # Null for a payload that was stored elsewhere, which is different from an empty one.
            return pa.array([job.payload if job.blob_bytes is None else None for job in jobs], wanted)
        case "payload_bytes":
            return pa.array([len(job.payload) if job.blob_bytes is None else job.blob_bytes for job in jobs], wanted)
        case "result_bytes":
            return pa.array([None if job.result is None else len(job.result) for job in jobs], wanted)
        case "tries":
            return attempt_lists(each(name, jobs), wanted)
        case _ if pa.types.is_timestamp(wanted):
            return text_times(each(name, jobs))
        case _:
            return column(each(name, jobs), wanted)


def constant(name: str, hour: str, rows: int) -> Any:
    """The columns that are the same for a whole object."""
    if name == "shard":
        return pa.repeat(pa.scalar(0, pa.int32()), rows)
    return pa.repeat(moment(to_ms(datetime.fromisoformat(f"{hour}:00:00").replace(tzinfo=UTC))), rows)


def no_archive(key: str, error: Exception) -> CorruptQueueError:
    return CorruptQueueError(
        key, f"this is no part of an archive ({error}). Restore it from a backup or an older version"
    )
