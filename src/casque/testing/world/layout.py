"""How a fresh reader gets a queue's state out of a bucket: all that depends on the layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from casque.codec.document import DocumentCodec
from casque.codec.head import KEY
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


DOCUMENT = Layout("document", _recover_document, lambda key: key == KEY)
