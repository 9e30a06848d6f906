"""How zones stand: the top-level queue, as a table to look at."""

from __future__ import annotations

from heapq import nsmallest

from casque.state.machine import State
from casque.types import PLAIN_RULES, JobState, ZoneStanding


class ZoneScan:
    """Counts the jobs of zones, some at a time, as they stood when the scan was made. Records never change, so that a
    list of them is enough."""

    def __init__(self, state: State, now_ms: int, names: frozenset[str] | None) -> None:
        self._now_ms = now_ms
        self._rules = dict(state.rules)
        self._leases = dict(state.zone_leases)
        known = state.zone_jobs.keys() | self._rules.keys() | self._leases.keys()
        wanted = known if names is None else known & names
        self._left = sum(state.zone_jobs.get(zone, 0) for zone in wanted)
        self._fifo = frozenset(zone for zone in wanted if state.is_fifo(zone))
        self._jobs = tuple(state.jobs.values()) if self._left else ()
        self._seen = 0
        self._counts: dict[str, list[int]] = {zone: [0, 0, 0, 0] for zone in wanted}
        self._due_ms: dict[str, int] = {}

    def step(self, most: int) -> bool:
        """Look at `most` more jobs; True if there are others, and some of them are of these zones."""
        counts, due_ms, now_ms = self._counts, self._due_ms, self._now_ms
        for job in self._jobs[self._seen : self._seen + most]:
            zone = job.spec.zone
            if zone is None or (count := counts.get(zone)) is None:
                continue
            self._left -= 1
            if job.state is JobState.RUNNING:
                count[2] += 1
            elif job.state is JobState.DEAD:
                count[3] += 1
            else:
                count[0 if job.state is JobState.READY or job.due_ms <= now_ms else 1] += 1
                due_ms[zone] = min(due_ms.get(zone, job.due_ms), job.due_ms)
        self._seen += most
        return self._left > 0 and self._seen < len(self._jobs)

    def standings(self, limit: int) -> list[ZoneStanding]:
        """Zones with jobs or rules, by vesting time: those that have nothing waiting last."""
        due_ms = self._due_ms
        first = nsmallest(limit, self._counts, key=lambda zone: (zone not in due_ms, due_ms.get(zone, 0), zone))
        return [self._standing(zone, *self._counts[zone]) for zone in first]

    def _standing(self, zone: str, ready: int, delayed: int, running: int, dead: int) -> ZoneStanding:
        return ZoneStanding(
            zone,
            ready,
            delayed,
            running,
            dead,
            self._due_ms.get(zone),
            zone in self._fifo,
            self._rules.get(zone, PLAIN_RULES),
            self._leases.get(zone),
        )
