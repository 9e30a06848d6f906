"""Forgets older sizes of a ring, a quarter of an hour after nothing needs them any more.

The quarter of an hour is counted by one process that sees the root like this at its beginning and at its end, on its
own monotonic clock. The times in the root are for people: two machines' clocks are never compared.
"""

from __future__ import annotations

import msgspec

from casque.clock import Clock
from casque.codec.ring import RingHead
from casque.ring.root import Root

SETTLED_MS = 15 * 60 * 1000
"""So long an older size is kept after the last zone has left the shards that only it finds: a request that is repeated
may have been carried out there."""


class Forgetting:
    """What one process has seen of a ring whose older sizes nothing needs."""

    def __init__(self, root: Root, *, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._generation: int | None = None
        self._since_ms = 0

    def is_time(self, head: RingHead) -> bool:
        """Take note of the root; whether it has been like this for long enough. A resize begins a new generation, in
        which the shards have to be found clear again."""
        if len(head.sizes) == 1 or head.cleared_at is msgspec.UNSET:
            self._generation = None
            return False
        if head.generation != self._generation:
            self._generation, self._since_ms = head.generation, self._clock.monotonic_ms()
        return self._clock.monotonic_ms() - self._since_ms >= SETTLED_MS

    async def forget(self, seen: RingHead) -> RingHead:
        """Unless somebody has resized it since, or was faster."""

        def changed(now: RingHead) -> RingHead | None:
            if (now.generation, now.sizes, now.cleared_at) != (seen.generation, seen.sizes, seen.cleared_at):
                return None
            return msgspec.structs.replace(now, sizes=(now.size,), cleared_at=msgspec.UNSET)

        return await self._root.change(changed)
