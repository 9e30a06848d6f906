"""What holds zones back: leases of whole zones, pauses, limits on running jobs, and rates."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from casque.types import ZoneLease, ZoneRules


class ZoneLimits:
    """Says whether a zone has to wait, and when it may go on."""

    def __init__(self, rules: dict[str, ZoneRules], leased: dict[str, ZoneLease]) -> None:
        self.rules = rules
        """Rules by zone; most zones have none."""
        self._leased = leased
        """Zones that one worker has for itself."""
        self.any = False
        """Whether any zone has rules or is leased, and might have to wait."""
        self.running: dict[str, int] = {}
        """Jobs at work, of the zones whose rules limit them; see `begin`."""
        self.paced_ms: dict[str, float] = {}
        """When a zone with a rate may have its next job."""
        self._timers: list[tuple[float, str]] = []
        self._timed: set[str] = set()
        self._now_ms = 0

    def refresh(self) -> None:
        """Rules or leases have changed."""
        self.any = bool(self.rules or self._leased)

    def begin(self, zones: Iterable[str]) -> dict[str, int]:
        """Their rules have changed: those whose running jobs have to be counted from now on."""
        uncounted: dict[str, int] = {}
        for zone in zones:
            rules = self.rules.get(zone)
            if rules is None or rules.running_max is None:
                self.running.pop(zone, None)
            elif zone not in self.running:
                uncounted[zone] = 0
        self.running |= uncounted
        return uncounted

    def count(self, zone: str, by: int) -> bool:
        """More or fewer of its jobs run. False if they are not counted."""
        if (running := self.running.get(zone)) is None:
            return False
        self.running[zone] = running + by
        return True

    def charge(self, zone: str) -> float:
        """It is given a job; returns the length of its turn."""
        rules = self.rules.get(zone)
        if rules is None:
            return 1.0
        if rules.per_second is not None:
            self.paced_ms[zone] = self.paced_ms.get(zone, 0.0) + 1000 / rules.per_second
        return 1.0 / rules.weight

    def waits(self, zone: str, now_ms: int, *, holds: bool = False) -> bool:
        """Whether another worker has leased it, or its rules hold it back now. `holds`: the caller has leased it."""
        if not self.any:
            return False
        if not holds and zone in self._leased:
            return True
        rules = self.rules.get(zone)
        if rules is None:
            return False
        if rules.paused:
            return True
        if rules.running_max is not None and self.running.get(zone, 0) >= rules.running_max:
            return True
        return rules.per_second is not None and self._is_paced(zone, rules.per_second, now_ms)

    def _is_paced(self, zone: str, per_second: float, now_ms: int) -> bool:
        # A tenth of a second may be taken at once: callers come in batches.
        spare_ms = max(100.0, 1000 / per_second)
        next_ms = self.paced_ms.get(zone, 0.0)
        if next_ms < now_ms - spare_ms:
            self.paced_ms[zone] = next_ms = now_ms - spare_ms
        elif next_ms > now_ms + spare_ms:
            self.paced_ms[zone] = next_ms = now_ms + spare_ms  # the clock was set back
        if next_ms + 1000 / per_second <= now_ms:
            return False
        if zone not in self._timed:
            self._timed.add(zone)
            heappush(self._timers, (next_ms + 1000 / per_second, zone))
        return True

    def passed(self, now_ms: int) -> list[str]:
        """Zones whose rate may let them go on by now."""
        timers = self._timers
        zones: list[str] = []
        if now_ms < self._now_ms:
            # The clock was set back: what was worked out before may be far ahead of it.
            zones = [zone for _, zone in timers]
            timers.clear()
            self._timed.clear()
        self._now_ms = now_ms
        while timers and timers[0][0] <= now_ms:
            zone = heappop(timers)[1]
            self._timed.discard(zone)
            zones.append(zone)
        return zones

    def next_ms(self) -> float | None:
        """When the next zone that waits because of its rate may go on."""
        return self._timers[0][0] if self._timers else None
