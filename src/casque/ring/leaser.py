"""Zones of a ring and their leases: found shard after shard, then identified by their token.

Every peek starts one shard further than the one before it, from a random first one, so that scanning workers soon
spread over the ring. A zone is in one shard at most, and stays there while it is leased, so one lease is enough.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from casque.environment import Environment
from casque.errors import ZoneLeaseLostError
from casque.ring.numbers import inner, lease_of, record_of
from casque.ring.shards import Shard, Shards, in_time
from casque.service.requests import Dequeue, HeartbeatZone, LeaseZone, PeekZones, ReleaseZone
from casque.types import JobRecord, PeekedZone, ZoneLease

R = TypeVar("R")


class Leaser:
    """Visits the shards for workers that lease zones."""

    def __init__(self, shards: Shards, env: Environment) -> None:
        self._shards = shards
        self._clock = env.clock
        self._turn = env.rng.getrandbits(32)

    async def peek(self, request: PeekZones) -> list[PeekedZone]:
        """From the next shard; if it does not have enough, from all others, too, in order. A shard that has no leader,
        or
        hangs, is skipped, unless it is the only one: workers then get the zones of the others."""

        def peeked(shard: Shard) -> Awaitable[list[PeekedZone]]:
            return shard.at_once(lambda one: one.call(request))

        first, *others = await self._from_next()
        if not others:
            return await first.service.call(request)
        found = await self._in_time([first], peeked)
        if sum(one.due for one in found) < request.limit:
            more = await self._in_time(others, peeked)
            # Due zones come first, in whichever shard.
            found = sorted([*found, *more], key=lambda one: not one.due)[: request.limit]
        return sorted(found, key=lambda one: (one.next_ms, one.zone))

    async def _in_time(
        self, shards: Sequence[Shard], ask: Callable[[Shard], Awaitable[list[PeekedZone]]]
    ) -> list[PeekedZone]:
        found: list[PeekedZone] = []
        for shard, answer in zip(shards, await in_time(map(ask, shards), clock=self._clock), strict=True):
            if not answer.done():
                answer.cancel()
            elif (error := answer.exception()) is None:
                found += answer.result()
            elif not shard.is_away(error):
                raise error
        return found

    async def lease(self, request: LeaseZone) -> ZoneLease | None:
        """From the shard that has the zone: only a shard with jobs of it grants a lease."""
        for shard in await self._homes(request.zone, request.request_id):
            lease = await shard.service.call(request)
            if lease is not None:
                return lease_of(lease, shard.token)
        return None

    async def _homes(self, zone: str, request_id: str | None) -> list[Shard]:
        """The shards that may have the zone. If one remembers the request, only that one: the zone may have moved
        since,
        and the request must not get a second lease there."""
        homes = await self._shards.several(self._shards.recent().homes(zone))
        if request_id is None or len(homes) == 1:
            return homes
        known = await self._shards.known(homes, (), request_id)
        return [shard for shard, knows in zip(homes, known, strict=True) if knows.request] or homes

    async def heartbeat(self, zone: str, token: int) -> ZoneLease:
        async def beat(shard: Shard, own: int) -> ZoneLease:
            return lease_of(await shard.service.call(HeartbeatZone(zone, own)), shard.token)

        return await self._at(zone, token, beat)

    async def release(self, zone: str, token: int) -> None:
        own, number = inner(token)
        if (shard := await self._known(number)) is not None:
            await shard.service.call(ReleaseZone(zone, own))

    async def dequeue(self, request: Dequeue, zone: str, token: int) -> list[JobRecord]:
        async def claim(shard: Shard, own: int) -> list[JobRecord]:
            claimed = await shard.service.call(msgspec.structs.replace(request, zone_lease=(zone, own), first=False))
            return [record_of(job, shard.token) for job in claimed]

        return await self._at(zone, token, claim)

    async def _at(self, zone: str, token: int, call: Callable[[Shard, int], Awaitable[R]]) -> R:
        """Call the shard of a lease, with the shard's own token."""
        own, number = inner(token)
        if (shard := await self._known(number)) is None:
            raise ZoneLeaseLostError(zone, token)
        try:
            return await call(shard, own)
        except ZoneLeaseLostError:
            raise ZoneLeaseLostError(zone, token) from None

    async def _known(self, number: int) -> Shard | None:
        """A caller that names an unknown shard may know a newer ring."""
        if number >= self._shards.head.shards:
            await self._shards.refresh()
        return await self._shards.shard(number) if number < self._shards.head.shards else None

    async def _from_next(self) -> list[Shard]:
        shards = await self._shards.walked()
        self._turn += 1
        first = self._turn % len(shards)
        return shards[first:] + shards[:first]
