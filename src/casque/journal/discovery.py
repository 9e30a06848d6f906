"""Where the leader of a queue is, read from the bucket alone."""

from __future__ import annotations

import msgspec

from casque.codec.head import KEY, Owner, read_layout
from casque.codec.log import LAYOUT as LOG
from casque.codec.log import Mode, decode_head
from casque.errors import CasqueError, QueueCopiedError, QueueLedError
from casque.storage.port import Store, Stored, locate, place_of


class _Led(msgspec.Struct):
    """All that a document says about its leader; its jobs are passed over."""

    broker: str | None = None
    broker_id: str = msgspec.field(default="", name="brokerId")
    broker_place: str | None = msgspec.field(default=None, name="brokerPlace")


_decoder = msgspec.json.Decoder(_Led)


async def read_leader(store: Store) -> Owner | None:
    """Who leads, as the head says; None if nobody does, or there is no queue yet. In a copy this is the leader of the
    original, see `is_copy`.

    Raises:
        StorageError: the store did not answer.
        CorruptQueueError: what lies there is no queue.
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
    """Whether the head that names this owner was copied here from the place where it leads."""
    return owner.place is not None and await place_of(store) not in (None, owner.place)


async def find_leader(store: Store) -> str | None:
    """The address that the leader gave; None if nobody leads, or there is no queue yet.

    Raises:
        QueueCopiedError: it leads the original of this copy.
        StorageError: the store did not answer.
        CorruptQueueError: what lies there is no queue.
    """
    owner = await read_leader(store)
    if owner is None:
        return None
    if await is_copy(store, owner):
        raise QueueCopiedError(owner.address)
    return owner.address


async def leader_here(store: Store) -> str | None:
    """As `find_leader`; None in a copy, whose own leader is not there yet."""
    owner = await read_leader(store)
    return None if owner is None or await is_copy(store, owner) else owner.address


async def refusal(store: Store, owner: Owner | None) -> CasqueError:
    """What is raised for those who may not write because of this owner."""
    if owner is None:
        return QueueLedError(None)
    return QueueCopiedError(owner.address) if await is_copy(store, owner) else QueueLedError(owner.address)
