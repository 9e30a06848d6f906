"""The border of a shard: requests from another broker of a ring are checked like requests from outside.

A request has passed a border already, at the broker that received it. But that broker may run another release or be
misconfigured, or an attacker may hold its credential, and every later leader reads what is committed here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, cast

import msgspec

from casque import checks
from casque.codec.ring import SHARDS_MAX
from casque.codec.staged import checked_parts
from casque.errors import InvalidInputError, NotAllowedError
from casque.service import Known, QueueService, ShardService, requests
from casque.service.requests import Adopt, AskKnown, CopyGate, CopyZone, Enqueue, HasDue
from casque.transport import arguments, audit
from casque.transport.access import TokenBook
from casque.transport.audited import Audited
from casque.transport.border import Admit, Border, Wrapper
from casque.transport.limits import DEFAULT_LIMITS, Limits
from casque.transport.scopes import ANYBODY, Principal, Scope
from casque.types import Admission, JobRecord, Reach

DERIVED_MAX = 4 * checks.NAME_MAX
"""Limit for the ids and sources that a ring derives for its shards; they are longer than those of callers."""
GENERATION_MAX = 2**53
ASKED_MAX = 10_000
"""Maximum number of jobs, zones or keys in one request to a shard."""


def admit_peers(book: TokenBook | None, limits: Limits = DEFAULT_LIMITS) -> Admit:
    """The hook for other brokers of a ring. It requires a token of the scope `peer`, which allows nothing else. Without
    a book, every caller that reaches the broker counts as a peer."""

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
                border = ShardBorder(cast(ShardService, service), limits)  # peers only ever call shards
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


class ShardBorder(Border, ShardService):
    """Satisfies `ShardService` in front of a shard. Another broker may make any well-formed request."""

    service: ShardService

    def __init__(self, service: ShardService, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(service, ANYBODY, limits)
        self._shard = service
        self._scopes = frozenset(Scope)

    def within(self, reach: Reach) -> ShardBorder:
        for entrypoint in reach.entrypoints or ():
            checks.entrypoint(entrypoint)
        for zone in reach.zones or ():
            checks.zone(zone)
        return ShardBorder(self._shard.within(reach), self._limits)

    def _with_own_id(self, request: Any) -> Any:
        checks.name("request_id", request.request_id, DERIVED_MAX if type(request) is Enqueue else checks.NAME_MAX)
        return request

    async def _enqueue(self, request: Enqueue) -> Sequence[JobRecord]:
        _check_generation(request.generation)
        arguments.check_specs(request.specs, self._limits)
        return await self._shard.call(request)

    def _admit(self, request: requests.Admit) -> Awaitable[Admission]:
        checks.name("source", request.source, DERIVED_MAX)
        checks.batch(request.batch)
        # No parts means that nothing of this batch will ever come.
        checked = checked_parts(request.parts) if request.parts else ()
        checks.flag("skip_known", request.skip_known)
        _check_generation(request.generation)
        return self._shard.call(msgspec.structs.replace(request, parts=checked))

    def _adopt(self, request: Adopt) -> Awaitable[int]:
        # Generation 0 only asks what the shard knows.
        _check_generation(request.generation)
        checks.whole("size", request.size, 1 if request.generation else 0, SHARDS_MAX)
        return self._shard.call(request)

    def _known(self, request: AskKnown) -> Awaitable[Known]:
        for asked in (request.job_ids, request.places):
            if len(asked) > ASKED_MAX:
                raise InvalidInputError(f"a shard is asked for at most {ASKED_MAX:,} names at once, not {len(asked):,}")
        for job_id in request.job_ids:
            checks.job_id(job_id)
        for is_zone, name in request.places:
            checks.flag("is_zone", is_zone)
            checks.name("place", name, max(checks.NAME_MAX, checks.KEY_MAX))
        if request.of_request is not None:
            checks.name("of_request", request.of_request, DERIVED_MAX)
        if request.admission is not None:
            checks.name("source", request.admission[0], DERIVED_MAX)
            checks.batch(request.admission[1])
        return self._shard.call(request)

    def _copy_gate(self, request: CopyGate) -> Awaitable[None]:
        if request.entrypoint is not None:
            checks.entrypoint(request.entrypoint)
        checks.gate(request.gate)
        checks.position("since", request.since)
        return self._shard.call(request)

    def _copy_zone(self, request: CopyZone) -> Awaitable[None]:
        checks.zone(request.zone)
        checks.zone_rules(request.rules)
        checks.position("since", request.since)
        return self._shard.call(request)

    def _has_due(self, request: HasDue) -> Awaitable[bool]:
        if request.entrypoints is not None:
            arguments.check_entrypoints(request.entrypoints, self._limits)
        if request.zones is not None:
            arguments.check_zones(request.zones)
        return self._shard.call(request)


def _check_generation(generation: Any) -> None:
    checks.whole("generation", generation, 0, GENERATION_MAX)
