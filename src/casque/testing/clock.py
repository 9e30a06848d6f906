"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class ManualClock:
    """Time for tests: nothing waits for real, everything waits for `advance`.

    >>> import asyncio
    >>> async def main():
    ...     clock = ManualClock(wall_ms=1000)
    ...     task = asyncio.create_task(clock.sleep(5))
    ...     await clock.advance(4.9)
    ...     print(task.done())
    ...     await clock.advance(0.1)
    ...     print(task.done(), clock.wall_ms())
    >>> asyncio.run(main())
    False
    True 6000
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = float(wall_ms)
        self._monotonic_ms = 0.0
        self._timers: list[tuple[float, int, _ManualTimer]] = []
        self._order = count()

    def wall_ms(self) -> int:
        return round(self._wall_ms)

    def monotonic_ms(self) -> int:
        return round(self._monotonic_ms)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> _ManualTimer:
        timer = _ManualTimer(callback)
        heappush(self._timers, (self._monotonic_ms + max(seconds, 0) * 1000, next(self._order), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        over = asyncio.Event()
        timer = self.call_later(seconds, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()

    async def advance(self, seconds: float) -> None:
        """Move both clocks on, firing timers in order and letting what they wake run."""
        target_ms = self._monotonic_ms + seconds * 1000
        await settle()
        while self._timers and self._timers[0][0] <= target_ms + 1e-6:
            due_ms, _, timer = heappop(self._timers)
            self._move_to(max(due_ms, self._monotonic_ms))
            if not timer.cancelled:
                timer.callback()
                await settle()
        self._move_to(target_ms)

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward, or back. The monotonic clock and timers do not notice."""
        self._wall_ms += seconds * 1000

    def _move_to(self, monotonic_ms: float) -> None:
        self._wall_ms += monotonic_ms - self._monotonic_ms
        self._monotonic_ms = monotonic_ms


class _ManualTimer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


async def settle(rounds: int = 50) -> None:
    """Let everything that can run without time passing run. For parts that do not leave the event loop."""
    loop = asyncio.get_running_loop()
    ready = getattr(loop, "_ready", ())  # not every loop tells what is left to be done
    for turn in range(20 * rounds):
        if turn >= rounds and not ready:
            break
        future = loop.create_future()
        loop.call_soon(future.set_result, None)
        await future
