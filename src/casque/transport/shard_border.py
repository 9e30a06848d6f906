"""The border of a shard: what one broker of a ring asks another is checked like what comes from outside.

It has passed a border once, at the broker that was asked first. That one may be of another release, misconfigured or
somebody else who got hold of its credential, and what is committed here is read by every leader to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from casque import checks
from casque.codec.ring import SHARDS_MAX
from casque.codec.staged import checked_parts
from casque.errors import InvalidInputError, NotAllowedError
from casque.service import Known, Place, QueueService, ShardService
from casque.transport import audit
from casque.transport.access import TokenBook
from casque.transport.audited import Audited
from casque.transport.border import DEFAULT_LIMITS, Admit, Border, Limits, Wrapper
from casque.transport.scopes import ANYBODY, Principal, Scope
from casque.types import Admission, Gate, JobRecord, JobSpec, Reach, StagedPart, ZoneRules

DERIVED_MAX = 4 * checks.NAME_MAX
"""A ring makes ids and sources for its shards from those that callers gave, which are longer."""
GENERATION_MAX = 2**53
ASKED_MAX = 10_000
"""Jobs, zones and keys that a shard is asked for in one call."""


def admit_peers(book: TokenBook | None, limits: Limits = DEFAULT_LIMITS) -> Admit:
    """The hook for other brokers of a ring: with a token of the scope `peer`, which is for nothing else. Without a
    book everybody who reaches the broker is one."""

    def admitted(authorization: str | None) -> Wrapper:
        principal = None if book is None else as_peer(book.principal_for(authorization))
        border: ShardBorder | None = None
        audited: Audited | None = None

        def current(service: QueueService) -> QueueService:
            nonlocal audited, border
            if book is not None and principal is not None:
                as_peer(book.current(principal))
            audit.calls_as(principal or ANYBODY)
            if border is None or audited is None or border.service is not service:
                border = ShardBorder(service, limits)  # type: ignore[arg-type]  # what peers come for are shards
                audited = Audited(border)
            return cast(QueueService, audited)

        return current

    return admitted


def as_peer(principal: Principal) -> Principal:
    """
    Raises:
        NotAllowedError: this is none. `admin` is not enough: it is for people, and goes where they go.
    """
    if principal.limited or not principal.may(Scope.PEER):
        raise NotAllowedError(Scope.PEER.value, "what brokers of a ring ask each other")
    return principal


class ShardBorder(Border):
    """Satisfies `ShardService` in front of a shard. Another broker may do everything, if it is well-formed."""

    service: ShardService

    def __init__(self, service: ShardService, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(service, ANYBODY, limits)
        self._shard = service

    def within(self, reach: Reach) -> ShardBorder:
        for entrypoint in reach.entrypoints or ():
            checks.entrypoint(entrypoint)
        for zone in reach.zones or ():
            checks.zone(zone)
        return ShardBorder(self._shard.within(reach), self._limits)

    async def enqueue(
        self, specs: Sequence[JobSpec], *, request_id: str | None = None, generation: int = 0
    ) -> Sequence[JobRecord]:
        _check_request_id(request_id)
        _check_generation(generation, 0)
        self._check_specs(specs)
        return await self._shard.enqueue(specs, request_id=request_id, generation=generation)

    async def admit(
        self,
        source: str,
        batch: int,
        parts: Sequence[StagedPart],
        *,
        skip_known: bool = False,
        generation: int = 0,
    ) -> Admission:
        checks.name("source", source, DERIVED_MAX)
        checks.batch(batch)
        # Without parts it is said that nothing of this batch will ever come.
        checked = checked_parts(parts) if parts else ()
        checks.flag("skip_known", skip_known)
        _check_generation(generation, 0)
        return await self._shard.admit(source, batch, checked, skip_known=skip_known, generation=generation)

    async def adopt(self, generation: int, size: int) -> int:
        # With generation 0 it is only asked what it knows.
        _check_generation(generation, 0)
        checks.whole("size", size, 1 if generation else 0, SHARDS_MAX)
        return await self._shard.adopt(generation, size)

    async def known(
        self,
        job_ids: Sequence[str] = (),
        *,
        request_id: str | None = None,
        places: Sequence[Place] = (),
        admission: tuple[str, int] | None = None,
    ) -> Known:
        for asked in (job_ids, places):
            if len(asked) > ASKED_MAX:
                raise InvalidInputError(f"a shard is asked for at most {ASKED_MAX:,} names at once, not {len(asked):,}")
        for job_id in job_ids:
            checks.job_id(job_id)
        for is_zone, name in places:
            checks.flag("is_zone", is_zone)
            checks.name("place", name, max(checks.NAME_MAX, checks.KEY_MAX))
        _check_request_id(request_id)
        if admission is not None:
            checks.name("source", admission[0], DERIVED_MAX)
            checks.batch(admission[1])
        return await self._shard.known(job_ids, request_id=request_id, places=places, admission=admission)

    async def copy_gate(self, gate: Gate, *, entrypoint: str | None, expected: Gate) -> None:
        if entrypoint is not None:
            checks.entrypoint(entrypoint)
        await self._shard.copy_gate(checks.gate(gate), entrypoint=entrypoint, expected=checks.gate(expected))

    async def copy_zone(self, zone: str, rules: ZoneRules, *, expected: ZoneRules) -> None:
        checks.zone(zone)
        checks.zone_rules(rules)
        checks.zone_rules(expected)
        await self._shard.copy_zone(zone, rules, expected=expected)

    async def has_due(self, entrypoints: tuple[str, ...] | None, zones: tuple[str, ...] | None) -> bool:
        if entrypoints is not None:
            self._check_entrypoints(entrypoints)
        if zones is not None:
            self._check_zones(zones)
        return await self._shard.has_due(entrypoints, zones)


def _check_request_id(request_id: Any) -> None:
    if request_id is not None:
        checks.name("request_id", request_id, DERIVED_MAX)


def _check_generation(generation: Any, least: int) -> None:
    checks.whole("generation", generation, least, GENERATION_MAX)
