"""Cancellation: a task that was asked to end, as opposed to one whose awaited work was.

`CancelledError` looks the same in both cases. The first is for the task to pass on; the second is an outcome like any
other, and must become an error. Taken for "the caller left", it once became the answer "done".
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


def is_cancelled() -> bool:
    """Whether the current task itself was asked to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def joined(task: asyncio.Task[T], ended: Exception) -> T:
    """The result of a task that several callers wait for. A caller that leaves does not take it along.

    Raises:
        ended: the task was cancelled, and the caller was not.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if is_cancelled() or not task.cancelled():
            raise
        raise ended from None
