"""Leases of zones: one at a time, given because somebody asked, renewed by its holder, and ended by it or by time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from casque.types import ZoneLease
from simulation.world.asked import Request, Told, Verb
from simulation.world.invariants import Invariant
from simulation.world.vigils import length_s

if TYPE_CHECKING:
    from casque.state import State
    from simulation.world.history import History
    from simulation.world.life import Life
    from simulation.world.past_state import AnyState

CLOCK_GRAIN_S = 0.005


class Tenancy:
    """One lease on a zone."""

    __slots__ = ("beaten_at", "holder", "touched_at", "zone")

    def __init__(self, zone: str, landed_at: float) -> None:
        self.zone = zone
        self.touched_at = landed_at
        """When it was given or renewed last."""
        self.beaten_at = -1.0
        self.holder: Request | None = None
        """The request that was answered with it."""


def check_tenancies(h: History, old: AnyState, new: State, sender: Life) -> None:
    """One commit."""
    for zone in sorted(old.zone_leases.keys() | new.zone_leases.keys()):
        before, after = old.zone_leases.get(zone), new.zone_leases.get(zone)
        if before == after:
            continue
        if before is not None and after is not None and before.token == after.token:
            _check_beaten(h, before)
            continue
        if before is not None:
            _check_ended(h, old, before, sender)
        if after is not None:
            _check_given(h, old, new, after)


def _check_given(h: History, old: AnyState, new: State, lease: ZoneLease) -> None:
    h.demand(
        old.counters.tokens < lease.token <= new.counters.tokens and lease.token not in h.tenancies,
        Invariant.TOKENS,
        lambda: f"the zone {lease.zone} was leased with the token {lease.token}, which is not a new one",
    )
    h.demand(
        any(request.possible for request in h.on_zone(lease.zone, Verb.LEASE_ZONE)),
        Invariant.CAUSED,
        lambda: f"the zone {lease.zone} was leased, and nobody asked for it",
    )
    h.tenancies[lease.token] = Tenancy(lease.zone, h.now())


def _check_beaten(h: History, lease: ZoneLease) -> None:
    h.demand(
        any(r.possible and r.zone_token == lease.token for r in h.on_zone(lease.zone, Verb.BEAT_ZONE)),
        Invariant.TOKENS,
        lambda: f"the lease {lease.token} on the zone {lease.zone} was renewed by nobody who holds it",
    )
    tenancy = h.tenancies[lease.token]
    tenancy.touched_at = tenancy.beaten_at = h.now()


def _check_ended(h: History, old: AnyState, lease: ZoneLease, sender: Life) -> None:
    released = any(
        request.possible and request.zone_token == lease.token for request in h.on_zone(lease.zone, Verb.RELEASE_ZONE)
    )
    # A queue releases what it was given for a caller that had left, unless that may ask again with the same id.
    released = released or (
        h.tenancies[lease.token].holder is None
        and any(
            call.told is Told.LEFT
            for request in h.on_zone(lease.zone, Verb.LEASE_ZONE)
            if request.request_id is None
            for call in request.calls
        )
    )
    lasted_s = h.now() - h.tenancies[lease.token].touched_at
    full_s = length_s(old, lease, sender)
    h.demand(
        released or lasted_s >= full_s - CLOCK_GRAIN_S,
        Invariant.LEASE,
        lambda: f"the lease {lease.token} on the zone {lease.zone} ended after {lasted_s:.3f} of {full_s:.3f} s",
    )
