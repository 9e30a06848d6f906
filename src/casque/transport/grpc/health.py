"""grpc.health.v1: whether it makes sense to call this broker.

`""` and `casque.v1.Queue` are well while the broker leads, or stands by and knows who leads: casque's clients follow it
there. `osqueue.v1.QueueService` is well only while it leads, because its clients cannot follow.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from casque.service import Role
from casque.transport.grpc.door import Door

QUEUE = "casque.v1.Queue"
OSQUEUE = "osqueue.v1.QueueService"
LOOK_AGAIN_S = 1.0

_Status = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    def __init__(self, door: Door) -> None:
        self._door = door

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        status = self._status(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service!r} here")
        return _Status(status=status)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802
        closing = asyncio.create_task(self._door.closing.wait())
        said: Any = None
        try:
            while True:
                status = self._status(request.service)
                if status is None:
                    status = _Status.SERVICE_UNKNOWN
                if status != said:
                    await context.write(_Status(status=status))
                    said = status
                if closing.done():
                    return
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
