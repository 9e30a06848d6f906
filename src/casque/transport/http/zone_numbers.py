"""Metrics of single zones for Prometheus: a bounded number of zones, and only those that the caller may see.

Zones are tenants, and their names are private. So these metrics are not in the shared registry but fetched with the
caller's own token: on a broker with tokens, a scrape without one gets none, and a token limited to some zones gets
those.
"""

from __future__ import annotations

import asyncio
from heapq import nlargest

from casque import checks
from casque.clock import Clock
from casque.errors import CasqueError
from casque.service import QueueService, Stats
from casque.telemetry.metrics import Metrics
from casque.types import PLAIN_RULES, ZoneStanding

MOST_WAITING = 20
ZONES_MAX = 100
"""Includes zones with rules. Each zone is a handful of series, which Prometheus keeps for good."""
EVERY_MS = 10_000
JOBS_MAX = 50_000
"""Counting visits all jobs at once and blocks other calls: about a tenth of a second for this many jobs."""
LIMIT_S = 2.0


class ZoneNumbers:
    """Counts zones on a scrape, and caches the text for a while per token."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: tuple[str | None, int, str] | None = None

    async def text(self, authorization: str | None, service: QueueService, stats: Stats) -> str:
        """The metrics as text; empty if the caller may not see them, or if counting would take too long."""
        totals, now_ms = stats.totals, self._clock.monotonic_ms()
        if totals.ready + totals.delayed + totals.running > JOBS_MAX:
            return ""
        if self._kept is not None and self._kept[0] == authorization and now_ms - self._kept[1] < EVERY_MS:
            return self._kept[2]
        try:
            async with asyncio.timeout(LIMIT_S):
                standings = await service.zones(limit=checks.ZONES_SHOWN_MAX)
        except (CasqueError, TimeoutError):
            return ""
        text = _as_text(_chosen(standings))
        self._kept = authorization, now_ms, text
        return text


def _chosen(standings: list[ZoneStanding]) -> list[ZoneStanding]:
    """The zones with the most waiting jobs, and those with rules, up to the maximum."""
    chosen = nlargest(MOST_WAITING, standings, key=_waiting)
    known = {one.zone for one in chosen}
    ruled = [one for one in standings if one.rules != PLAIN_RULES and one.zone not in known]
    return chosen + nlargest(ZONES_MAX - len(chosen), ruled, key=_waiting)


def _waiting(standing: ZoneStanding) -> int:
    return standing.ready + standing.delayed


def _as_text(standings: list[ZoneStanding]) -> str:
    metrics = Metrics()
    jobs = metrics.gauge("casque_zone_jobs", "Jobs in the queue by zone and state.", ("zone", "state"))
    paused = metrics.gauge("casque_zone_paused", "1 if none of the zone's jobs are claimed.", ("zone",))
    for one in standings:
        for state in ("ready", "delayed", "running", "dead"):
            jobs.of(one.zone, state).value = getattr(one, state)
        paused.of(one.zone).value = one.rules.paused
    return metrics.text()
