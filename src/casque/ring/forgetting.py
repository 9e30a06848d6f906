"""Forgets older sizes of a ring, a quarter of an hour after nothing needs them any more.

The quarter of an hour is measured by one process that sees the same root at its beginning and at its end, on its own
monotonic clock. The times in the root are for people: clocks of two machines are never compared.
"""

from __future__ import annotations

import msgspec

from casque.clock import Clock
from casque.codec.ring import RingHead
from casque.ring.root import Root

SETTLED_MS = 15 * 60 * 1000
"""How long an older size is kept after the last zone has left the shards that only it finds: a repeated request may
have been carried out there."""


class Forgetting:
    """One process's observations of a ring whose older sizes are not needed."""

    def __init__(self, root: Root, *, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._generation: int | None = None
        self._since_ms = 0

    def is_time(self, head: RingHead) -> bool:
        """Record the root; True if it has been unchanged for long enough. A resize begins a new generation, in which
        the
        shards have to be found clear again."""
        if len(head.sizes) == 1 or head.cleared_at is msgspec.UNSET:
            self._generation = None
            return False
        if head.generation != self._generation:
            self._generation, self._since_ms = head.generation, self._clock.monotonic_ms()
        return self._clock.monotonic_ms() - self._since_ms >= SETTLED_MS

    async def forget(self, seen: RingHead) -> RingHead:
        """Unless the ring was resized since, or another process was faster."""

        def changed(now: RingHead) -> RingHead | None:
            if (now.generation, now.sizes, now.cleared_at) != (seen.generation, seen.sizes, seen.cleared_at):
                return None
            return msgspec.structs.replace(now, sizes=(now.size,), cleared_at=msgspec.UNSET)

        return await self._root.change(changed)
