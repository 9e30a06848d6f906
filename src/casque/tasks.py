"""Cancellation: distinguish a cancelled task from one whose awaited work was cancelled.

`CancelledError` looks the same in both cases. The task must pass on the first; the second is an outcome like any other,
and must become an error. Taken for a caller that left, it once became the answer "done".
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


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
