"""A parser for server-sent events: pieces of bytes in, whole frames out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from casque.service import EventKind, QueueEvent
from casque.state import Event
from casque.state.events import Added, Admitted, Scheduled
from casque.transport.http.messages import EventLine
from casque.types import JobSpec


class Frame(msgspec.Struct):
    id: str = ""
    event: str = "message"
    data: str = ""


class Reader:
    """Splits a stream into frames. Comments, and frames without data, are skipped, as the standard says."""

    def __init__(self) -> None:
        self._rest = b""
        self._frame = Frame()

    def feed(self, piece: bytes) -> Iterator[Frame]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if frame := self._line(line.removesuffix(b"\r").decode()):
                yield frame

    def _line(self, line: str) -> Frame | None:
        if not line:
            frame, self._frame = self._frame, Frame()
            return frame if frame.data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "id":
                self._frame.id = value
            case "event":
                self._frame.event = value
            case "data":
                self._frame.data = f"{self._frame.data}\n{value}" if self._frame.data else value
        return None


def to_event(frame: Frame) -> QueueEvent | None:
    """The event in a frame, with its fields as in an embedded queue; None for a kind of a later release."""
    line = msgspec.json.decode(frame.data, type=EventLine)
    if line.kind not in _FIELDS:
        return None
    types = _FIELDS[line.kind]
    fields = {name: msgspec.convert(value, types.get(name, Any)) for name, value in line.fields.items()}
    return QueueEvent(line.position, line.index, line.at, EventKind(line.kind), line.job_id, fields)


def _types(kind: Any) -> dict[str, Any]:
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    if kind is Added:
        fields |= {field.name: field.type for field in msgspec.structs.fields(JobSpec)}
    if kind is Admitted or kind is Scheduled:
        fields = {}  # fields of plain JSON types
    return fields


# JSON has neither bytes nor tuples: the types of an event's fields say how to restore them.
_FIELDS = {str(kind.__struct_config__.tag): _types(kind) for kind in get_args(Event)}
