"""Archive objects as Arrow columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import reduce
from itertools import compress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from casque.codec import parquet
from casque.codec.archive import Form, form_of, no_archive, require_for
from casque.fields import omitted_values
from casque.scan.arrays import attempt_lists, column, each, moment, text_times, times
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
_OMITTED = omitted_values() | {"waiting": False}


def archive_batch(split: ArchiveSplit, one: ArchiveObject, body: bytes, columns: Sequence[str]) -> Any:
    """The jobs of an archive object that a split asks for, as a `pyarrow.RecordBatch`.

    Raises:
        CorruptQueueError: it is not an archive object.
    """
    schema = arrow_schema(Table.ARCHIVE, columns)
    if form_of(one.key) is Form.PARQUET:
        return _parquet_batch(split, one, body, schema)
    needed = [field for name in columns for field in _NEEDS.get(name, (name,))]
    try:
        jobs = chosen_jobs(split, one, body, needed)
        arrays = [_array(field.name, jobs, one.hour, field.type) for field in schema]
    except UNFIT as error:
        raise no_archive(one.key, error) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def unfit(one: ArchiveObject) -> tuple[type[Exception], ...]:
    """Errors of decoding an object that is none of the archive."""
    return (*UNFIT, *parquet.unfit()) if form_of(one.key) is Form.PARQUET else UNFIT


def _parquet_batch(split: ArchiveSplit, one: ArchiveObject, body: bytes, schema: Any) -> Any:
    """Columns are there already; only those that are asked for are unpacked."""
    require_for(one.key)
    stored = [name for name in schema.names if name not in ("shard", "hour")]
    try:
        found = parquet.read_columns(body, dict.fromkeys([*stored, "position", "finished_at"]))
        mask = _mask(split, one, found["position"], found["finished_at"])
        if mask is not None:
            found = {name: array.filter(mask) for name, array in found.items()}
        rows = len(found["position"])
        arrays = [
            _filled(found[name], name) if name in found else constant(name, one.hour, rows) for name in schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    except unfit(one) as error:
        raise no_archive(one.key, error) from error


def _filled(array: Any, name: str) -> Any:
    """A file of an older release lacks what jobs gained since, and lines leave it out."""
    default = _OMITTED.get(name)
    return array if default is None or not array.null_count else pc.fill_null(array, default)


def chosen_jobs(split: ArchiveSplit, one: ArchiveObject, body: bytes, fields: Iterable[str]) -> Sequence[Any]:
    """The jobs that a split asks for, with these fields of `ArchivedJob`; times are text.

    Raises:
        ValueError, OverflowError, RecursionError: it is not an archive object.
    """
    jobs = _jobs(one, body, frozenset(("position", "finished_at", *fields)))
    if not jobs and not body:  # an erasure leaves an empty line
        raise ValueError("it is empty")
    if not _is_partial(split, one):
        return jobs
    positions = pa.array(each("position", jobs), pa.int64())
    mask = _mask(split, one, positions, times(each("finished_at", jobs)))
    return list(compress(jobs, mask.to_pylist()))


def _jobs(one: ArchiveObject, body: bytes, fields: frozenset[str]) -> Sequence[Any]:
    if form_of(one.key) is Form.LINES:
        return decoder_of(ArchivedJob, fields).decode_lines(body)
    require_for(one.key)
    return parquet.rows_of(body, fields)


def _is_partial(split: ArchiveSplit, one: ArchiveObject) -> bool:
    """Whether a split may ask for some jobs of an object only."""
    return split.after >= one.first or split.since_ms is not None or split.until_ms is not None


def _mask(split: ArchiveSplit, one: ArchiveObject, positions: Any, finished: Any) -> Any:
    """Which rows a split asks for; None for all."""
    masks = []
    if split.after >= one.first:
        masks.append(pc.greater(positions, split.after))
    if split.since_ms is not None:
        masks.append(pc.greater_equal(finished, moment(split.since_ms)))
    if split.until_ms is not None:
        masks.append(pc.less(finished, moment(split.until_ms)))
    return reduce(pc.and_, masks) if masks else None


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
