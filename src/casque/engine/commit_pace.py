"""Keeps the writes of one process apart, for stores that bill each of them."""

from __future__ import annotations

from casque.environment import Environment
from casque.settings import milliseconds


class CommitPace:
    """The window after a write in which the next one waits. Without `commit_interval` there is none."""

    def __init__(self, env: Environment) -> None:
        self._clock = env.clock
        self._interval_ms = milliseconds(env.settings.commit_interval)
        self.until_ms = 0
        """On the monotonic clock."""

    @property
    def waits(self) -> bool:
        return self._interval_ms > 0 and self._clock.monotonic_ms() < self.until_ms

    def wrote(self) -> None:
        if self._interval_ms:
            self.until_ms = self._clock.monotonic_ms() + self._interval_ms
