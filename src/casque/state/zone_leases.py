"""Leases of whole zones: while one is held, only its holder is given the zone's jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from casque.errors import InvalidInputError, ZoneLeaseLostError
from casque.service.requests import HeartbeatZone, LeaseZone, ReleaseZone
from casque.state.events import ZoneBeaten, ZoneExpired, ZoneLeased, ZoneReleased
from casque.state.facet import Facet, Methods
from casque.types import ZoneLease

if TYPE_CHECKING:
    from casque.state.machine import State


class ZoneLeaseFacet(Facet[list[ZoneLease]]):
    STORED = "zone_leases"
    HANDLERS: ClassVar[Methods] = {LeaseZone: "lease_zone", HeartbeatZone: "beat_zone", ReleaseZone: "release_zone"}
    APPLIERS: ClassVar[Methods] = {
        ZoneLeased: "apply_zone_leased",
        ZoneBeaten: "apply_zone_beaten",
        ZoneReleased: "apply_zone_left",
        ZoneExpired: "apply_zone_left",
    }

    def __init__(self) -> None:
        self.by_zone: dict[str, ZoneLease] = {}
        """The index of turns between zones reads this very dict, and so does what a shard knows of its places."""

    def copied(self) -> list[ZoneLease]:
        return list(self.by_zone.values())

    def restore(self, state: State, data: list[ZoneLease]) -> None:
        concerned = set(self.by_zone)
        after = {lease.zone: lease for lease in data}
        self.by_zone.clear()
        self.by_zone.update(after)
        state.ready.fair.relist(concerned | after.keys())

    def has(self, zone: str, token: int) -> bool:
        lease = self.by_zone.get(zone)
        return lease is not None and lease.token == token

    def lease_zone(self, state: State, c: LeaseZone, now_ms: int) -> ZoneLease | None:
        held = self.by_zone.get(c.zone)
        if (seen := state.answers.seen(c, "lease_zone")) is not None:
            return held if held is not None and (c.zone, held.token) in seen.jobs else None
        if held is not None or c.zone not in state.zone_jobs:
            return None
        if len(self.by_zone) >= state.limits.zone_leases_max:
            raise InvalidInputError(f"{state.limits.zone_leases_max} zones are leased already: release some")
        assert c.lease_ms is not None, "the engine fills in what its settings say"
        event = ZoneLeased(c.zone, state.counters.tokens + 1, c.lease_ms, c.worker)
        state.happen(event, now_ms)
        if c.request_id is not None:
            state.answers.remember(state, c, "lease_zone", now_ms, jobs=((c.zone, event.token),))
        return self.by_zone[c.zone]

    def beat_zone(self, state: State, c: HeartbeatZone, now_ms: int) -> ZoneLease:
        if not self.has(c.zone, c.token):
            raise ZoneLeaseLostError(c.zone, c.token)
        state.happen(ZoneBeaten(c.zone, c.token), now_ms)
        return self.by_zone[c.zone]

    def release_zone(self, state: State, c: ReleaseZone, now_ms: int) -> None:
        if self.has(c.zone, c.token):
            state.happen(ZoneReleased(c.zone, c.token), now_ms)

    def apply_zone_leased(self, state: State, event: ZoneLeased, at_ms: int) -> None:
        self.changing(state)
        state.counters.tokens = event.token
        self.by_zone[event.zone] = ZoneLease(event.zone, event.token, event.lease_ms, event.worker, at_ms, at_ms)
        state.ready.fair.relist((event.zone,))

    def apply_zone_beaten(self, state: State, event: ZoneBeaten, at_ms: int) -> None:
        self.changing(state)
        lease = self.by_zone[event.zone]
        # Every beat differs from the one before, as those of jobs do.
        beat_ms = max(at_ms, lease.beat_ms + 1)
        self.by_zone[event.zone] = msgspec.structs.replace(lease, beat_ms=beat_ms)

    def apply_zone_left(self, state: State, event: ZoneReleased | ZoneExpired, at_ms: int) -> None:  # noqa: ARG002
        self.changing(state)
        del self.by_zone[event.zone]
        state.ready.fair.relist((event.zone,))
