"""Tasks in the background, and cancellation: a cancelled task or one whose awaited work was cancelled.

`CancelledError` looks the same in both cases. The task must pass on the first; the second is an outcome like any other,
and must become an error. Taken for a caller that left, it once became the answer "done".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Work that continues after its caller left. Holds its tasks until they end, which the loop does not."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Future[Any], None] = {}
        """In the order in which they began, so that a simulated run can be repeated."""

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Awaitable[T]) -> asyncio.Future[T]:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._tasks.pop(task, None)

    async def ended(self, timeout_s: float | None = None) -> None:
        """Wait until all of it has ended, or the time is up. A cancelled caller does not cancel it."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()


def is_cancelled() -> bool:
    """True if the current task itself was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def joined(task: asyncio.Task[T], ended: Exception) -> T:
    """The result of a task that several callers wait for. A cancelled caller does not cancel it.

    Raises:
        ended: the task was cancelled, and the caller was not.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if is_cancelled() or not task.cancelled():
            raise
        raise ended from None
