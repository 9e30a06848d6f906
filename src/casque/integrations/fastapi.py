"""An app of casque's in FastAPI, or in another ASGI framework whose lifespans are context managers, such as Starlette.

    jobs = casque.App("s3://bucket/orders")
    api = FastAPI(lifespan=lifespan(jobs))
    get_queue = queue_of(jobs)

    @api.post("/orders", status_code=202)
    async def add(order: Order) -> dict[str, str]:
        return {"job": (await ship.enqueue(order)).id}

    @api.get("/depth")
    async def depth(queue: Annotated[Queue[bytes], Depends(get_queue)]) -> int:
        return (await queue.stats()).totals.ready

FastAPI itself is not imported here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from casque.client.queue import Queue
from casque.errors import QueueClosedError
from casque.functions.app import App

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
"""What FastAPI takes as `lifespan`."""


def lifespan(app: App, also: Lifespan | None = None) -> Lifespan:
    """A lifespan that has the app's queue open while the server runs, once in each of its processes.

    `also`: a lifespan of your own, inside of this one; the state that it yields is passed on. An app that is open
    already, as in a test, is left to those who opened it.

    >>> import asyncio
    >>> import casque
    >>> jobs = casque.App("memory://lifespan-example")
    >>> @jobs.job()
    ... async def send(to: str) -> None: ...
    >>> async def main():
    ...     async with lifespan(jobs)(None):  # FastAPI does this
    ...         print(await (await send.enqueue("ada")).status())
    >>> asyncio.run(main())
    ready
    """

    @asynccontextmanager
    async def opened(server: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(app)
            except QueueClosedError:
                pass  # it is open already
            yield None if also is None else await stack.enter_async_context(also(server))

    return opened


def queue_of(app: App) -> Callable[[], Awaitable[Queue[bytes]]]:
    """A dependency: the app's open queue, for what its functions do not cover.

    Keep what this returns and use it in every `Depends`: a test replaces it in `dependency_overrides`.

    >>> import asyncio
    >>> import casque
    >>> jobs = casque.App("memory://dependency-example")
    >>> get_queue = queue_of(jobs)
    >>> async def main():
    ...     async with jobs:
    ...         return (await (await get_queue()).stats()).totals.ready
    >>> asyncio.run(main())
    0
    """

    async def get_queue() -> Queue[bytes]:
        """Raises QueueClosedError if the server has no lifespan that opens the app."""
        try:
            return app.queue
        except QueueClosedError as error:
            raise QueueClosedError(
                "the app's queue is not open: give the server `lifespan=casque.integrations.fastapi.lifespan(app)`, or "
                "in a test put a queue in the place of this dependency"
            ) from error

    return get_queue
