"""Threads for handlers that are plain functions.

They are daemons, unlike those of the standard library: a function that never returns must not keep a stopping worker
alive after its time to drain has passed.
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
    """Threads started on demand, up to the largest number of calls at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._made = 0
        self._busy = 0

    def call(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call `function` in a thread; the future is settled on the loop."""
        future = self._loop.create_future()
        self._busy += 1
        if self._busy > self._made:
            self._made += 1
            threading.Thread(target=self._run, name=f"casque-worker-{self._made}", daemon=True).start()
        self._work.put((function, future, contextvars.copy_context()))
        return future

    def close(self) -> None:
        """Idle threads end; busy ones end after their call."""
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
                return  # the loop has ended, and no caller waits
            del work, function, future, context, answer, error  # an idle thread must keep nothing alive

    def _done(self, future: asyncio.Future[Any], answer: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(answer)
        elif isinstance(error, StopIteration):
            future.set_exception(RuntimeError(f"the handler raised {error!r}"))  # a future cannot carry a StopIteration
        else:
            future.set_exception(error)
