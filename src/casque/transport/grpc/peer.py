"""A shard of a ring behind the broker that leads it, for the other brokers of that ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from casque.service import Known, Place
from casque.transport.grpc.client import GrpcService
from casque.transport.grpc.door import SHARD
from casque.transport.grpc.packets import AdoptCall, CopyGateCall, CopyZoneCall, DueCall, KnownCall
from casque.types import Gate, ZoneRules


class GrpcShard(GrpcService):
    """Satisfies `ShardService` through the broker at one address, which takes it from those with the scope `peer`."""

    def __init__(self, address: str, shard: int, **options: Any) -> None:
        """`options` are those of `GrpcService`."""
        super().__init__(address, **options)
        self._metadata = (*self._metadata, (SHARD, str(shard)))

    async def adopt(self, generation: int, size: int) -> int:
        line = self._open_line()
        answer = await line.ask(AdoptCall(line.next_number(), generation, size))
        known: int = answer.count
        return known

    async def known(
        self,
        job_ids: Sequence[str] = (),
        *,
        request_id: str | None = None,
        places: Sequence[Place] = (),
        admission: tuple[str, int] | None = None,
    ) -> Known:
        line = self._open_line()
        answer = await line.ask(KnownCall(line.next_number(), tuple(job_ids), request_id, tuple(places), admission))
        known: Known = answer.known
        return known

    async def copy_gate(self, gate: Gate, *, entrypoint: str | None, expected: Gate) -> None:
        line = self._open_line()
        await line.ask(CopyGateCall(line.next_number(), gate, entrypoint, expected))

    async def copy_zone(self, zone: str, rules: ZoneRules, *, expected: ZoneRules) -> None:
        line = self._open_line()
        await line.ask(CopyZoneCall(line.next_number(), zone, rules, expected))

    async def has_due(self, entrypoints: tuple[str, ...] | None, zones: tuple[str, ...] | None) -> bool:
        line = self._open_line()
        answer = await line.ask(DueCall(line.next_number(), entrypoints, zones))
        return bool(answer.count)
