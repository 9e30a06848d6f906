"""Handling shared by all calls with one request.

On the wire these are unary calls; here they are streams of which one message is read. Otherwise gRPC would receive the
whole request, which may be large, before this server could check its caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from casque.errors import CasqueError, InvalidInputError, NoLeaderError, UnknownOutcomeError
from casque.service import QueueService
from casque.tasks import is_cancelled
from casque.transport.errors import grpc_code
from casque.transport.grpc.door import ClosingError, Door
from casque.transport.grpc.open_calls import STOPPING, Handler
from casque.transport.grpc.refusals import abort, as_refusal, cut_off
from casque.transport.grpc.requests import parsed

Request = TypeVar("Request", bound=Message)
Code = Callable[[CasqueError], str]
"""Chooses the gRPC code of an error."""


def unary(
    door: Door,
    kind: type[Request],
    verb: Callable[[QueueService, Request, Any], Awaitable[Message]],
    *,
    code: Code = grpc_code,
) -> Handler:
    """A call with one response. It is written only after the verb has returned it."""

    async def work(service: QueueService, request: Request, context: Any, _name: str) -> None:
        await context.write(await verb(service, request, context))

    return one_request(door, kind, work, code=code)


def one_request(
    door: Door,
    kind: type[Request],
    work: Callable[[QueueService, Request, Any, str], Awaitable[None]],
    *,
    code: Code = grpc_code,
) -> Handler:
    """Admit the caller, then read its request, find the queue, and turn an error into a status."""

    async def handle(_requests: Any, context: Any) -> None:
        refusal: CasqueError
        try:
            async with door.entering(context) as (admitted, name):
                quotas = door.quotas
                quotas.rate.check(name)
                quotas.bytes.check(name)
                body = await door.staying(_read(context))
                if body is grpc.aio.EOF:
                    raise InvalidInputError("the call has no request")
                with quotas.bytes.held(name, len(body)):
                    await work(door.service(admitted), parsed(kind, body), context, name)
            return
        except asyncio.CancelledError:
            if is_cancelled():
                raise  # the caller left, or the server's grace period ended
            refusal = cut_off()
        except ClosingError:
            refusal = NoLeaderError(STOPPING)  # its request was never read
        except Exception as error:  # noqa: BLE001  every call has an answer
            refusal = as_refusal(error)
        in_doubt = isinstance(refusal, UnknownOutcomeError)
        # Callers of other languages go to another broker on UNAVAILABLE alone.
        await abort(context, refusal, code="UNAVAILABLE" if in_doubt and door.stopping else code(refusal))

    return door.open_calls.watched(handle)


async def _read(context: Any) -> Any:
    return await context.read()
