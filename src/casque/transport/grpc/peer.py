"""A client for a shard of a ring, used by the other brokers of that ring."""

from __future__ import annotations

from typing import Any, TypeVar

from casque.service import ShardService
from casque.service.requests import Request
from casque.transport.grpc.client import GrpcService
from casque.transport.grpc.door import SHARD
from casque.transport.grpc.packets import Within, value_of
from casque.types import Reach

A = TypeVar("A")


class GrpcShard(GrpcService, ShardService):
    """Satisfies `ShardService` through the broker at one address. The broker requires the scope `peer`."""

    def __init__(self, address: str, shard: int, **options: Any) -> None:
        """`options` are those of `GrpcService`."""
        super().__init__(address, **options)
        self._metadata = (*self._metadata, (SHARD, str(shard)))

    def within(self, reach: Reach) -> GrpcShard:
        return _ShardWithin(self, reach)


class _ShardWithin(GrpcShard):
    """The same shard over the same connection; every request carries the limits of its caller."""

    def __init__(self, shard: GrpcShard, reach: Reach) -> None:
        self._shard = shard
        self._reach = reach

    async def _ask(self, request: Request[A]) -> A:
        exchange = self._shard._open_exchange()  # noqa: SLF001  another view of the same shard
        return value_of(request, await exchange.ask(Within(self._reach, request)))
