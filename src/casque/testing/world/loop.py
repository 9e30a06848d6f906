"""An event loop without a machine under it: no sockets, no threads, and time that leaps to the next timer."""

from __future__ import annotations

import asyncio
from typing import Any


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs what is ready; when nothing is, it is the time of the next timer.

    >>> loop = VirtualLoop()
    >>> async def long():
    ...     over = loop.create_future()
    ...     loop.call_later(3600, over.set_result, "an hour later")
    ...     return await over, loop.time()
    >>> loop.run_until_complete(long())
    ('an hour later', 3600.0)
    >>> loop.close()
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._clock_resolution = 1e-9
        self._selector = _Leap(self)
        self.set_debug(False)

    def time(self) -> float:
        return self._now

    def leap(self, seconds: float | None) -> None:
        if seconds is None:
            raise RuntimeError("the world stands still: nothing is ready and no timer is set")
        self._now += seconds

    def _process_events(self, event_list: list[Any]) -> None:
        """There is no I/O."""

    def _write_to_self(self) -> None:
        """There are no other threads to be woken by."""


class _Leap:
    """Stands where a loop waits for I/O."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout != 0:
            self._loop.leap(timeout)
        return []
