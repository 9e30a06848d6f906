"""Commits of other processes, as the store announces them, and when to read them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from casque.clock import Clock, Timer
from casque.engine.committer import Committer
from casque.engine.waiting import Parked

FOLLOWED_MS = 5_000
"""How long a writer that has met others follows them after a commit of its own."""
QUIET_MS = 4
"""Others count as quiet after this long without a commit: one read then gets all of them, and busy writers are not
followed one by one."""


class Announcements:
    """Subscribes to the announcements of the store, and wakes the commit loop when reading is worthwhile: at once if a
    caller waits for jobs, otherwise when the other writers are quiet."""

    def __init__(self, committer: Committer, clock: Clock, parked: Parked, wake: asyncio.Event) -> None:
        self._committer = committer
        self._clock = clock
        self._parked = parked
        self._wake = wake
        self.latest = 0
        """The latest commit that the store has announced and that was not read yet."""
        self._heard_ms = 0
        self._rest_timer: Timer | None = None
        self._follow_until_ms = 0
        self._races_lost = 0
        self._unsubscribe: Callable[[], None] | None = None

    def listen(self) -> None:
        if self._unsubscribe is None:
            self._unsubscribe = self._committer.listen(self._hear)
            if self._unsubscribe is not None and self._committer.known is not None:
                self.latest = self._committer.known.position + 1  # a commit may have appeared before the subscription

    def follow_rivals(self) -> None:
        """A writer that has lost a race shares the queue: it would lose the next one, too, to commits made since. So
        writers that only add jobs subscribe as well, as long as they are active."""
        if self._committer.leads or self._parked:
            return
        lost, self._races_lost = self._races_lost, self._committer.races_lost
        if self._races_lost > lost or self._unsubscribe is not None:
            self._follow_until_ms = self._clock.monotonic_ms() + FOLLOWED_MS
            self.listen()

    def due_ms(self, now_ms: int) -> int | None:
        """When to read what was announced; None if there is nothing to read."""
        if self._unsubscribe is None or not self._is_news():
            return None
        return now_ms if self._parked else self._heard_ms + QUIET_MS

    def stop_listening(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _hear(self, position: int) -> None:
        self.latest, self._heard_ms = max(self.latest, position), self._clock.monotonic_ms()
        if self._parked:
            if self._is_news():
                self._wake.set()
        elif self._heard_ms >= self._follow_until_ms:
            self.stop_listening()
        elif self._rest_timer is None:
            self._rest_timer = self._clock.call_later(QUIET_MS / 1000, self._look_if_at_rest)

    def _is_news(self) -> bool:
        """True if another process has committed."""
        known = self._committer.known
        return known is not None and self.latest > known.position

    def _look_if_at_rest(self) -> None:
        """Read now and then even if commits keep coming: a busy queue must not keep its followers busy."""
        self._rest_timer = None
        if self._is_news():
            left_ms = self._heard_ms + QUIET_MS - self._clock.monotonic_ms()
            if left_ms > 0:
                self._rest_timer = self._clock.call_later(left_ms / 1000, self._look_if_at_rest)
            else:
                self._wake.set()
