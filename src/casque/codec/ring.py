"""`queue.json` of a ring: its number of shards, now and before. The jobs are in the shards, each of which is a log."""

from __future__ import annotations

from typing import Any

import msgspec

from casque.codec.head import KEY, RING, UNREADABLE, Head, check_format, not_a_queue, read_layout
from casque.errors import CorruptQueueError
from casque.state.ring import home

SHARDS_MAX = 4096
"""Largest number of shards in a ring. Stored in every number that leaves a ring: it must never change."""
SHARDS = "shards"


class RingHead(Head, frozen=True, kw_only=True):
    """The root of a ring: small, readable, changed by compare-and-set only."""

    layout: str = RING
    version: int = 0
    writer: str = ""
    """The writer of this version, so that two writers never produce the same bytes."""
    generation: int = 1
    """Rises with each change of the size."""
    sizes: tuple[int, ...]
    """Numbers of shards, newest last; of the older ones those that zones may still be found by."""
    shards: int
    """Shards that exist below `shards/`. After the ring has shrunk there are more of them than its size."""
    resized_at: int = 0
    """When the size last changed, in milliseconds, by the clock of the process that changed it."""
    cleared_at: int | msgspec.UnsetType = msgspec.UNSET
    """When a check found, by the same kind of clock, that no job is left where only an older size would look for it.
    Unset until then."""
    jobs: str = "in shards/"
    """Only for jqueue: it takes a head without jobs for an empty queue and overwrites it, but refuses this one."""

    @property
    def size(self) -> int:
        return self.sizes[-1]

    @property
    def walked(self) -> int:
        """Number of shards, counted from the first, that may hold waiting jobs."""
        return max(self.sizes)

    def homes(self, place: str) -> list[int]:
        """The shards where a zone may be: its homes on older rings, oldest first, then its home on the newest."""
        newest = home(place, self.size)
        older = [home(place, size) for size in self.sizes[:-1]] if len(self.sizes) > 1 else []
        return [*dict.fromkeys(token for token in older if token != newest), newest]

    def next(self, writer: str, **changes: Any) -> RingHead:
        """The head that replaces this one."""
        return msgspec.structs.replace(self, version=self.version + 1, writer=writer, **changes)


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(RingHead)


def shard_prefix(token: int) -> str:
    """The prefix of a shard below the root.

    >>> shard_prefix(7)
    'shards/0007'
    """
    return f"{SHARDS}/{token:04d}"


def encode_ring(head: RingHead) -> bytes:
    return msgspec.json.format(_encode(head), indent=2) + b"\n"


def decode_ring(body: bytes) -> RingHead:
    """
    Raises:
        CorruptQueueError: `body` is not the head of a ring, or this release cannot read it.
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
