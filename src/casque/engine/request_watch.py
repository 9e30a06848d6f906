"""How long answers are remembered for repeated requests, by the monotonic clock of the committing process."""

from __future__ import annotations

from collections import deque

from casque.clock import Clock
from casque.state import State
from casque.state.request_memory import Answered

KEPT_MS = 15 * 60 * 1000
SAMPLES = 15


class RequestWatch:
    """Knows requests that this process saw at least `KEPT_MS` ago. A process that has just started knows none, whatever
    the wall clock says: after a failover all requests are remembered for their full time again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: deque[tuple[int, str, Answered]] = deque()
        """Time, last remembered request at that time, and its answer: a forgotten id can be used again."""
        self._old: tuple[str, Answered] | None = None

    def saw(self, state: State) -> None:
        """Record the current state."""
        now_ms = self._clock.monotonic_ms()
        if state.requests and (not self._seen or now_ms - self._seen[-1][0] >= KEPT_MS / SAMPLES):
            self._seen.append((now_ms, *next(reversed(state.requests.items()))))

    def old(self, state: State) -> str | None:
        """The last request that may be forgotten, if the state remembers more than it has to."""
        before_ms = self._clock.monotonic_ms() - KEPT_MS
        while self._seen and self._seen[0][0] <= before_ms:
            self._old = self._seen.popleft()[1:]
        if self._old is None or len(state.requests) <= state.limits.requests_min:
            return None
        request_id, answered = self._old
        return request_id if state.requests.get(request_id) == answered else None
