"""Threads for handlers that are plain functions.

They are daemons, unlike those of the standard library: a function that never ends must not keep a worker from ending
that was told to, and has waited for as long as it was to wait.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Work = tuple[Callable[[], Any], "asyncio.Future[Any]", contextvars.Context]


class Threads:
    """Made as they are needed, as many as were ever needed at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._made = 0
        self._busy = 0

    def call(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call it in a thread; the future is settled on the loop."""
        future = self._loop.create_future()
        self._busy += 1
        if self._busy > self._made:
            self._made += 1
            threading.Thread(target=self._run, name=f"casque-worker-{self._made}", daemon=True).start()
        self._work.put((function, future, contextvars.copy_context()))
        return future

    def close(self) -> None:
        """Threads that have nothing to do end; the others end with what they do."""
        for _ in range(self._made):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            function, future, context = work
            try:
                answer, error = context.run(function), None
            except BaseException as raised:  # noqa: BLE001  it is the job's outcome, SystemExit as well
                answer, error = None, raised
            try:
                self._loop.call_soon_threadsafe(self._done, future, answer, error)
            except RuntimeError:
                return  # the loop has ended, and nobody waits for this any more
            del work, function, future, context, answer, error  # an idle thread keeps nothing alive

    def _done(self, future: asyncio.Future[Any], answer: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(answer)
        elif isinstance(error, StopIteration):
            future.set_exception(RuntimeError(f"the handler raised {error!r}"))  # a future refuses to carry one
        else:
            future.set_exception(error)
