"""What a broker reports about itself, of one queue or of a ring: its role, and the problem it has."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from casque.clock import Clock
from casque.service import Role, Standing


class Reporting(ABC):
    """Signals every change of the role and of the problem, and waits between two looks."""

    def __init__(self, clock: Clock, log: logging.Logger) -> None:
        self._clock = clock
        self._log = log
        self._role = Role.STARTING
        self._problem: str | None = None
        self._changed = asyncio.Event()
        self._wake = asyncio.Event()

    @abstractmethod
    def standing(self) -> Standing: ...

    async def changed(self) -> Standing:
        """Wait until the role, the leader or the problem changes."""
        await self._changed.wait()
        self._changed.clear()
        return self.standing()

    def _become(self, role: Role) -> None:
        if self._role is not role:
            self._role = role
            self._changed.set()

    def _trouble(self, problem: str) -> None:
        if self._problem is None:
            self._log.warning("in trouble, and goes on trying: %s", problem)
            self._changed.set()
        self._problem = problem

    def _well(self) -> None:
        if self._problem is not None:
            self._log.info("well again")
            self._problem = None
            self._changed.set()

    async def _pause(self, seconds: float) -> None:
        """Wait this long, or until something happens."""
        timer = self._clock.call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
            self._wake.clear()
