"""Tracks contention: whether a writer is alone, for how long, and how long it yields to other writers."""

from __future__ import annotations

from casque.environment import Environment

ALONE_COMMITS = 8
"""Commits in a row, without another writer's in between, before a writer takes the queue for itself."""
LOOK_MS = 250
"""How often a busy holder checks whether another process wants to write."""
REST_MIN_MS = 1_000
REST_MAX_MS = 600_000
"""After a disturbance, a holder waits this long before it tries again, longer each time: every claim leaves a fence."""
HELD_LONG_MS = 60_000
SHARED_MS = 5_000
"""How long a queue counts as shared after another writer was noticed."""
STREAK_COMMITS = 3
"""Wins in a row after which a writer on a shared queue hesitates: a writer that lost a slot needs as long for its
next attempt as the winner does, and would otherwise lose in step for ever."""


class Contention:
    """Fairness only: a wrong guess costs a few requests, and is safe."""

    def __init__(self, env: Environment) -> None:
        self._clock = env.clock
        self._rng = env.rng
        self._wins = 0
        self._won_ms = 0
        self._took_ms = 0
        self._shared_until_ms = 0
        self._commits = 0
        self._rest_ms = REST_MIN_MS
        self._claim_at_ms = 0
        self._claimed_ms = 0
        self._looked_ms = 0
        self.epoch_raised = False
        """Another process has raised the epoch while this one held the queue."""

    @property
    def is_alone(self) -> bool:
        return self._commits >= ALONE_COMMITS and self._clock.monotonic_ms() >= self._claim_at_ms

    def committed(self, began_ms: int) -> None:
        self._commits += 1
        self._wins += 1
        self._won_ms = self._clock.monotonic_ms()
        self._took_ms = self._won_ms - began_ms

    def hesitation_ms(self) -> float:
        """How long to wait before the next commit, to be fair; 0 for no wait."""
        now_ms = self._clock.monotonic_ms()
        if self._wins < STREAK_COMMITS or now_ms >= self._shared_until_ms or now_ms - self._won_ms > self._took_ms:
            return 0  # alone, or there was a pause already
        return min(self._took_ms, 500) * self._rng.random()

    def met_other_writer(self) -> None:
        """Another writer's commit was seen."""
        self._commits = self._wins = 0
        self._shared_until_ms = self._clock.monotonic_ms() + SHARED_MS

    def claimed(self) -> None:
        """The queue is about to be held. If that fails, the next try has to wait as well."""
        self._claimed_ms = self._looked_ms = self._clock.monotonic_ms()
        self._rest()

    def disturbed(self) -> None:
        """The queue is no longer held."""
        self.epoch_raised = False
        self.met_other_writer()
        if self._clock.monotonic_ms() - self._claimed_ms > HELD_LONG_MS:
            self._rest_ms = REST_MIN_MS
        self._rest()

    def _rest(self) -> None:
        self._commits = 0
        self._claim_at_ms = self._clock.monotonic_ms() + self._rest_ms
        self._rest_ms = min(self._rest_ms * 2, REST_MAX_MS)

    def look_is_due(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms < LOOK_MS:
            return False
        self._looked_ms = now_ms
        return True
