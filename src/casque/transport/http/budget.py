"""A budget of bytes, streams or connections, bounded in total and per peer."""

from __future__ import annotations

import asyncio
from collections import deque

from casque.errors import LimitReachedError


class Budget:
    """Hands out shares, first come first served. Every share must be given back.

    >>> budget = Budget("streams", 2, 1)
    >>> budget.try_take("10.0.0.1", 1), budget.try_take("10.0.0.1", 1), budget.try_take("10.0.0.2", 1)
    (True, False, True)
    """

    def __init__(self, what: str, most: int, most_per_peer: int) -> None:
        self.what = what
        self._most = most
        self._most_per_peer = most_per_peer
        self._taken = 0
        self._by_peer: dict[str, int] = {}
        self._waiting: deque[tuple[str, int, asyncio.Future[None]]] = deque()

    def try_take(self, peer: str, share: int) -> bool:
        if not self._has_room(peer, share):
            return False
        self._taken += share
        self._by_peer[peer] = self._by_peer.get(peer, 0) + share
        return True

    async def take(self, peer: str, share: int, *, patience_s: float) -> None:
        """Wait for a share.

        Raises:
            LimitReachedError: no share became free in time.
        """
        if not any(other == peer for other, _, _ in self._waiting) and self.try_take(peer, share):
            return
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (peer, share, room)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(patience_s):
                await room
        except BaseException as error:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif room.done() and not room.cancelled():
                self.give_back(peer, share)  # granted just as the caller was cancelled
            if isinstance(error, TimeoutError):
                raise self.refusal(peer) from None
            raise

    def give_back(self, peer: str, share: int) -> None:
        self._taken -= share
        left = self._by_peer[peer] - share
        if left:
            self._by_peer[peer] = left
        else:
            del self._by_peer[peer]
        self._wake()

    def refusal(self, peer: str) -> LimitReachedError:
        """The error for a peer that got no share."""
        if self._by_peer.get(peer, 0) and self._by_peer[peer] * 2 > self._most_per_peer:
            return LimitReachedError(f"{self.what} of one address, by --http-limit", self._most_per_peer)
        return LimitReachedError(f"{self.what} of all callers, by --http-limit", self._most)

    def _has_room(self, peer: str, share: int) -> bool:
        return self._taken + share <= self._most and self._by_peer.get(peer, 0) + share <= self._most_per_peer

    def _wake(self) -> None:
        """Grant shares to waiting peers in order; a peer at its own limit does not hold up the others."""
        kept: deque[tuple[str, int, asyncio.Future[None]]] = deque()
        passed: set[str] = set()
        while self._waiting:
            entry = self._waiting.popleft()
            peer, share, room = entry
            if room.done():
                continue
            if peer not in passed and self.try_take(peer, share):
                room.set_result(None)
                continue
            passed.add(peer)
            kept.append(entry)
            if self._taken + share > self._most:
                break  # a large request must not be overtaken for ever
        kept.extend(self._waiting)
        self._waiting = kept
