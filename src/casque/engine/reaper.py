"""Detects expired leases by this process's own monotonic clock.

A lease is watched from the moment this process saw it, and again from the moment it saw it renewed. A time written by
another machine is never compared with a clock here; a lease seen late is merely taken back late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import TypeAlias

import msgspec

from casque.engine.zone_watch import ZoneWatch
from casque.environment import Environment
from casque.state import (
    Advanced,
    Beaten,
    Claimed,
    Event,
    Observed,
    ObservedZone,
    State,
    ZoneBeaten,
    ZoneExpired,
    ZoneLeased,
    ZoneReleased,
)
from casque.types import JobRecord, JobState

_RENEWED = frozenset({Beaten, Advanced})
_ZONES = frozenset({ZoneLeased, ZoneBeaten, ZoneReleased, ZoneExpired})
TAKEN_BACK_AT_ONCE = 1_000
TICK_MS = 1_000
"""How often the clock is checked while leases are watched."""
LATE_MS = 2_000
SLACK = 1_000
"""Number of ended leases that may still be watched, on top of the number of running jobs."""
_RUNNING = JobState.RUNNING
_lease_ms = attrgetter("lease_ms")

_Lease: TypeAlias = Claimed | Observed
"""A watched lease. The event of a claim, which exists already, is enough to recognise a lease not renewed since."""


class _Seen(msgspec.Struct, eq=False):
    """Leases of one length seen at one moment, usually those of one commit."""

    length: int
    deadline_ms: int
    leases: deque[_Lease]


class Reaper:
    """Watches running jobs. Leases of one length run out in the order they were seen, so no search is needed.

    The end or renewal of a lease is not recorded: it shows when the lease's time is up, or when too many of the watched
    ones have ended. Most jobs end long before their lease does, so this costs less than recording each end.
    """

    def __init__(self, env: Environment) -> None:
        self._clock = env.clock
        self._rng = env.rng
        self._lease_ms = env.settings.lease_ms
        self._by_length: dict[int, deque[_Seen]] = {}
        self._watched = 0
        self._zones = ZoneWatch()
        self._awake_ms = env.clock.monotonic_ms()

    def awake(self) -> None:
        """This process is running. Time during which it was stopped or busy does not count: a lease could not be
        renewed
        through it meanwhile."""
        now_ms = self._clock.monotonic_ms()
        late_ms = now_ms - self._awake_ms - TICK_MS
        self._awake_ms = now_ms
        if late_ms > LATE_MS:
            for seen in self._all():
                seen.deadline_ms += late_ms
            self._zones.put_off(late_ms)

    def observe(self, events: Iterable[Event], state: State) -> None:
        """Process the events of this process's commits."""
        jobs, now_ms = state.jobs, self._clock.monotonic_ms()
        # Most commits do the same thing to many jobs.
        for kind, alike in groupby(events, type):
            if kind is Claimed:
                self._watch_claims(alike, now_ms)  # type: ignore[arg-type]
            elif kind in _RENEWED:
                renewed = [jobs.get(event.job_id) for event in alike]  # type: ignore[union-attr]
                self._watch_all([job for job in renewed if job is not None and job.state is _RUNNING], now_ms)
            elif kind in _ZONES:
                self._zones.note({event.zone for event in alike}, state, now_ms)  # type: ignore[union-attr]
        if not state.running:
            self._by_length, self._watched = {}, 0
        elif self._watched > 2 * state.running + SLACK:
            self._sweep(state)

    def resync(self, state: State) -> None:
        """Process a state that came from elsewhere: unchanged leases keep their deadline."""
        # A renewed lease appears several times: the last one counts.
        known = {(one.job_id, one.token): (one, seen.deadline_ms) for seen in self._all() for one in seen.leases}
        self._by_length, self._watched = {}, 0
        kept: list[tuple[int, JobRecord]] = []
        fresh: list[JobRecord] = []
        for job in state.leases():
            lease, deadline_ms = known.get((job.spec.id, job.token), (None, 0))
            if lease is not None and _is_as_before(lease, job):
                kept.append((deadline_ms, job))
            else:
                fresh.append(job)
        for deadline_ms, job in sorted(kept, key=lambda item: item[0]):
            self._add(self._length(job.lease_ms), deadline_ms, [_seen(job)])
        now_ms = self._clock.monotonic_ms()
        self._zones.resync(state, now_ms)
        for job in fresh:
            # Another process's worker: watch a little longer than that process would, so that not all act at once.
            self._watch_all([job], now_ms + int(self._length(job.lease_ms) * 0.1 * self._rng.random()))

    def due(self, state: State | None) -> tuple[Observed | ObservedZone, ...]:
        """Leases that have gone their full length without a change, as far as that state knows. Without a state, read
        first."""
        self.awake()
        if state is None:
            return ()
        now_ms = self._clock.monotonic_ms()
        out: list[Observed | ObservedZone] = [*self._zones.due(now_ms, state)]
        for several in self._by_length.values():
            for seen in several:
                if seen.deadline_ms > now_ms or len(out) >= TAKEN_BACK_AT_ONCE:
                    break
                out += self._first(seen, TAKEN_BACK_AT_ONCE - len(out), state)
            _drop_empty(several)
        return tuple(out)

    def acted_on(self, several: Sequence[Observed | ObservedZone], state: State) -> None:
        """These were taken back, or turned out to be alive: then they start again at full length."""
        if not several:
            return
        now_ms = self._clock.monotonic_ms()
        for lease in several:
            if isinstance(lease, ObservedZone):
                self._zones.again(lease, state, now_ms)
        self._acted_on_jobs([lease for lease in several if isinstance(lease, Observed)], state, now_ms)

    def _acted_on_jobs(self, leases: Sequence[Observed], state: State, now_ms: int) -> None:
        done = {(lease.job_id, lease.token) for lease in leases}
        for several in self._by_length.values():
            for seen in several:
                # They were the first ones, and still are.
                while seen.leases and (seen.leases[0].job_id, seen.leases[0].token) in done:
                    self._forget_first(seen)
                if seen.leases:
                    break
            _drop_empty(several)
        jobs = [state.jobs.get(lease.job_id) for lease in leases]
        self._watch_all([job for job in jobs if job is not None and job.state is _RUNNING], now_ms)

    def next_deadline_ms(self) -> int | None:
        """When, on the monotonic clock, the next lease may run out."""
        firsts = [several[0].deadline_ms for several in self._by_length.values() if several]
        if (zone_ms := self._zones.next_deadline_ms()) is not None:
            firsts.append(zone_ms)
        return min(firsts, default=None)

    def _watch_claims(self, claims: Iterable[Claimed], from_ms: int) -> None:
        for lease_ms, alike in groupby(claims, _lease_ms):
            length = self._length(lease_ms)
            self._add(length, from_ms + length, alike)

    def _watch_all(self, jobs: Iterable[JobRecord], from_ms: int) -> None:
        for lease_ms, alike in groupby(jobs, _lease_ms):
            length = self._length(lease_ms)
            self._add(length, from_ms + length, map(_seen, alike))

    def _add(self, length: int, deadline_ms: int, seen_now: Iterable[_Lease]) -> None:
        leases = deque(seen_now)
        self._watched += len(leases)
        several = self._by_length.setdefault(length, deque())
        if several and several[-1].deadline_ms == deadline_ms:
            several[-1].leases += leases
        else:
            several.append(_Seen(length, deadline_ms, leases))

    def _first(self, seen: _Seen, most: int, state: State) -> list[Observed]:
        """The first unchanged ones. Drops ended leases in front of them."""
        found: list[Observed] = []
        while seen.leases and len(found) < most:
            lease = seen.leases[0]
            self._forget_first(seen)
            job = state.jobs.get(lease.job_id)
            if job is not None and _is_as_before(lease, job):
                found.append(_seen(job))
        seen.leases.extendleft(reversed(found))
        self._watched += len(found)
        return found

    def _forget_first(self, seen: _Seen) -> None:
        seen.leases.popleft()
        self._watched -= 1

    def _sweep(self, state: State) -> None:
        """Keep only unchanged leases."""
        jobs = state.jobs
        for length, several in self._by_length.items():
            for seen in several:
                now = [(lease, jobs.get(lease.job_id)) for lease in seen.leases]
                seen.leases = deque([lease for lease, job in now if job is not None and _is_as_before(lease, job)])
            self._by_length[length] = deque(seen for seen in several if seen.leases)
        self._watched = sum(len(seen.leases) for seen in self._all())

    def _all(self) -> Iterator[_Seen]:
        return chain.from_iterable(self._by_length.values())

    def _length(self, lease_ms: int) -> int:
        return lease_ms or self._lease_ms


def _drop_empty(several: deque[_Seen]) -> None:
    """Drop those at the front."""
    while several and not several[0].leases:
        several.popleft()


def _is_as_before(lease: _Lease, job: JobRecord) -> bool:
    """True if the job is still held by this lease, and the lease was not renewed."""
    if job.state is not _RUNNING or job.token != lease.token:
        return False
    return job.beat_ms == (job.claimed_ms if type(lease) is Claimed else lease.beat_ms)  # type: ignore[union-attr]


def _seen(job: JobRecord) -> Observed:
    return Observed(job.spec.id, job.token, job.beat_ms)
