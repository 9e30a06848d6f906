"""Objects of the archive as columns of Arrow, parsed by Arrow itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from casque.client.scan.base64 import decoded
from casque.client.scan.event_columns import column
from casque.client.scan.splits import ArchiveObject, ArchiveSplit
from casque.client.scan.tables import Table, arrow_schema, arrow_type
from casque.codec.stored import to_ms
from casque.errors import CorruptQueueError

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
}
"""The fields of a line, but for the headers: Arrow has no JSON of a map."""

_NEEDS = {"payload": ("payload", "blob_bytes"), "payload_bytes": ("payload", "blob_bytes")}
_ZERO = {"priority", "token"}
"""What is left out where it is 0."""


class _Headers(msgspec.Struct):
    headers: dict[str, str] | None = None


_headers_decoder = msgspec.json.Decoder(_Headers)


def archive_batch(split: ArchiveSplit, one: ArchiveObject, body: bytes, columns: Sequence[str]) -> Any:
    """The jobs of an object that a split asks for, as a `pyarrow.RecordBatch`.

    Raises:
        CorruptQueueError: it is no object of an archive.
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
        self._body = body
        fields = {"position", "finished_at"}
        for name in columns:
            fields.update(_NEEDS.get(name, (name,)))
        schema = pa.schema([(name, kind) for name, kind in _STORED.items() if name in fields])
        try:
            parsed = pj.read_json(
                pa.BufferReader(body),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(body) + 1),
                parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
        except pa.ArrowInvalid as error:
            raise _no_archive(one.key, error) from error
        self._fields = {name: _whole(parsed[name]) for name in schema.names}
        self.rows = parsed.num_rows

    def column(self, name: str) -> Any:
        match name:
            case "shard":
                return pa.array(np.zeros(self.rows, np.int32))
            case "hour":
                return pa.repeat(_hour(self._one.hour), self.rows)
            case "headers":
                return self._headers()
            case "payload":
                payload = decoded(self._fields["payload"])
                blobs = self._fields["blob_bytes"]
                # A payload that lay elsewhere is not an empty one.
                nothing = pa.scalar(None, pa.binary())
                return payload if blobs.null_count == self.rows else pc.if_else(blobs.is_null(), payload, nothing)
            case "payload_bytes":
                sizes = _decoded_bytes(self._fields["payload"])
                return pc.coalesce(self._fields["blob_bytes"], sizes)
            case "result":
                return decoded(self._fields["result"])
            case _ if name in _ZERO:
                return pc.fill_null(self._fields[name], 0)
            case _:
                return self._fields[name]

    def chosen(self, split: ArchiveSplit) -> Any:
        """Which rows the split asks for; None if it is all of them."""
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

    def _headers(self) -> Any:
        wanted = arrow_type("map<string,string>")
        if b'"headers":' not in self._body:
            return pa.nulls(self.rows, wanted)
        try:
            lines = _headers_decoder.decode_lines(self._body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _no_archive(self._one.key, error) from error
        return column([line.headers for line in lines], wanted)


def _whole(chunked: Any) -> Any:
    """One block was parsed, so there is one chunk, or none at all."""
    return chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()


def _decoded_bytes(text: Any) -> Any:
    """How long base64 is once it is decoded."""
    whole = pc.multiply(pc.divide(pc.binary_length(text), 4), 3)
    padding = pc.count_substring(text, "=")
    return pc.subtract(whole, padding).cast(pa.int64())


def _hour(text: str) -> Any:
    from datetime import UTC, datetime

    return _moment(to_ms(datetime.fromisoformat(f"{text}:00:00").replace(tzinfo=UTC)))


def _moment(ms: int) -> Any:
    return pa.scalar(ms, pa.timestamp("ms", tz="UTC")).cast(_TIME)


def _no_archive(key: str, error: Exception) -> CorruptQueueError:
    return CorruptQueueError(
        key, f"this is no part of an archive ({error}). Restore it from a backup or an older version"
    )
