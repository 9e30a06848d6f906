"""Which leases of zones have run out: watched like those of jobs, by this process's own monotonic clock.

They are few, and last while many jobs come and go, so each is kept by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from casque.state import ObservedZone, State
from casque.types import ZoneLease


class _Watched(msgspec.Struct):
    lease: ObservedZone
    deadline_ms: int


class ZoneWatch:
    """When each of them would be over, if nobody renewed it."""

    def __init__(self) -> None:
        self._by_zone: dict[str, _Watched] = {}

    def begin(self, leases: Iterable[ZoneLease], now_ms: int) -> None:
        """From now on, at full length; one that looks as before keeps its deadline."""
        for lease in leases:
            looks = ObservedZone(lease.zone, lease.token, lease.beat_ms)
            known = self._by_zone.get(lease.zone)
            if known is None or known.lease != looks:
                self._by_zone[lease.zone] = _Watched(looks, now_ms + lease.lease_ms)

    def keep(self, zones: Iterable[str]) -> None:
        """Only these are leased."""
        kept = set(zones)
        self._by_zone = {zone: watched for zone, watched in self._by_zone.items() if zone in kept}

    def due(self, now_ms: int, state: State | None) -> Iterator[ObservedZone]:
        """Those that have gone their full length without a change, as far as that state knows."""
        for watched in list(self._by_zone.values()):
            if state is not None and not _looks_the_same(watched.lease, state):
                del self._by_zone[watched.lease.zone]
            elif watched.deadline_ms <= now_ms:
                yield watched.lease

    def again(self, lease: ObservedZone, state: State, now_ms: int) -> None:
        """It was taken back, or turned out to be alive: then it starts again at full length."""
        self._by_zone.pop(lease.zone, None)
        if (held := state.zone_leases.get(lease.zone)) is not None:
            self.begin([held], now_ms)

    def put_off(self, by_ms: int) -> None:
        for watched in self._by_zone.values():
            watched.deadline_ms += by_ms

    def next_deadline_ms(self) -> int | None:
        return min([watched.deadline_ms for watched in self._by_zone.values()], default=None)


def _looks_the_same(seen: ObservedZone, state: State) -> bool:
    lease = state.zone_leases.get(seen.zone)
    return lease is not None and (lease.token, lease.beat_ms) == (seen.token, seen.beat_ms)
