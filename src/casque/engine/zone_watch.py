"""Detects expired zone leases: watched like those of jobs, by this process's own monotonic clock.

They have any length and last while many jobs come and go, so each is tracked by itself, and its end is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import count

import msgspec

from casque.state import ObservedZone, State
from casque.types import ZoneLease


class _Watched(msgspec.Struct, eq=False):
    lease: ObservedZone
    deadline_ms: int


class ZoneWatch:
    """Deadlines of zone leases, unless they are renewed. Outdated entries of the heap are
    recognised when they come up."""

    def __init__(self) -> None:
        self._by_zone: dict[str, _Watched] = {}
        self._heap: list[tuple[int, int, _Watched]] = []
        self._stamps = count()

    def note(self, zones: Iterable[str], state: State, now_ms: int) -> None:
        """These were leased, renewed or released. An unchanged one keeps its deadline."""
        for zone in zones:
            lease, known = state.zone_leases.get(zone), self._by_zone.get(zone)
            if lease is None:
                self._by_zone.pop(zone, None)
            elif known is None or known.lease != _seen(lease):
                self._watch(_Watched(_seen(lease), now_ms + lease.lease_ms))

    def resync(self, state: State, now_ms: int) -> None:
        self.note([*self._by_zone, *state.zone_leases], state, now_ms)

    def due(self, now_ms: int, state: State) -> list[ObservedZone]:
        """Leases that have gone their full length without a change, as far as that state knows."""
        found: list[_Watched] = []
        while (first := self._first()) is not None and first.deadline_ms <= now_ms:
            heappop(self._heap)
            if _looks_the_same(first.lease, state):
                found.append(first)
            else:
                del self._by_zone[first.lease.zone]
        for watched in found:
            self._watch(watched)  # until the outcome is known
        return [watched.lease for watched in found]

    def again(self, lease: ObservedZone, state: State, now_ms: int) -> None:
        """It was taken back, or turned out to be alive: then it starts again at full length."""
        self._by_zone.pop(lease.zone, None)
        self.note([lease.zone], state, now_ms)

    def put_off(self, by_ms: int) -> None:
        for watched in self._by_zone.values():
            watched.deadline_ms += by_ms
        self._heap = [(watched.deadline_ms, next(self._stamps), watched) for watched in self._by_zone.values()]
        heapify(self._heap)

    def next_deadline_ms(self) -> int | None:
        first = self._first()
        return None if first is None else first.deadline_ms

    def _watch(self, watched: _Watched) -> None:
        self._by_zone[watched.lease.zone] = watched
        heappush(self._heap, (watched.deadline_ms, next(self._stamps), watched))

    def _first(self) -> _Watched | None:
        heap = self._heap
        while heap:
            watched = heap[0][2]
            if self._by_zone.get(watched.lease.zone) is watched:
                return watched
            heappop(heap)
        return None


def _seen(lease: ZoneLease) -> ObservedZone:
    return ObservedZone(lease.zone, lease.token, lease.beat_ms)


def _looks_the_same(seen: ObservedZone, state: State) -> bool:
    lease = state.zone_leases.get(seen.zone)
    return lease is not None and _seen(lease) == seen
