"""Records what a short-lived process has seen of others' leases.

A lease expires when one process has watched it for its whole length. Where every process is short-lived (cron,
functions, `--burst`) none ever does, so each records what it saw when it leaves, and the state adds that up. A
long-lived process does not need this, nor does one that only read: it writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from casque.clock import Clock
from casque.engine.reaper import LATE_MS, TICK_MS
from casque.state import Observed, ObservedZone, State, Watching
from casque.types import JobRecord, ZoneLease

SEEN_MAX = 1_000
"""Maximum number of leases recorded per visit."""
SILENT_PART = 2
"""A live holder renews its lease three times in its length: a lease renewed within this part of it is skipped, so that
visits to a healthy queue write nothing."""
WORTH_PART = 50
"""The part of a lease that a visit must add to be worth a commit: visits in quick
succession write only now and then."""


class Visit:
    """Call `begin` when the queue was read, `awake` now and then, `worth_recording` at the end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[int, tuple[int | None, int]] = {}
        """By token: the last renewal, and the number of visits recorded before this one."""
        self._awake_ms = 0
        self._watched_ms = 0

    def begin(self, state: State) -> None:
        visits = {vigil.token: vigil.visits for vigil in state.watched()}
        self._seen = {lease.token: (lease.beat_ms, visits.get(lease.token, 0)) for lease in _leases(state)}
        self._awake_ms, self._watched_ms = self._clock.monotonic_ms(), 0

    def awake(self) -> None:
        """This process is running. Time during which it was not does not count: a holder in this process could not have
        renewed its lease either."""
        now_ms = self._clock.monotonic_ms()
        self._watched_ms += min(now_ms - self._awake_ms, TICK_MS + LATE_MS)
        self._awake_ms = now_ms

    def worth_recording(self, state: State) -> tuple[Watching, ...]:
        """The observations of this visit that are worth recording, given this state."""
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
        # A lease that began or was renewed during this visit was not watched for the whole visit.
        watched_ms = self._watched_ms if visits >= 0 and beat_ms == lease.beat_ms else 0
        return Watching(observed, max(visits, 0), watched_ms)


def _is_worth_it(seen: Watching, lease_ms: int, state: State, now_ms: int) -> bool:
    adds, known = state.visited(seen, now_ms), state.vigils.get(seen.lease.token)
    if adds is None:
        return False
    watched_ms = adds.watched_ms + (known.watched_ms if known is not None else 0)
    silent_ms = max(watched_ms, now_ms - (seen.lease.beat_ms or 0))
    if silent_ms * SILENT_PART < lease_ms:
        return False
    return max(adds.watched_ms, adds.dated_ms) * WORTH_PART >= lease_ms


def _leases(state: State) -> Iterator[JobRecord | ZoneLease]:
    if state.running:
        yield from islice(state.leases(), SEEN_MAX)
    yield from islice(state.zone_leases.values(), SEEN_MAX)
