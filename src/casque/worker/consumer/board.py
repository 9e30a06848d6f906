"""Selected zones, on their way from the scanner to the managers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from casque.types import PeekedZone


class Board:
    """Contains each zone at most once, from its selection until its manager is done with it."""

    def __init__(self) -> None:
        self._waiting: deque[PeekedZone] = deque()
        self._named: set[str] = set()
        self._idle = 0
        """Managers that have nothing to do."""
        self._came = asyncio.Event()
        self._wanted = asyncio.Event()

    def __contains__(self, zone: str) -> bool:
        return zone in self._named

    @property
    def is_empty(self) -> bool:
        """No zone waits for a manager."""
        return not self._waiting

    @property
    def is_clear(self) -> bool:
        """No zone waits, and all managers are idle."""
        return not self._named

    def put(self, zones: Iterable[PeekedZone]) -> None:
        for zone in zones:
            self._waiting.append(zone)
            self._named.add(zone.zone)
        self._look()

    async def take(self) -> PeekedZone:
        self._idle += 1
        try:
            while not self._waiting:
                self._look()
                await self._came.wait()
        finally:
            self._idle -= 1
        zone = self._waiting.popleft()
        self._look()
        return zone

    def done(self, zone: PeekedZone) -> None:
        self._named.discard(zone.zone)

    async def wait_until_wanted(self) -> None:
        """Wait until a manager is idle and no zone waits for it."""
        await self._wanted.wait()

    def _look(self) -> None:
        _set(self._came, bool(self._waiting))
        _set(self._wanted, self._idle > len(self._waiting))


def _set(event: asyncio.Event, value: bool) -> None:
    if value:
        event.set()
    else:
        event.clear()
