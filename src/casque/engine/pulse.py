"""Notifies readers in the leader's own process of new commits."""

from __future__ import annotations

import asyncio

from casque.errors import LeadershipLostError


class Pulse:
    """Beats with every commit of the one process that commits. Ends with its leadership."""

    def __init__(self) -> None:
        self._position = 0
        self._over = False
        self._waiting: dict[asyncio.Future[None], None] = {}
        """One future per reader: a reader that leaves removes only its own, at no cost to the others."""

    def beat(self, position: int) -> None:
        self._position = position
        self._wake()

    def end(self) -> None:
        self._over = True
        self._wake()

    async def after(self, position: int) -> None:
        """Wait for a commit after this one.

        Raises:
            LeadershipLostError: this process no longer leads, and does not see later commits.
        """
        while self._position <= position and not self._over:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[waiting] = None
            try:
                await waiting
            finally:
                self._waiting.pop(waiting, None)
        if self._over:
            raise LeadershipLostError

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()
