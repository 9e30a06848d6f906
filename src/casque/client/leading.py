"""Look up who leads a queue before opening it, for plain queues and rings."""

from __future__ import annotations

import msgspec

from casque.client.head import find_head
from casque.codec.ring import shard_prefix
from casque.journal.discovery import find_leader, is_copy, read_leader
from casque.storage.port import Store
from casque.storage.prefixed import PrefixedStore


class Leading(msgspec.Struct, frozen=True):
    """What `queue.json` says about leadership."""

    exists: bool = True
    """True if there is a queue."""
    ring: bool = False
    leader: str | None = None
    """The leader's address; the shards of a ring each have their own."""


async def look_up(store: Store) -> Leading:
    """
    Raises:
        QueueCopiedError: a broker leads the original of this copy.
        StorageError: the store did not answer.
        CorruptQueueError: what lies there is no queue.
    """
    leader = await find_leader(store)
    if leader is not None:
        return Leading(leader=leader)
    head = await find_head(store)
    return Leading(exists=head is not None, ring=head is not None and head.shards is not None)


async def is_led(store: Store, found: Leading | None = None) -> bool:
    """True if brokers lead the queue, so that clients must call them. Brokers lead all shards of a ring, or none.
    Raises as above."""
    found = found or await look_up(store)
    if found.ring:
        return await find_leader(PrefixedStore(store, shard_prefix(0))) is not None
    return found.leader is not None


class Leader(msgspec.Struct, frozen=True):
    """The broker that the head of a queue names."""

    address: str | None = None
    """It leads this queue."""
    copy_of: str | None = None
    """It leads the original that this queue was copied from."""


async def leader_of(store: Store) -> Leader:
    """
    Raises:
        StorageError: the store did not answer.
        CorruptQueueError: the object is not a queue.
    """
    owner = await read_leader(store)
    if owner is None:
        return Leader()
    return Leader(copy_of=owner.address) if await is_copy(store, owner) else Leader(owner.address)
