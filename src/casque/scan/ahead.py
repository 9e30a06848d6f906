"""Reads objects ahead of their use."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from casque.clock import yield_once

T = TypeVar("T")
R = TypeVar("R")


async def read_ahead(
    things: Iterable[T], read: Callable[[T], Coroutine[Any, Any, R]], *, ahead: int
) -> AsyncGenerator[tuple[T, R]]:
    """Each of them with what `read` returns for it, in order. While the caller uses one, the next ones are read."""
    reading: deque[tuple[T, asyncio.Task[R]]] = deque()
    left = iter(things)
    try:
        while True:
            while len(reading) < ahead and (one := next(left, None)) is not None:
                reading.append((one, asyncio.create_task(read(one))))
            if not reading:
                return
            await yield_once()  # start the requests before the caller decodes the next object
            one, task = reading.popleft()
            yield one, await task
    finally:
        for _, task in reading:
            task.cancel()
        await asyncio.gather(*(task for _, task in reading), return_exceptions=True)
