"""Where the leader of a queue is, read from the bucket alone."""

from __future__ import annotations

import msgspec

from casque.codec.head import KEY, read_layout
from casque.codec.log import LAYOUT as LOG
from casque.codec.log import Mode, decode_head
from casque.storage.port import Store, Stored, locate


class _Led(msgspec.Struct):
    """All that a document says about its leader; its jobs are passed over."""

    broker: str | None = None


_decoder = msgspec.json.Decoder(_Led)


async def find_leader(store: Store) -> str | None:
    """The address that the leader gave; None if nobody leads, or there is no queue yet.

    Raises:
        StorageError: the store did not answer.
        CorruptQueueError: what lies there is no queue.
    """
    read = await store.get(KEY)
    if not isinstance(read, Stored):
        return None
    if read_layout(KEY, read.body, locate(store, KEY)).layout != LOG:
        return _decoder.decode(read.body).broker
    head = decode_head(KEY, read.body)
    return head.owner.address if head.mode is Mode.LED and head.owner is not None else None
