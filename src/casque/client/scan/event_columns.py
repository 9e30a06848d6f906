"""Commits as columns of Arrow, without an object per row beyond the event itself.

A column is made for each kind of event that has it, and all kinds are then put back into the order in which they
happened: most columns of most events are empty, and whole runs of events are of one kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from casque.client.scan.tables import COLUMNS, Table, arrow_type
from casque.codec.log import Segment
from casque.state import Added, Event
from casque.types import JobSpec

_RENAMED = {"due_ms": "due_at", "added": "count"}
_OF_COMMIT = {"shard", "position", "index", "at", "epoch", "writer", "batch"}
_MS = pa.timestamp("ms", tz="UTC")


_SPEC = {
    "job_id": "id",
    "id": "id",
    "entrypoint": "entrypoint",
    "zone": "zone",
    "priority": "priority",
    "key": "key",
    "headers": "headers",
    "run_at": "run_at_ms",
    "max_attempts": "attempts_max",
}


def spec_column(name: str, specs: Sequence[JobSpec], wanted: Any) -> Any:
    """What a column says about jobs as they were asked for; None if it says nothing about that."""
    if name in ("payload", "payload_bytes"):
        return _payloads(name, specs, wanted)
    field = _SPEC.get(name)
    return None if field is None else column(list(map(attrgetter(field), specs)), wanted)


def _payloads(name: str, specs: Sequence[JobSpec], wanted: Any) -> Any:
    """A payload that lies elsewhere is null: an empty one is something else. Its size is told all the same."""
    payloads = pa.array(map(attrgetter("payload"), specs), pa.binary(), size=len(specs))
    if any(map(attrgetter("blob"), specs)):
        if name == "payload":
            return pa.array([None if spec.blob else spec.payload for spec in specs], wanted)
        return pa.array([spec.blob_bytes if spec.blob else len(spec.payload) for spec in specs], wanted)
    return payloads if name == "payload" else pc.binary_length(payloads).cast(wanted)


class EventColumns:
    """Takes commits in, and gives them back as one batch."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._segments: list[Segment] = []
        self.rows = 0
        """Events that are in it."""

    def add(self, segment: Segment) -> None:
        if segment.events:
            self._segments.append(segment)
            self.rows += len(segment.events)

    def batch(self) -> Any:
        """All that was added, as a `pyarrow.RecordBatch`; it is empty again afterwards."""
        segments, rows = self._segments, self.rows
        self._segments, self.rows = [], 0
        kinds, order = _by_kind(segments)
        counts = np.array([len(segment.events) for segment in segments], np.int64)
        arrays = [
            _of_commits(name, segments, counts, rows)
            if name in _OF_COMMIT - {"kind"}
            else _of_kinds(name, kinds, order)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(self._columns))


def _by_kind(segments: Sequence[Segment]) -> tuple[dict[type[Event], list[Any]], Any]:
    """The events by their kind, and where in that order each one is found; None if that is the order they are in."""
    kinds: dict[type[Event], list[Any]] = {}
    runs: list[tuple[type[Event], int, int]] = []
    for segment in segments:
        for kind, run in groupby(segment.events, type):
            members = kinds.setdefault(kind, [])
            start = len(members)
            members.extend(run)
            runs.append((kind, start, len(members) - start))
    if len(kinds) < 2:
        return kinds, None
    offsets: dict[type[Event], int] = {}
    offset = 0
    for kind, members in kinds.items():
        offsets[kind] = offset
        offset += len(members)
    lengths = np.array([length for _, _, length in runs], np.int64)
    begins = np.cumsum(lengths) - lengths
    places = np.array([offsets[kind] + start for kind, start, _ in runs], np.int64)
    return kinds, pa.array(np.repeat(places - begins, lengths) + np.arange(offset))


def _of_kinds(name: str, kinds: dict[type[Event], list[Any]], order: Any) -> Any:
    wanted = arrow_type(COLUMNS[Table.EVENTS][name])
    if name == "kind":
        pieces = [pa.repeat(pa.scalar(_tag(kind)), len(events)) for kind, events in kinds.items()]
    else:
        pieces = [_piece(name, kind, events, wanted) for kind, events in kinds.items()]
    whole = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
    return whole if order is None else whole.take(order)


def _piece(name: str, kind: type[Event], events: list[Any], wanted: Any) -> Any:
    """One column of all events of one kind."""
    if kind is Added:
        found = spec_column(name, list(map(attrgetter("spec"), events)), wanted)
        if found is not None:
            return found
    field = next((field for field in kind.__struct_fields__ if _RENAMED.get(field, field) == name), None)
    if field is None:
        return pa.nulls(len(events), wanted)
    return column(list(map(attrgetter(field), events)), wanted)


def column(values: list[Any], wanted: Any) -> Any:
    """Python values as Arrow; times come as milliseconds, maps as dictionaries."""
    if pa.types.is_timestamp(wanted):
        return pa.array(values, _MS).cast(wanted)
    if pa.types.is_map(wanted):
        if not any(values):
            return pa.nulls(len(values), wanted)
        return pa.array([None if value is None else list(value.items()) for value in values], wanted)
    return pa.array(values, wanted)


def _of_commits(name: str, segments: Sequence[Segment], counts: Any, rows: int) -> Any:
    """A column that is the same for all events of a commit, or their place in it."""
    wanted = arrow_type(COLUMNS[Table.EVENTS][name])
    if name == "shard":
        return pa.array(np.zeros(rows, np.int32), wanted)
    if name == "index":
        return pa.array((np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts)).astype(np.int32), wanted)
    if name == "writer":
        names = pa.array([segment.writer for segment in segments], wanted)
        return names.take(pa.array(np.repeat(np.arange(len(segments)), counts)))
    values = np.repeat(np.array([getattr(segment, name) for segment in segments], np.int64), counts)
    return pa.array(values, _MS).cast(wanted) if name == "at" else pa.array(values, wanted)


def _tag(kind: type[Event]) -> str:
    return str(kind.__struct_config__.tag)
