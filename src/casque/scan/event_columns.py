"""Commits as Arrow columns, with no Python object per row besides the event itself.

A column is built per kind of event that has it, and the kinds are then put back into the order of events: most columns
of most events are empty, and long runs of events have the same kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from casque.arrow_types import arrow_type
from casque.codec.log import Segment
from casque.fields import ASKED
from casque.scan.arrays import MS, column, each
from casque.scan.tables import COLUMNS, Table
from casque.state import Added, Event, Ringed, Watched
from casque.state.events import subject
from casque.types import JobSpec

_RENAMED = {"due_ms": "due_at", "added": "count"}
_OF_COMMIT = {"shard", "position", "index", "at", "epoch", "writer", "batch"}

_SPEC = {"job_id": "id", **{field.name: field.spec for field in ASKED if field.sql is not None}}


class Specs:
    """Job specs as columns."""

    def __init__(self, specs: Sequence[JobSpec]) -> None:
        self._specs = specs

    def column(self, name: str, wanted: Any) -> Any:
        """The values of a column; None if specs do not have it."""
        if name == "payload":
            return self._payloads
        if name == "payload_bytes":
            return self._payload_bytes(wanted)
        field = _SPEC.get(name)
        return None if field is None else column(each(field, self._specs), wanted)

    @cached_property
    def _payloads(self) -> Any:
        """Null for a payload stored elsewhere, which is different from an empty one."""
        if self._elsewhere:
            return pa.array([None if spec.blob else spec.payload for spec in self._specs], pa.binary())
        return pa.array(each("payload", self._specs), pa.binary())

    def _payload_bytes(self, wanted: Any) -> Any:
        """Sizes, including payloads stored elsewhere."""
        if self._elsewhere:
            sizes = [spec.blob_bytes if spec.blob else len(spec.payload) for spec in self._specs]
            return pa.array(sizes, wanted)
        return pc.binary_length(self._payloads).cast(wanted)

    @cached_property
    def _elsewhere(self) -> bool:
        return any(each("blob", self._specs))


class EventColumns:
    """Collects commits and returns them as one batch."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._segments: list[Segment] = []
        self.rows = 0
        """Number of events added."""

    def add(self, segment: Segment) -> None:
        if segment.events:
            self._segments.append(segment)
            self.rows += len(segment.events)

    def batch(self) -> Any:
        """Everything added so far, as a `pyarrow.RecordBatch`; resets to empty."""
        segments, rows = self._segments, self.rows
        self._segments, self.rows = [], 0
        kinds, order = _by_kind(segments)
        specs = Specs(each("spec", kinds.get(Added, ())))
        counts = np.array([len(segment.events) for segment in segments], np.int64)
        arrays = [
            _of_commits(name, segments, counts, rows) if name in _OF_COMMIT else _of_kinds(name, kinds, specs, order)
            for name in self.columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(self.columns))


def _by_kind(segments: Sequence[Segment]) -> tuple[dict[type[Event], list[Any]], Any]:
    """The events by kind, and the permutation back to their order; None if they are in order already."""
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


def _of_kinds(name: str, kinds: dict[type[Event], list[Any]], specs: Specs, order: Any) -> Any:
    wanted = arrow_type(COLUMNS[Table.EVENTS][name])
    if name == "kind":
        pieces = [pa.repeat(pa.scalar(_tag(kind)), len(events)) for kind, events in kinds.items()]
    else:
        pieces = [_piece(name, kind, events, specs, wanted) for kind, events in kinds.items()]
    if all(piece.null_count == len(piece) for piece in pieces):
        return pa.nulls(sum(map(len, pieces)), wanted)
    whole = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
    return whole if order is None else whole.take(order)


def _piece(name: str, kind: type[Event], events: list[Any], specs: Specs, wanted: Any) -> Any:
    """One column of all events of one kind."""
    if kind is Added and (found := specs.column(name, wanted)) is not None:
        return found
    if kind is Watched and name == "job_id":  # others are about zones
        return pa.array(map(subject, events), wanted)
    field = next((field for field in kind.__struct_fields__ if _RENAMED.get(field, field) == name), None)
    if field is None or (kind is Ringed and name == "token"):  # a ring's token is not that of a lease
        return pa.nulls(len(events), wanted)
    return column(each(field, events), wanted)


def _of_commits(name: str, segments: Sequence[Segment], counts: Any, rows: int) -> Any:
    """A column that is constant within a commit, or the index within it."""
    wanted = arrow_type(COLUMNS[Table.EVENTS][name])
    if name == "shard":
        return pa.array(np.zeros(rows, np.int32), wanted)
    if name == "index":
        return pa.array((np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts)).astype(np.int32), wanted)
    if name == "writer":
        names = pa.array([segment.writer for segment in segments], wanted)
        return names.take(pa.array(np.repeat(np.arange(len(segments)), counts)))
    values = np.repeat(np.array([getattr(segment, name) for segment in segments], np.int64), counts)
    return pa.array(values, MS).cast(wanted) if name == "at" else pa.array(values, wanted)


def _tag(kind: type[Event]) -> str:
    return str(kind.__struct_config__.tag)
