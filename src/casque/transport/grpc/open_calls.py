"""The calls of one server that have no status yet, and how they end when the server stops.

A call that gRPC ends by itself is CANCELLED for its caller, who then cannot know that another broker would serve it. So
this server ends every call with a status of its own, and shuts gRPC down only when no more calls are coming in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from casque.clock import Clock
from casque.errors import NoLeaderError
from casque.transport.grpc.refusals import abort, cut_off

Handler = Callable[[Any, Any], Awaitable[None]]

STOPPING = "this one is stopping"
QUIET_S = (*[0.05] * 6, *[0.01] * 10)
"""Calls are held until none has come for this long, tried in turn: a caller that repeats its call at once has done so
within the first. Callers that send without waiting for answers may leave no such gap, and are not waited for."""


class OpenCalls:
    """Every handler of a server runs within `watched`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._cut_off: set[asyncio.Task[Any]] = set()
        self._begun = 0
        self._held: asyncio.Event | None = None
        """Set while new calls are held back: their callers must not send another one before gRPC refuses it."""

    def watched(self, handler: Handler) -> Handler:
        async def handle(requests: Any, context: Any) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._begun += 1
            if self._held is not None:
                await self._held.wait()
                await abort(context, NoLeaderError(STOPPING))
            self._tasks[task] = None
            try:
                await handler(requests, context)
            except asyncio.CancelledError:
                # A task that gRPC cancelled as well has lost its caller.
                if task not in self._cut_off or task.cancelling() > 1:
                    raise
                task.uncancel()
            else:
                return
            finally:
                del self._tasks[task]
                self._cut_off.discard(task)
            await abort(context, cut_off(), code="UNAVAILABLE")

        return handle

    async def end(self, within_s: float) -> None:
        """Let the calls under way end by themselves; after this time, end them as UNAVAILABLE."""
        under_way = list(self._tasks)
        if not under_way:
            return
        limit = asyncio.create_task(self._clock.sleep(within_s))
        ended = asyncio.create_task(_all(under_way))
        await asyncio.wait({limit, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            self._cut_off.add(task)
            task.cancel()
        for waiting in (limit, ended):
            waiting.cancel()
        await asyncio.gather(limit, ended, return_exceptions=True)

    async def hold(self) -> None:
        """Hold new calls back until no more come, within a part of a second."""
        self._held = asyncio.Event()
        if not self._begun:
            return
        for quiet_s in QUIET_S:
            begun = self._begun
            await self._clock.sleep(quiet_s)
            if self._begun == begun:
                return

    def release(self) -> None:
        """Refuse the calls that are held. Call it once gRPC has begun to shut down."""
        assert self._held is not None, "hold() comes first"
        self._held.set()


async def _all(tasks: list[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks)
