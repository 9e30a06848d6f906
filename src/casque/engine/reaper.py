"""Which leases have run out, judged by this process's own monotonic clock.

A lease is watched from the moment this process saw it, and again from the moment it saw it renewed. No time that
another machine wrote is ever compared with a clock here; a lease seen late is merely taken back late.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, groupby, islice

import msgspec

from casque.clock import Clock, Random
from casque.state import Beaten, Claimed, Event, Observed, State
from casque.state.events import (
    Acked,
    Cancelled,
    Crashed,
    Died,
    Expired,
    Nacked,
    Quarantined,
    Returned,
    Snoozed,
    Withdrawn,
)
from casque.types import JobRecord, JobState

_BEGUN = frozenset({Claimed, Beaten})
_ENDED = frozenset({Acked, Nacked, Returned, Snoozed, Expired, Crashed, Died, Quarantined, Cancelled, Withdrawn})
TAKEN_BACK_AT_ONCE = 1_000
TICK_MS = 1_000
"""How often whoever watches leases looks at the clock."""
LATE_MS = 2_000


class _Seen(msgspec.Struct, eq=False):
    """Leases of one length that were seen at one moment: those of one commit, as a rule."""

    number: int
    length: int
    deadline_ms: int
    leases: dict[str, JobRecord]


class Reaper:
    """Watches running jobs. Leases of one length run out in the order they were seen, so no search is needed."""

    def __init__(self, clock: Clock, rng: Random, lease_ms: int) -> None:
        self._clock = clock
        self._rng = rng
        self._lease_ms = lease_ms
        self._by_length: dict[int, OrderedDict[int, _Seen]] = {}
        self._with: dict[str, _Seen] = {}
        """For each lease, what it was seen with."""
        self._numbers = count()
        self._awake_ms = clock.monotonic_ms()

    def awake(self) -> None:
        """This process runs. Time in which it did not, stopped or busy, does not count: nobody could have renewed a
        lease here meanwhile."""
        now_ms = self._clock.monotonic_ms()
        late_ms = now_ms - self._awake_ms - TICK_MS
        self._awake_ms = now_ms
        if late_ms > LATE_MS:
            for seen in self._all():
                seen.deadline_ms += late_ms

    def observe(self, events: Iterable[Event], state: State) -> None:
        """Take note of commits of this process."""
        jobs, now_ms, running = state.jobs, self._clock.monotonic_ms(), JobState.RUNNING
        # Most commits do one thing to many jobs.
        for kind, alike in groupby(events, type):
            if kind in _ENDED:
                self._drop_all([event.job_id for event in alike])  # type: ignore[union-attr]
            elif kind in _BEGUN:
                begun = [jobs.get(event.job_id) for event in alike]  # type: ignore[union-attr]
                self._watch_all([job for job in begun if job is not None and job.state is running], now_ms)

    def resync(self, state: State) -> None:
        """Take note of a state that came from elsewhere: leases that look as before keep their deadline."""
        known = {job_id: (seen.deadline_ms, job) for seen in self._all() for job_id, job in seen.leases.items()}
        self._by_length, self._with = {}, {}
        kept: list[tuple[int, JobRecord]] = []
        fresh: list[JobRecord] = []
        for job in state.leases():
            deadline_ms, then = known.get(job.spec.id, (0, None))
            if then is not None and (then.token, then.beat_ms) == (job.token, job.beat_ms):
                kept.append((deadline_ms, job))
            else:
                fresh.append(job)
        for deadline_ms, job in sorted(kept, key=lambda item: item[0]):
            self._add(self._length(job), deadline_ms, {job.spec.id: job})
        now_ms = self._clock.monotonic_ms()
        for job in fresh:
            # Somebody else's worker: a little later than they would themselves, so that not all rush at once.
            self._watch_all([job], now_ms + int(self._length(job) * 0.1 * self._rng.random()))

    def due(self) -> tuple[Observed, ...]:
        """Leases that have gone their full length without a change."""
        self.awake()
        now_ms = self._clock.monotonic_ms()
        out: list[Observed] = []
        for several in self._by_length.values():
            for seen in several.values():
                if seen.deadline_ms > now_ms or len(out) >= TAKEN_BACK_AT_ONCE:
                    break
                some = islice(seen.leases.values(), TAKEN_BACK_AT_ONCE - len(out))
                out += [Observed(job.spec.id, job.token, job.beat_ms) for job in some]
        return tuple(out)

    def acted_on(self, leases: Iterable[Observed], state: State) -> None:
        """These were taken back, or turned out to be alive: then they start again at full length."""
        now_ms = self._clock.monotonic_ms()
        for lease in leases:
            job = state.jobs.get(lease.job_id)
            if job is not None and job.state is JobState.RUNNING:
                self._watch_all([job], now_ms)
            else:
                self._drop_all([lease.job_id])

    def next_deadline_ms(self) -> int | None:
        """When, on the monotonic clock, the next lease runs out."""
        firsts = [next(iter(several.values())).deadline_ms for several in self._by_length.values() if several]
        return min(firsts, default=None)

    def _watch_all(self, jobs: Sequence[JobRecord], from_ms: int) -> None:
        for length, alike in groupby(jobs, self._length):
            leases = {job.spec.id: job for job in alike}
            if not self._with.keys().isdisjoint(leases):
                self._drop_all(leases)  # whoever is watched anew goes to the end
            self._add(length, from_ms + length, leases)

    def _add(self, length: int, deadline_ms: int, leases: dict[str, JobRecord]) -> None:
        several = self._by_length.setdefault(length, OrderedDict())
        seen = next(reversed(several.values()), None)
        if seen is not None and seen.deadline_ms == deadline_ms:
            seen.leases.update(leases)
        else:
            number = next(self._numbers)
            seen = several[number] = _Seen(number, length, deadline_ms, leases)
        self._with.update(dict.fromkeys(leases, seen))

    def _drop_all(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            if (seen := self._with.pop(job_id, None)) is not None:
                del seen.leases[job_id]
                if not seen.leases:
                    del self._by_length[seen.length][seen.number]

    def _all(self) -> Iterator[_Seen]:
        return chain.from_iterable(several.values() for several in self._by_length.values())

    def _length(self, job: JobRecord) -> int:
        return job.lease_ms or self._lease_ms
