"""What one node believes about time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from casque.clock import Random
from simulation.world.loop import VirtualLoop

if TYPE_CHECKING:
    from simulation.world.life import Life

EPOCH_MS = 472_223 * 3_600_000 - 4_000
"""An hour ends a few seconds after a world begins: the archive goes by hours."""


class MachineClock:
    """A machine's own clocks. They outlive the processes that run on it."""

    def __init__(self, loop: VirtualLoop, rng: Random, *, skew_s: float, drift: float, grain_ms: int = 1) -> None:
        self._loop = loop
        self._grain_ms = grain_ms
        self.rate = 1.0 + rng.uniform(-drift, drift)
        self._offset_ms = rng.uniform(-skew_s, skew_s) * 1000
        self._booted_ms = rng.randrange(10_000_000)
        self.highest_wall_ms = 0

    def wall_ms(self) -> int:
        now = int(EPOCH_MS + self._offset_ms + self._loop.time() * 1000)
        now -= now % self._grain_ms
        if now > self.highest_wall_ms:
            self.highest_wall_ms = now
        return now

    def monotonic_ms(self) -> int:
        return self._booted_ms + int(self._loop.time() * 1000 * self.rate)

    def set_wall(self, offset_s: float) -> None:
        """Somebody, or the network's time, sets the wall clock."""
        self._offset_ms = offset_s * 1000


class LifeClock:
    """The clock that one life of a node's process uses: its timers die with it and stand still while it does."""

    def __init__(self, machine: MachineClock, life: Life, loop: VirtualLoop) -> None:
        self._machine = machine
        self._life = life
        self._loop = loop

    def wall_ms(self) -> int:
        return self._machine.wall_ms()

    def monotonic_ms(self) -> int:
        return self._machine.monotonic_ms()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> LifeTimer:
        timer = LifeTimer(callback)
        timer.handle = self._loop.call_later(max(seconds, 0.0) / self._machine.rate, self._life.deliver, timer.fire)
        return timer

    async def sleep(self, seconds: float) -> None:
        if self._life.dead:
            raise asyncio.CancelledError
        over = self._loop.create_future()
        timer = self.call_later(seconds, lambda: _wake(over))
        try:
            await over
        finally:
            timer.cancel()


class LifeTimer:
    """May come due while its process is stopped, and be cancelled before that goes on."""

    __slots__ = ("_callback", "_cancelled", "handle")

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        self._cancelled = False
        self.handle: asyncio.TimerHandle | None = None

    def fire(self) -> None:
        if not self._cancelled:
            self._callback()

    def cancel(self) -> None:
        self._cancelled = True
        if self.handle is not None:
            self.handle.cancel()


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
