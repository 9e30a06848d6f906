"""How a fresh reader gets a queue's state out of a bucket: all that depends on the layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from casque.codec.document import DocumentCodec
from casque.codec.head import KEY
from casque.codec.log import START, decode_head, decode_segment, decode_snapshot, digest, segment_key
from casque.state import Limits, State
from casque.storage.port import Stored


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to keep a queue in a bucket."""

    name: str
    recover: Callable[[Mapping[str, Stored]], State]
    """The state that a process finds which knows nothing but the bucket."""
    is_commit: Callable[[str], bool]
    """Whether a write to this key makes a commit. Any other write must leave the recovered state as it is."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """What `Parts` has to be told to make queues of this layout."""


def _recover_document(objects: Mapping[str, Stored]) -> State:
    return DocumentCodec(KEY, "").decode(objects[KEY].body, Limits())


def _recover_log(objects: Mapping[str, Stored]) -> State:
    """The snapshot that the head names, if it names one, and every segment after it."""
    if KEY not in objects:
        return State(Limits())
    head = decode_head(KEY, objects[KEY].body)
    assert head.queue_id is not None
    if head.snapshot is None:
        state, chain = State(Limits()), START
    else:
        body = objects[head.snapshot.key].body
        state, chain = decode_snapshot(head.snapshot, body, queue_id=head.queue_id, limits=Limits())
    while (stored := objects.get(segment_key(state.position + 1))) is not None:
        segment = decode_segment(stored.body, queue_id=head.queue_id, position=state.position + 1, prev=chain)
        state.replay(segment.events, writer=segment.writer, batch=segment.batch, at_ms=segment.at)
        chain = digest(stored.body)
    return state


DOCUMENT = Layout("document", _recover_document, lambda key: key == KEY)
LOG = Layout("log", _recover_log, lambda key: key.startswith("log/"), {"layout": "log"})
LAYOUTS = {layout.name: layout for layout in (DOCUMENT, LOG)}
