"""Jobs that a segment only names: they are stored in staged objects and put back when the segment is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from casque.codec.head import UNREADABLE
from casque.codec.log import REPAIR, Segment, segment_key
from casque.errors import CorruptQueueError
from casque.state import Admitted, Event
from casque.state.admission import added_events
from casque.types import JobSpec, StagedPart

Staged: TypeAlias = Mapping[str, Sequence[JobSpec] | CorruptQueueError]
"""The jobs of staged objects by key; an error in the place of an object that could not be read."""

# The exact bytes of such an event in a segment. Inside a job's text the quotes would be escaped.
_MARK = b'["admitted",'


class _Events(msgspec.Struct):
    events: list[Event]


_decoder = msgspec.json.Decoder(_Events)


def named_parts(body: bytes) -> list[StagedPart]:
    """The staged objects that a segment names. Does not check that `body` is a segment."""
    if _MARK not in body:
        return []
    try:
        events = _decoder.decode(body).events
    except UNREADABLE:
        return []
    return [part for event in events if type(event) is Admitted for part in event.parts]


def expanded(segment: Segment, staged: Staged) -> Segment:
    """The segment with all of its events.

    Raises:
        CorruptQueueError: a staged object is missing or changed, or holds other jobs than the segment says.
    """
    if Admitted not in set(map(type, segment.events)):
        return segment
    events: list[Event] = []
    for event in segment.events:
        events.append(event)
        if type(event) is Admitted:
            events += _added(segment, event, staged)
    return msgspec.structs.replace(segment, events=events)


def _added(segment: Segment, event: Admitted, staged: Staged) -> Sequence[Event]:
    specs: list[JobSpec] = []
    for part in event.parts:
        found = staged[part.key]
        if isinstance(found, CorruptQueueError):
            raise found
        specs += found
    try:
        return added_events(event, specs, segment.at)
    except AssertionError as error:
        raise CorruptQueueError(
            segment_key(segment.position), f"the staged jobs that it names are not those it admitted. {REPAIR}"
        ) from error
