"""An event loop without a machine under it: no sockets, no threads, and time that leaps to the next timer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from heapq import heappop, heappush
from typing import TypeVarTuple, Unpack

Ts = TypeVarTuple("Ts")


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs what is ready; when nothing is, it is the time of the next timer. Timers of one moment fire in order.

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
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbered = 0
        self.set_debug(False)
        self.route: Callable[[Callable[[], object]], Callable[[], object]] = lambda callback: callback
        """Wraps the timers of `asyncio.timeout`, which knows no clock but the loop's: those of a process that is
        stopped wait until it goes on."""

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._set_timer(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        def fire() -> None:
            if not handle.cancelled():  # perhaps while its process was stopped, after its time had come
                callback(*args)

        handle = self._set_timer(when, self.route(fire), context=context)
        return handle

    def _set_timer(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._numbered += 1
        heappush(self._timers, (when, self._numbered, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def _run_once(self) -> None:
        """One round, as in any event loop: what is ready now, but not yet what that makes ready."""
        ready, timers = self._ready, self._timers
        # The attributes of handles, not their methods: this is where a world spends most of its time.
        while timers and (timers[0][2]._cancelled or timers[0][0] <= self._now or not ready):  # noqa: SLF001
            when, _, timer = heappop(timers)
            if not timer._cancelled:  # noqa: SLF001
                self._now = max(when, self._now)
                ready.append(timer)
        if not ready:
            raise RuntimeError("the world stands still: nothing is ready and no timer is set")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:  # noqa: SLF001
                try:
                    handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]  # noqa: SLF001
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001  as every event loop does
                    self.call_exception_handler(
                        {"message": f"Exception in callback {handle!r}", "exception": error, "handle": handle}
                    )

    def _write_to_self(self) -> None:
        """There are no other threads to be woken by."""
