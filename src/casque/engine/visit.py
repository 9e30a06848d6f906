"""What a process that does not stay has seen of others' leases.

A lease ends when one process has watched it for its whole length. Where every process is short-lived (cron, functions,
`--burst`) none ever does, so each records what it saw when it leaves, and the state adds that up. A process that stays
needs none of this, and neither does one that only looked: it writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from casque.clock import Clock
from casque.engine.reaper import LATE_MS, TICK_MS
from casque.state import Observed, ObservedZone, State, Watching
from casque.types import JobRecord, ZoneLease

SEEN_MAX = 1_000
"""Leases that one visit takes note of."""
SILENT_PART = 2
"""A holder that is alive renews its lease three times in its length: one that was renewed within this part of it is of
no interest, so that visits of a queue that is well write nothing."""
WORTH_PART = 50
"""What a visit adds to be worth a commit: visits that follow one another closely write once in a while."""


class Visit:
    """`begin` when the queue was read, `awake` now and then, `worth_telling` at the end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[int, tuple[int | None, int]] = {}
        """By token: the last renewal, and the visits that were recorded before this one."""
        self._awake_ms = 0
        self._watched_ms = 0

    def begin(self, state: State) -> None:
        visits = {vigil.token: vigil.visits for vigil in state.watched()}
        self._seen = {lease.token: (lease.beat_ms, visits.get(lease.token, 0)) for lease in _leases(state)}
        self._awake_ms, self._watched_ms = self._clock.monotonic_ms(), 0

    def awake(self) -> None:
        """This process runs. Time in which it did not does not count: a holder in this very process could not have
        renewed its lease either."""
        now_ms = self._clock.monotonic_ms()
        self._watched_ms += min(now_ms - self._awake_ms, TICK_MS + LATE_MS)
        self._awake_ms = now_ms

    def worth_telling(self, state: State) -> tuple[Watching, ...]:
        """What should be recorded of this visit, by what is known of the queue."""
        if not state.running and not state.zone_leases:
            return ()
        self.awake()
        now_ms = self._clock.wall_ms()
        seen = [(self._watching(lease), lease.lease_ms) for lease in _leases(state)]
        return tuple([one for one, lease_ms in seen if _is_worth_it(one, lease_ms, state, now_ms)])

    def _watching(self, lease: JobRecord | ZoneLease) -> Watching:
        beat_ms, visits = self._seen.get(lease.token, (None, -1))
        observed: Observed | ObservedZone
        if isinstance(lease, ZoneLease):
            observed = ObservedZone(lease.zone, lease.token, lease.beat_ms)
        else:
            observed = Observed(lease.spec.id, lease.token, lease.beat_ms)
        # One that began or was renewed during this visit was not watched from its beginning.
        watched_ms = self._watched_ms if visits >= 0 and beat_ms == lease.beat_ms else 0
        return Watching(observed, max(visits, 0), watched_ms)


def _is_worth_it(seen: Watching, lease_ms: int, state: State, now_ms: int) -> bool:
    told, known = state.visited(seen, now_ms), state.vigils.get(seen.lease.token)
    if told is None:
        return False
    watched_ms = told.watched_ms + (known.watched_ms if known is not None else 0)
    silent_ms = max(watched_ms, now_ms - (seen.lease.beat_ms or 0))
    if silent_ms * SILENT_PART < lease_ms:
        return False
    return max(told.watched_ms, told.dated_ms) * WORTH_PART >= lease_ms


def _leases(state: State) -> Iterator[JobRecord | ZoneLease]:
    if state.running:
        yield from islice(state.leases(), SEEN_MAX)
    yield from islice(state.zone_leases.values(), SEEN_MAX)
