"""An event loop in its own thread, for blocking code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from casque.client.forks import Origin
from casque.errors import UnknownOutcomeError

R = TypeVar("R")


class LoopThread:
    def __init__(self, name: str) -> None:
        self._origin = Origin()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def is_elsewhere(self) -> bool:
        """True in a process that was forked from the one that has the thread."""
        return self._origin.is_elsewhere()

    def begin(self, call: Coroutine[Any, Any, R]) -> Future[R]:
        """Submit a call; `result_of` waits for it.

        Raises:
            QueueClosedError: this process was forked from the one that has the thread.
        """
        if self._origin.is_elsewhere():
            call.close()
            self._origin.check()
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def wait(self, call: Coroutine[Any, Any, R]) -> R:
        return result_of(self.begin(call))

    def end(self) -> None:
        """Stop the loop; running calls are cancelled. In a forked child there is nothing to stop."""
        if self._origin.is_elsewhere():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(_end_tasks(asyncio.all_tasks(self._loop)))
        self._loop.close()


def result_of(future: Future[R]) -> R:
    """
    Raises:
        UnknownOutcomeError: the loop ended under the call.
    """
    try:
        return future.result()
    except CancelledError:
        raise UnknownOutcomeError(
            "the queue was closed while this call was under way; it may have been carried out, so look first"
        ) from None
    except BaseException:
        future.cancel()  # a KeyboardInterrupt here must not leave the call running on its own
        raise


async def _end_tasks(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
