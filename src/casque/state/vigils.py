"""Vigils: what processes that come and go have seen of leases, so that a lease ends although none of them stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from casque.state.commands import ObservedZone, Watch, Watching
from casque.state.events import Watched, ZoneExpired
from casque.state.facet import Facet, Methods
from casque.state.leases import end_lease, leased
from casque.types import Vigil

if TYPE_CHECKING:
    from casque.state.machine import State

DATED_FACTOR = 10
"""Time between visits, which only written times tell of, counts for a tenth of what they say."""
DATED_VISITS = 4
"""And no visit adds more of it than the fourth part of a lease: one clock that is wrong does not end any."""
VIGILS_MAX = 256
"""Leases of which visits are recorded at a time. When these have ended there is room for others."""


class VigilFacet(Facet[list[Vigil]]):
    STORED = "vigils"
    HANDLERS: ClassVar[Methods] = {Watch: "watch"}
    APPLIERS: ClassVar[Methods] = {Watched: "apply_watched"}

    def __init__(self) -> None:
        self.by_token: dict[int, Vigil] = {}
        """Some may be of leases that have ended: see `live`."""

    def copied(self) -> list[Vigil]:
        return list(self.by_token.values())

    def restore(self, state: State, data: list[Vigil]) -> None:  # noqa: ARG002
        self.by_token.clear()
        self.by_token.update({vigil.token: vigil for vigil in data})

    def stored(self, state: State) -> list[Vigil] | None:
        return self.live(state) or None

    def live(self, state: State) -> list[Vigil]:
        """What visits have seen of leases that are still as they were then."""
        return [self.by_token[token] for token in sorted(self.by_token) if _is_live(state, self.by_token[token])]

    def watch(self, state: State, c: Watch, now_ms: int) -> int:
        ended = 0
        room = VIGILS_MAX - len(self.live(state))
        for seen in c.leases:
            if (event := self.visited(state, seen, now_ms)) is None:
                continue
            known = self._known(seen)
            if known is None and room <= 0:
                continue
            room -= known is None
            state.happen(event, now_ms)
            vigil = self.by_token[event.token]
            lease = leased(state, event.subject, is_zone=event.is_zone)
            assert lease is not None
            if max(vigil.watched_ms, vigil.dated_ms) < lease.lease_ms:
                continue
            if isinstance(seen.lease, ObservedZone):
                state.happen(ZoneExpired(seen.lease.zone, seen.lease.token), now_ms)
            else:
                end_lease(state, state.jobs[seen.lease.job_id], now_ms)
            ended += 1
        return ended

    def visited(self, state: State, seen: Watching, now_ms: int) -> Watched | None:
        """What this visit adds to those before it; None if the lease was renewed meanwhile, or has ended."""
        lease = seen.lease
        subject, is_zone = (lease.zone, True) if isinstance(lease, ObservedZone) else (lease.job_id, False)
        found = leased(state, subject, is_zone=is_zone)
        if found is None or (found.token, found.beat_ms) != (lease.token, lease.beat_ms):
            return None
        if not found.lease_ms:
            return None  # a claim of jqueue's, which knows no leases
        known = self._known(seen)
        visits, until_ms = (0, found.beat_ms or 0) if known is None else (known.visits, known.until_ms)
        # A visit begins with a look that shows all visits before it. If another one was recorded since, the two may
        # have watched at the same time, and no moment may count twice.
        alone = seen.visits == visits
        watched_ms = seen.watched_ms if alone else 0
        # Only clocks that are ahead of all before them add anything here: going to and fro between clocks that differ
        # does not make time. Nor do several that leave at once: each came while the others were there.
        dated_ms = min(max(0, now_ms - until_ms) // DATED_FACTOR, -(-found.lease_ms // DATED_VISITS)) if alone else 0
        return Watched(subject, lease.token, watched_ms, dated_ms, is_zone)

    def _known(self, seen: Watching) -> Vigil | None:
        known = self.by_token.get(seen.lease.token)
        return known if known is not None and known.beat_ms == seen.lease.beat_ms else None

    def apply_watched(self, state: State, event: Watched, at_ms: int) -> None:
        self.changing(state)
        lease = leased(state, event.subject, is_zone=event.is_zone)
        assert lease is not None, "a visit of a lease that is not held"
        old = self.by_token.get(event.token)
        if old is None or old.beat_ms != lease.beat_ms:
            old = Vigil(event.subject, event.token, lease.beat_ms, until_ms=lease.beat_ms or 0, is_zone=event.is_zone)
        self.by_token[event.token] = Vigil(
            event.subject,
            event.token,
            old.beat_ms,
            visits=old.visits + 1,
            watched_ms=old.watched_ms + event.watched_ms,
            dated_ms=old.dated_ms + event.dated_ms,
            until_ms=max(old.until_ms, at_ms),
            is_zone=event.is_zone,
        )
        if len(self.by_token) > 2 * VIGILS_MAX:
            self.restore(state, self.live(state))


def _is_live(state: State, vigil: Vigil) -> bool:
    found = leased(state, vigil.subject, is_zone=vigil.is_zone)
    return found is not None and (found.token, found.beat_ms) == (vigil.token, vigil.beat_ms)
