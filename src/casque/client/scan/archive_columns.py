"""Archive objects as Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from casque.client.scan.json_columns import JsonColumns
from casque.client.scan.splits import ArchiveObject, ArchiveSplit
from casque.client.scan.tables import Table, arrow_schema, arrow_type
from casque.codec.head import UNREADABLE
from casque.codec.stored import to_ms
from casque.errors import CorruptQueueError
from casque.fields import ASKED, omitted_values

_TIME = arrow_type("timestamp")
_STORED = {
    "id": pa.string(),
    "entrypoint": pa.string(),
    "payload": pa.string(),
    "state": pa.string(),
    "attempts": pa.int32(),
    "created_at": _TIME,
    "due_at": _TIME,
    "finished_at": _TIME,
    "position": pa.int64(),
    "sequence": pa.int64(),
    "claimed_at": _TIME,
    "worker": pa.string(),
    "error": pa.string(),
    "result": pa.string(),
    "priority": pa.int32(),
    "max_attempts": pa.int32(),
    "token": pa.int64(),
    "key": pa.string(),
    "zone": pa.string(),
    "run_at": _TIME,
    "blob_bytes": pa.int64(),
    "tries": pa.list_(
        pa.struct(
            [
                ("ended_at", _TIME),
                ("how", pa.string()),
                ("claimed_at", _TIME),
                ("worker", pa.string()),
                ("token", pa.int64()),
                ("error", pa.string()),
            ]
        )
    ),
    "waiting": pa.bool_(),
    "crashes": pa.int32(),
}
"""The fields of a line, except the headers: Arrow cannot parse JSON maps."""

_STORED |= {
    field.archived: arrow_type(field.sql)
    for field in ASKED
    if field.sql is not None
    and field.archived is not None
    and field.name != "headers"
    and field.archived not in _STORED
}

_NEEDS = {"payload": ("payload", "blob_bytes"), "payload_bytes": ("payload", "blob_bytes")}
_OMITTED = {"token": 0, "crashes": 0, **omitted_values()}
"""Fields that are omitted when they have this value."""


def archive_batch(split: ArchiveSplit, one: ArchiveObject, body: bytes, columns: Sequence[str]) -> Any:
    """The jobs of an archive object that a split asks for, as a `pyarrow.RecordBatch`.

    Raises:
        CorruptQueueError: it is not an archive object.
    """
    lines = Lines(one, body, columns)
    arrays = [lines.column(name) for name in columns]
    batch = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(Table.ARCHIVE, columns))
    mask = lines.chosen(split)
    return batch if mask is None else batch.filter(mask)


class Lines:
    """The parsed lines of one object."""

    def __init__(self, one: ArchiveObject, body: bytes, columns: Sequence[str]) -> None:
        self._one = one
        fields = {"position", "finished_at"}
        for name in columns:
            fields.update(_NEEDS.get(name, (name,)))
        try:
            self._fields = JsonColumns(body, {name: kind for name, kind in _STORED.items() if name in fields})
        except ValueError as error:
            raise _no_archive(one.key, error) from error
        self.rows = self._fields.rows

    def column(self, name: str) -> Any:
        match name:
            case "shard":
                return pa.array(np.zeros(self.rows, np.int32))
            case "hour":
                return pa.repeat(_hour(self._one.hour), self.rows)
            case "headers":
                return self._headers()
            case "payload" | "payload_bytes" | "result":
                return self._bytes(name)
            case _ if name in _OMITTED:
                return pc.fill_null(self._fields[name], _OMITTED[name])
            case _:
                return self._fields[name]

    def chosen(self, split: ArchiveSplit) -> Any:
        """Mask of the rows that the split asks for; None for all of them."""
        masks = []
        if split.after >= self._one.first:
            masks.append(pc.greater(self._fields["position"], split.after))
        finished = self._fields["finished_at"]
        if split.since_ms is not None:
            masks.append(pc.greater_equal(finished, _moment(split.since_ms)))
        if split.until_ms is not None:
            masks.append(pc.less(finished, _moment(split.until_ms)))
        whole = None
        for mask in masks:
            whole = mask if whole is None else pc.and_(whole, mask)
        return whole

    def _bytes(self, name: str) -> Any:
        fields = self._fields
        try:
            if name == "result":
                return fields.bytes_of(name)
            elsewhere = fields["blob_bytes"].is_valid()
            return fields.payload(elsewhere) if name == "payload" else fields.payload_bytes(elsewhere)
        except ValueError as error:
            raise _no_archive(self._one.key, error) from error

    def _headers(self) -> Any:
        try:
            return self._fields.headers()
        except UNREADABLE as error:
            raise _no_archive(self._one.key, error) from error


def _hour(text: str) -> Any:
    return _moment(to_ms(datetime.fromisoformat(f"{text}:00:00").replace(tzinfo=UTC)))


def _moment(ms: int) -> Any:
    return pa.scalar(ms, pa.timestamp("ms", tz="UTC")).cast(_TIME)


def _no_archive(key: str, error: Exception) -> CorruptQueueError:
    return CorruptQueueError(
        key, f"this is no part of an archive ({error}). Restore it from a backup or an older version"
    )
