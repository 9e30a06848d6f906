"""What every call with one request and one response goes through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

from casque.errors import CasqueError
from casque.service import QueueService
from casque.tasks import is_cancelled
from casque.transport.grpc.door import Door
from casque.transport.grpc.refusals import abort, as_refusal, cut_off
from casque.transport.grpc.requests import sound

Request = TypeVar("Request")
Response = TypeVar("Response")


def unary(
    door: Door,
    verb: Callable[[QueueService, Request, Any], Awaitable[Response]],
    *,
    refuse: Callable[[Any, CasqueError], Awaitable[NoReturn]] = abort,
) -> Callable[[Request, Any], Awaitable[Response]]:
    """Let the caller in, find the queue, and turn a refusal into a status."""

    async def handle(request: Request, context: Any) -> Response:
        refusal: CasqueError
        try:
            return await verb(door.service(door.enter(context)), sound(request), context)
        except asyncio.CancelledError:
            if is_cancelled():
                raise  # its caller left, or the server's grace is over: gRPC ends the call, and not as OK
            refusal = cut_off()
        except Exception as error:  # noqa: BLE001  every call has an answer
            refusal = as_refusal(error)
        return await refuse(context, refusal)

    return handle
