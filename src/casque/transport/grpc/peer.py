"""A shard of a ring behind the broker that leads it, for the other brokers of that ring."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from casque.service import Known, Place
from casque.transport.grpc.client import GrpcService
from casque.transport.grpc.door import SHARD
from casque.transport.grpc.line import Line
from casque.transport.grpc.packets import (
    AdoptCall,
    CopyGateCall,
    CopyZoneCall,
    Count,
    Done,
    DueCall,
    KnownCall,
    Knows,
    Named,
    WithinCall,
    expect,
)
from casque.types import Gate, Reach, ZoneRules


class GrpcShard(GrpcService):
    """Satisfies `ShardService` through the broker at one address, which takes it from those with the scope `peer`."""

    def __init__(self, address: str, shard: int, **options: Any) -> None:
        """`options` are those of `GrpcService`."""
        super().__init__(address, **options)
        self._metadata = (*self._metadata, (SHARD, str(shard)))

    def within(self, reach: Reach) -> GrpcShard:
        return _ShardWithin(self, reach)

    async def adopt(self, generation: int, size: int) -> int:
        line = self._open_line()
        answer = expect(await line.ask(AdoptCall(line.next_number(), generation, size)), Count)
        return answer.count

    async def known(
        self,
        job_ids: Sequence[str] = (),
        *,
        request_id: str | None = None,
        places: Sequence[Place] = (),
        admission: tuple[str, int] | None = None,
    ) -> Known:
        line = self._open_line()
        answer = expect(
            await line.ask(KnownCall(line.next_number(), tuple(job_ids), request_id, tuple(places), admission)), Knows
        )
        return answer.known

    async def copy_gate(self, gate: Gate, *, entrypoint: str | None, expected: Gate) -> None:
        line = self._open_line()
        expect(await line.ask(CopyGateCall(line.next_number(), gate, entrypoint, expected)), Done)

    async def copy_zone(self, zone: str, rules: ZoneRules, *, expected: ZoneRules) -> None:
        line = self._open_line()
        expect(await line.ask(CopyZoneCall(line.next_number(), zone, rules, expected)), Done)

    async def has_due(self, entrypoints: tuple[str, ...] | None, zones: tuple[str, ...] | None) -> bool:
        line = self._open_line()
        answer = expect(await line.ask(DueCall(line.next_number(), entrypoints, zones)), Count)
        return bool(answer.count)


class _ShardWithin(GrpcShard):
    """The same shard over the same connection. Every call says what its caller can reach."""

    def __init__(self, shard: GrpcShard, reach: Reach) -> None:
        self._shard = shard
        self._reach = reach

    def _open_line(self) -> Line:
        line = self._shard._open_line()  # noqa: SLF001  another view of the same shard
        return cast(Line, _LineWithin(line, self._reach))


class _LineWithin:
    """What calls that name jobs need of a line."""

    def __init__(self, line: Line, reach: Reach) -> None:
        self._line = line
        self._reach = reach
        self.next_number = line.next_number

    def ask(self, call: Named) -> asyncio.Future[Any]:
        return self._line.ask(WithinCall(call.number, self._reach, call))
