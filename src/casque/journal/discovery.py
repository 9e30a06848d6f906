"""Finds the leader of a queue, from the bucket alone."""

from __future__ import annotations

import msgspec

from casque.codec.head import KEY, Owner, read_layout
from casque.codec.log import LAYOUT as LOG
from casque.codec.log import Mode, decode_head
from casque.errors import CasqueError, QueueCopiedError, QueueLedError
from casque.storage.port import Store, Stored, locate, place_of


class _Led(msgspec.Struct):
    """The leadership fields of a document; its jobs are not decoded."""

    broker: str | None = None
    broker_id: str = msgspec.field(default="", name="brokerId")
    broker_place: str | None = msgspec.field(default=None, name="brokerPlace")


_decoder = msgspec.json.Decoder(_Led)


async def read_leader(store: Store) -> Owner | None:
    """The leader that the head names; None if there is none, or no queue yet. In a copy this is the leader of the
    original,
    see `is_copy`.

    Raises:
        StorageError: the store did not answer.
        CorruptQueueError: the object is not a queue.
    """
    read = await store.get(KEY)
    if not isinstance(read, Stored):
        return None
    if read_layout(KEY, read.body, locate(store, KEY)).layout != LOG:
        led = _decoder.decode(read.body)
        return None if led.broker is None else Owner(led.broker_id, "", led.broker, led.broker_place)
    head = decode_head(KEY, read.body)
    return head.owner if head.mode is Mode.LED else None


async def is_copy(store: Store, owner: Owner) -> bool:
    """True if the head that names this owner was copied here from the location where it leads."""
    return owner.place is not None and await place_of(store) not in (None, owner.place)


async def find_leader(store: Store) -> str | None:
    """The leader's address; None if there is no leader, or no queue yet.

    Raises:
        QueueCopiedError: it leads the original of this copy.
        StorageError: the store did not answer.
        CorruptQueueError: the object is not a queue.
    """
    owner = await read_leader(store)
    if owner is None:
        return None
    if await is_copy(store, owner):
        raise QueueCopiedError(owner.address)
    return owner.address


async def leader_here(store: Store) -> str | None:
    """As `find_leader`; None in a copy, which has no leader of its own yet."""
    owner = await read_leader(store)
    return None if owner is None or await is_copy(store, owner) else owner.address


async def refusal(store: Store, owner: Owner | None) -> CasqueError:
    """The error for callers that may not write because of this owner."""
    if owner is None:
        return QueueLedError(None)
    return QueueCopiedError(owner.address) if await is_copy(store, owner) else QueueLedError(owner.address)
