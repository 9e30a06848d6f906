"""A shard that writes every administrative call to the audit log."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, TypeVar

from casque.service import ShardService
from casque.service.requests import Request
from casque.transport import audit
from casque.types import Reach

A = TypeVar("A")


class Audited(ShardService):
    """Passes everything on to a shard. Used for the port through which the brokers of a ring call each other: a broker
    has already logged the call that it forwards, but other holders of a broker's credential have not."""

    def __init__(self, shard: ShardService) -> None:
        self._shard = shard

    def within(self, reach: Reach) -> Audited:
        return Audited(self._shard.within(reach))

    async def call(self, request: Request[A]) -> A:
        if not request.audited:
            return await self._shard.call(request)
        with audit.recorded(request):
            return await self._shard.call(request)

    def events(self, **asked: Any) -> AsyncGenerator[Any]:
        return self._shard.events(**asked)

    def archive(self, **asked: Any) -> AsyncGenerator[Any]:
        return self._shard.archive(**asked)
