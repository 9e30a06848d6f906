"""Tells those who follow a queue in its leader's own process that there is something new."""

from __future__ import annotations

import asyncio

from casque.errors import LeadershipLostError


class Pulse:
    """Beats with every commit of the one process that commits. Ends with its lead."""

    def __init__(self) -> None:
        self._position = 0
        self._over = False
        self._next: asyncio.Future[None] | None = None

    def beat(self, position: int) -> None:
        self._position = position
        self._wake()

    def end(self) -> None:
        self._over = True
        self._wake()

    async def after(self, position: int) -> None:
        """Wait for a commit after this one.

        Raises:
            LeadershipLostError: this process leads no more: what happens next, another one knows.
        """
        while self._position <= position and not self._over:
            if self._next is None:
                self._next = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._next)
        if self._over:
            raise LeadershipLostError

    def _wake(self) -> None:
        waiting, self._next = self._next, None
        if waiting is not None:
            waiting.set_result(None)
