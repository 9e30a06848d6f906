"""Commits as Arrow columns, with no Python object per row besides the event itself.

A column is built per kind of event that has it, and the kinds are then put back into the order of events: most columns
of most events are empty, and long runs of events have the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from casque.client.scan.tables import COLUMNS, Table, arrow_type
from casque.codec.log import Segment
from casque.fields import ASKED, SPEC
from casque.state import Added, Event, Ringed
from casque.types import JobSpec

_RENAMED = {"due_ms": "due_at", "added": "count"}
_OF_COMMIT = {"shard", "position", "index", "at", "epoch", "writer", "batch"}
_MS = pa.timestamp("ms", tz="UTC")

_SPEC = {"job_id": "id", **{field.name: field.spec for field in ASKED if field.sql is not None}}
_EACH: dict[str, Callable[[Sequence[Any]], list[Any]]] = {
    name: eval(f"lambda things: [thing.{name} for thing in things]")  # noqa: S307  the names stand in this program
    for name in (
        *(field.spec or "" for field in SPEC), "spec", "job_id", "sequence", "due_ms", "delayed", "token", "lease_ms",
        "worker", "error", "result",
    )
}  # fmt: skip
"""Getters by field. Compiled, each takes half the time of an `attrgetter`, because
attribute lookup is specialised."""


def each(field: str, things: Sequence[Any]) -> list[Any]:
    """This field of every item."""
    known = _EACH.get(field)
    return known(things) if known is not None else list(map(attrgetter(field), things))


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
        self._columns = tuple(columns)
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
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(self._columns))


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
    field = next((field for field in kind.__struct_fields__ if _RENAMED.get(field, field) == name), None)
    if field is None or (kind is Ringed and name == "token"):  # a ring's token is not that of a lease
        return pa.nulls(len(events), wanted)
    return column(each(field, events), wanted)


def column(values: list[Any], wanted: Any) -> Any:
    """Python values as Arrow; times come as milliseconds, maps as dictionaries."""
    if values and values[0] is None and values.count(None) == len(values):
        return pa.nulls(len(values), wanted)
    if pa.types.is_timestamp(wanted):
        return pa.array(values, _MS).cast(wanted)
    if pa.types.is_map(wanted):
        if not any(values):
            return pa.nulls(len(values), wanted)
        return pa.array([None if value is None else list(value.items()) for value in values], wanted)
    if pa.types.is_list(wanted):  # null if there is none, as in stored lines
        return pa.array([value or None for value in values], wanted)
    return pa.array(values, wanted)


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
    return pa.array(values, _MS).cast(wanted) if name == "at" else pa.array(values, wanted)


def _tag(kind: type[Event]) -> str:
    return str(kind.__struct_config__.tag)
