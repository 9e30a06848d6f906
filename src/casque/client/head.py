"""What the head of a queue says, before anything else of it is read."""

from __future__ import annotations

import msgspec

from casque.codec.head import KEY, RING, read_layout
from casque.codec.ring import decode_ring
from casque.errors import InvalidInputError
from casque.storage.port import Store, Stored, locate

__all__ = ["KEY", "MISSING", "RING", "QueueHead", "find_head", "require_head"]

MISSING = f"there is no queue here: {KEY} is missing"


class QueueHead(msgspec.Struct, frozen=True):
    """The kind of a queue."""

    layout: str
    queue_id: str | None
    shards: int | None
    """How many, if it is a ring."""


async def find_head(store: Store) -> QueueHead | None:
    """None if there is no queue.

    Raises:
        CorruptQueueError: the object is not the head of a queue.
    """
    read = await store.get(KEY)
    if not isinstance(read, Stored):
        return None
    head = read_layout(KEY, read.body, locate(store, KEY))
    shards = decode_ring(read.body).shards if head.layout == RING else None
    return QueueHead(head.layout, head.queue_id, shards)


async def require_head(store: Store, hint: str = "") -> QueueHead:
    """
    Raises:
        InvalidInputError: there is no queue.
        CorruptQueueError: the object is not the head of a queue.
    """
    if (head := await find_head(store)) is None:
        raise InvalidInputError(f"{MISSING}{hint}")
    return head
