"""`queue.json` of a ring: how many shards there are, and have been. The jobs are in the shards, each of them a log."""

from __future__ import annotations

from typing import Any

import msgspec

from casque.codec.head import KEY, RING, UNREADABLE, Head, check_format, not_a_queue, read_layout
from casque.errors import CorruptQueueError
from casque.state.ring import home

SHARDS_MAX = 4096
"""Shards that a ring may ever have. Stored with every number that leaves a ring: it must never change."""
SHARDS = "shards"


class RingHead(Head, frozen=True, kw_only=True):
    """The root of a ring, for people to read: small, and changed by compare-and-set alone."""

    layout: str = RING
    version: int = 0
    writer: str = ""
    """Who wrote this version: two writers must never produce the same bytes."""
    generation: int = 1
    """Rises with each change of the size."""
    sizes: tuple[int, ...]
    """How many shards there were, newest last: of the past those that zones may still be found by."""
    shards: int
    """How many there are below `shards/`. After the ring has shrunk these are more than its size."""
    resized_at: int = 0
    """When the size changed last, in milliseconds, by the clock of whoever changed it."""
    cleared_at: int | msgspec.UnsetType = msgspec.UNSET
    """When somebody found, by the same kind of clock, that since the last change nothing is left where only older sizes
    would look for it. Until then it is not there."""
    jobs: str = "in shards/"
    """Only for jqueue: it would take a head without jobs for an empty queue and write over it, and refuses this."""

    @property
    def size(self) -> int:
        return self.sizes[-1]

    @property
    def walked(self) -> int:
        """Jobs may wait in so many shards, the first ones."""
        return max(self.sizes)

    def homes(self, place: str) -> list[int]:
        """Where a zone may be: its homes on older rings, oldest first, and at last that on the newest."""
        newest = home(place, self.size)
        older = [home(place, size) for size in self.sizes[:-1]] if len(self.sizes) > 1 else []
        return [*dict.fromkeys(token for token in older if token != newest), newest]

    def next(self, writer: str, **changes: Any) -> RingHead:
        """The head that takes the place of this one."""
        return msgspec.structs.replace(self, version=self.version + 1, writer=writer, **changes)


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(RingHead)


def shard_prefix(token: int) -> str:
    """Where a shard is, below the root.

    >>> shard_prefix(7)
    'shards/0007'
    """
    return f"{SHARDS}/{token:04d}"


def encode_ring(head: RingHead) -> bytes:
    return msgspec.json.format(_encode(head), indent=2) + b"\n"


def decode_ring(body: bytes) -> RingHead:
    """
    Raises:
        CorruptQueueError: it is none, or one that this release cannot read.
    """
    if (layout := read_layout(KEY, body).layout) != RING:
        raise CorruptQueueError(KEY, f"this is no ring of shards but a queue of its own ({layout})")
    try:
        head = _decoder.decode(body)
    except UNREADABLE as error:
        raise not_a_queue(KEY, error) from error
    check_format(KEY, head)
    sane = head.sizes and all(1 <= size <= SHARDS_MAX for size in head.sizes)
    if not sane or not head.walked <= head.shards <= SHARDS_MAX:
        raise CorruptQueueError(
            KEY, f"a ring has sizes from 1 to {SHARDS_MAX}, and at least as many shards: it was edited by hand"
        )
    return head
