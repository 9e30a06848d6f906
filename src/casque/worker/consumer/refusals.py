"""Zones whose lease another consumer had when this one asked."""

from __future__ import annotations

from casque.clock import Clock
from casque.worker.consumer.options import ConsumerOptions

DOUBLED_MAX = 16


class Refusals:
    """A refused zone is skipped for a while, longer each time: its holder probably still has it. A zone that was not
    refused for `min_inactive` is forgotten, so that idle zones cost nothing here either."""

    def __init__(self, options: ConsumerOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._refused: dict[str, tuple[int, int]] = {}
        """Number of refusals and time of the last one; oldest first."""

    def add(self, zone: str) -> None:
        times, _ = self._refused.pop(zone, (0, 0))
        self._refused[zone] = min(times + 1, DOUBLED_MAX), self._clock.monotonic_ms()

    def forget(self, zone: str) -> None:
        """The zone was granted."""
        self._refused.pop(zone, None)

    def passes_over(self, zone: str) -> bool:
        refused = self._refused.get(zone)
        if refused is None:
            return False
        times, at_ms = refused
        pause_s = min(self._options.scanner_interval * (1 << (times - 1)), self._options.zone_lease)
        return self._clock.monotonic_ms() < at_ms + int(pause_s * 1000)

    def sweep(self) -> None:
        before_ms = self._clock.monotonic_ms() - self._options.min_inactive * 1000
        while self._refused:
            zone, (_, at_ms) = next(iter(self._refused.items()))
            if at_ms > before_ms:
                return
            del self._refused[zone]
