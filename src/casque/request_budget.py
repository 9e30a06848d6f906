"""How many requests a process may make to a store that bills each of them, and how far apart that keeps its commits.

A budget is a target that pacing keeps, not a wall: requests that safety needs are counted and never held up.
"""

from __future__ import annotations

from typing import NamedTuple

from casque.clock import Clock, SystemClock
from casque.settings import QueueSettings, milliseconds

FREE = 0.5
"""Commits are not spaced out before this part of a budget is used, so that a short burst is as fast as without one."""
PER_COMMIT = 2
"""Requests that one more commit is expected to need, with its share of upkeep."""
LEASE_PART = 4
"""Commits are at most this part of a lease apart: heartbeats wait for them, and a lease must not run out meanwhile."""


class Usage(NamedTuple):
    """One budget, for metrics."""

    window: str
    limit: int
    used: int


class RequestBudget:
    """Counts the requests of one process, in windows on its monotonic clock. Without limits it costs nothing.

    >>> from casque.testing.clock import ManualClock
    >>> budget = RequestBudget(QueueSettings(requests_per_minute=100), ManualClock())
    >>> budget.spend(40)
    >>> budget.commit_spacing_ms("writer")
    0
    >>> budget.spend(40)
    >>> budget.commit_spacing_ms("writer")  # 20 requests, or 10 commits, for the rest of the minute
    6000
    """

    def __init__(self, settings: QueueSettings | None = None, clock: Clock | None = None) -> None:
        settings = settings or QueueSettings()
        self._clock = clock or SystemClock()
        self._longest_ms = settings.lease_ms // LEASE_PART
        self._poll_max_ms = max(self._longest_ms, milliseconds(settings.poll_max))
        limits = (("minute", settings.requests_per_minute, 60_000), ("day", settings.requests_per_day, 86_400_000))
        self._windows = [_Window(name, most, length_ms) for name, most, length_ms in limits if most is not None]

    @property
    def limited(self) -> bool:
        return bool(self._windows)

    def spend(self, requests: int = 1) -> None:
        now_ms = self._clock.monotonic_ms()
        for window in self._windows:
            window.roll(now_ms)
            window.used += requests

    def commit_spacing_ms(self, writer: object) -> int:
        """The least time until the next commit of this writer, which has just committed. All writers of a process, such
        as the shards of a ring that it leads, share its budget."""
        now_ms = self._clock.monotonic_ms()
        spacing_ms = 0.0
        for window in self._windows:
            window.roll(now_ms)
            window.writers.add(id(writer))
            if window.used > window.most * FREE:
                apart_ms = window.apart_ms(now_ms) * PER_COMMIT * len(window.writers)
                spacing_ms = max(spacing_ms, min(apart_ms, window.left_ms(now_ms)))
        return min(int(spacing_ms), self._longest_ms)

    def poll_spacing_ms(self) -> int:
        """The least time until the next poll, which no caller asked for: spaced out from the first request on."""
        now_ms = self._clock.monotonic_ms()
        for window in self._windows:
            window.roll(now_ms)
        return min(int(max((window.apart_ms(now_ms) for window in self._windows), default=0)), self._poll_max_ms)

    def usage(self) -> list[Usage]:
        now_ms = self._clock.monotonic_ms()
        for window in self._windows:
            window.roll(now_ms)
        return [Usage(window.name, window.most, window.used) for window in self._windows]


class _Window:
    """One limit, and what was used of it since the window began."""

    def __init__(self, name: str, most: int, length_ms: int) -> None:
        self.name = name
        self.most = most
        self.used = 0
        self.writers: set[int] = set()
        self._length_ms = length_ms
        self._ends_ms: int | None = None

    def roll(self, now_ms: int) -> None:
        """Begin a new window if the last one is over."""
        if self._ends_ms is None or now_ms >= self._ends_ms:
            self._ends_ms = now_ms + self._length_ms
            self.used = 0
            self.writers.clear()

    def apart_ms(self, now_ms: int) -> float:
        """How far apart requests must be for the rest to last until the end of the window."""
        return self.left_ms(now_ms) / max(self.most - self.used, 1)

    def left_ms(self, now_ms: int) -> int:
        assert self._ends_ms is not None, "roll() comes first"
        return self._ends_ms - now_ms
