"""Which leases have run out, judged by this process's own monotonic clock.

A lease is watched from the moment this process saw it, and again from the moment it saw it renewed. No time that
another machine wrote is ever compared with a clock here; a lease seen late is merely taken back late.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from casque.clock import Clock, Random
from casque.state import Beaten, Claimed, Event, Observed, State
from casque.state.events import Acked, Cancelled, Died, Expired, Nacked, Returned
from casque.types import JobRecord, JobState

_BEGUN = frozenset({Claimed, Beaten})
_ENDED = frozenset({Acked, Nacked, Returned, Expired, Died, Cancelled})
TAKEN_BACK_AT_ONCE = 1_000
TICK_MS = 1_000
"""How often whoever watches leases looks at the clock."""
LATE_MS = 2_000


class _Watch(msgspec.Struct, frozen=True, gc=False):
    """A lease as it was seen, in one piece: there may be many thousands."""

    job_id: str
    token: int
    beat_ms: int | None
    deadline_ms: int

    @property
    def lease(self) -> Observed:
        return Observed(self.job_id, self.token, self.beat_ms)


class Reaper:
    """Watches running jobs. Leases of one length run out in the order they were seen, so no search is needed."""

    def __init__(self, clock: Clock, rng: Random, lease_ms: int) -> None:
        self._clock = clock
        self._rng = rng
        self._lease_ms = lease_ms
        self._by_length: dict[int, OrderedDict[str, _Watch]] = {}
        self._awake_ms = clock.monotonic_ms()

    def awake(self) -> None:
        """This process runs. Time in which it did not, stopped or busy, does not count: nobody could have renewed a
        lease here meanwhile."""
        now_ms = self._clock.monotonic_ms()
        late_ms = now_ms - self._awake_ms - TICK_MS
        self._awake_ms = now_ms
        if late_ms > LATE_MS:
            for length, watches in self._by_length.items():
                self._by_length[length] = OrderedDict(
                    (job_id, msgspec.structs.replace(watch, deadline_ms=watch.deadline_ms + late_ms))
                    for job_id, watch in watches.items()
                )

    def observe(self, events: Iterable[Event], state: State) -> None:
        """Take note of commits of this process."""
        jobs, now_ms, running = state.jobs, self._clock.monotonic_ms(), JobState.RUNNING
        for event in events:
            kind = type(event)
            if kind in _ENDED:
                self._drop(event.job_id)  # type: ignore[union-attr]
            elif kind in _BEGUN:
                job = jobs.get(event.job_id)  # type: ignore[union-attr]
                if job is not None and job.state is running:
                    self._watch(job, now_ms)

    def resync(self, state: State) -> None:
        """Take note of a state that came from elsewhere: leases that look as before keep their deadline."""
        known = {job_id: watch for watches in self._by_length.values() for job_id, watch in watches.items()}
        self._by_length = {}
        kept: list[tuple[int, _Watch]] = []
        fresh: list[JobRecord] = []
        for job in state.leases():
            watch = known.get(job.spec.id)
            if watch is not None and (watch.token, watch.beat_ms) == (job.token, job.beat_ms):
                kept.append((job.lease_ms or self._lease_ms, watch))
            else:
                fresh.append(job)
        for length, watch in sorted(kept, key=lambda item: item[1].deadline_ms):
            self._by_length.setdefault(length, OrderedDict())[watch.job_id] = watch
        now_ms = self._clock.monotonic_ms()
        for job in fresh:
            # Somebody else's worker: a little later than they would themselves, so that not all rush at once.
            length = job.lease_ms or self._lease_ms
            self._watch(job, now_ms + int(length * 0.1 * self._rng.random()))

    def due(self) -> tuple[Observed, ...]:
        """Leases that have gone their full length without a change."""
        self.awake()
        now_ms = self._clock.monotonic_ms()
        out: list[Observed] = []
        for watches in self._by_length.values():
            for watch in watches.values():
                if watch.deadline_ms > now_ms or len(out) >= TAKEN_BACK_AT_ONCE:
                    break
                out.append(watch.lease)
        return tuple(out)

    def acted_on(self, leases: Iterable[Observed], state: State) -> None:
        """These were taken back, or turned out to be alive: then they start again at full length."""
        now_ms = self._clock.monotonic_ms()
        for lease in leases:
            job = state.jobs.get(lease.job_id)
            if job is not None and job.state is JobState.RUNNING:
                self._watch(job, now_ms)
            else:
                self._drop(lease.job_id)

    def next_deadline_ms(self) -> int | None:
        """When, on the monotonic clock, the next lease runs out."""
        firsts = [next(iter(w.values())).deadline_ms for w in self._by_length.values() if w]
        return min(firsts, default=None)

    def _watch(self, job: JobRecord, from_ms: int) -> None:
        length = job.lease_ms or self._lease_ms
        by_length, job_id = self._by_length, job.spec.id
        watches = by_length.get(length)
        if watches is None:
            watches = by_length[length] = OrderedDict()
        if len(by_length) > 1:
            self._drop(job_id)
        else:
            watches.pop(job_id, None)  # whoever is watched anew goes to the end
        watches[job_id] = _Watch(job_id, job.token, job.beat_ms, from_ms + length)

    def _drop(self, job_id: str) -> None:
        for watches in self._by_length.values():
            if watches.pop(job_id, None) is not None:
                return
