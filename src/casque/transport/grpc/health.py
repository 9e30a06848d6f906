"""grpc.health.v1: whether this broker can serve calls.

`""` and `casque.v1.Queue` are SERVING while the broker leads, or stands by and knows the leader: casque's clients
follow it there. `osqueue.v1.QueueService` is SERVING only while the broker leads, because its clients cannot follow.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from casque.errors import CasqueError, InvalidInputError, NoLeaderError
from casque.service import Role
from casque.transport.grpc.door import ClosingError, Door
from casque.transport.grpc.open_calls import STOPPING, Handler
from casque.transport.grpc.refusals import abort
from casque.transport.grpc.requests import parsed

HEALTH = "grpc.health.v1.Health"
QUEUE = "casque.v1.Queue"
OSQUEUE = "osqueue.v1.QueueService"
LOOK_AGAIN_S = 1.0
READ_S = 5.0
READ_AT_ONCE = 4
REQUEST_BYTES = 300

_Status = health_pb2.HealthCheckResponse


class Health:
    """Health checks need no token, so they get few places and little time to send their request: gRPC's limit on the
    size of a message is that of the largest payload."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._reading = asyncio.Semaphore(READ_AT_ONCE)

    def handler(self) -> grpc.GenericRpcHandler:
        behaviours = {"Check": self._check, "Watch": self._watch}
        handlers = {
            name: grpc.stream_stream_rpc_method_handler(self._bounded(behaviour), None, _Status.SerializeToString)
            for name, behaviour in behaviours.items()
        }
        return grpc.method_handlers_generic_handler(HEALTH, handlers)

    def _bounded(self, behaviour: Handler) -> Handler:
        async def handle(_requests: Any, context: Any) -> None:
            refusal: CasqueError
            try:
                with self._door.quotas.health(context):
                    await behaviour(await self._request(context), context)
                return
            except CasqueError as error:
                refusal = error
            await abort(context, refusal)

        return self._door.open_calls.watched(handle)

    async def _request(self, context: Any) -> Any:
        try:
            async with asyncio.timeout(READ_S), self._reading:
                body = await self._door.staying(_read(context))
        except ClosingError:
            raise NoLeaderError(STOPPING) from None
        except TimeoutError:
            raise InvalidInputError(f"the request did not come within {READ_S:g} s") from None
        if body is grpc.aio.EOF or len(body) > REQUEST_BYTES:
            raise InvalidInputError("a health check asks about one service by its name")
        return parsed(health_pb2.HealthCheckRequest, body)

    async def _check(self, request: Any, context: Any) -> None:
        status = self._status(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service!r} here")
        await context.write(_Status(status=status))

    async def _watch(self, request: Any, context: Any) -> None:
        closing = asyncio.create_task(self._door.closing.wait())
        written: Any = None
        try:
            while True:
                status = self._status(request.service)
                if status is None:
                    status = _Status.SERVICE_UNKNOWN
                if status != written:
                    await context.write(_Status(status=status))
                    written = status
                if closing.done():
                    raise NoLeaderError(STOPPING)
                await asyncio.wait({closing}, timeout=LOOK_AGAIN_S)
        finally:
            closing.cancel()

    def _status(self, service: str) -> Any:
        if service not in ("", QUEUE, OSQUEUE):
            return None
        standing = self._door.host.standing()
        leads = standing.role is Role.LEADER
        follows = standing.role is Role.STANDBY and standing.leader is not None and service != OSQUEUE
        well = (leads or follows) and not self._door.closing.is_set()
        return _Status.SERVING if well else _Status.NOT_SERVING


async def _read(context: Any) -> Any:
    return await context.read()
