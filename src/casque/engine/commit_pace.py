"""Keeps the writes of one process apart, for stores that bill each of them."""

from __future__ import annotations

from casque.environment import Environment
from casque.settings import milliseconds


class CommitPace:
    """The window after a write in which the next one waits: `commit_interval`, or longer if the budget of requests asks
    for it. Without either there is none."""

    def __init__(self, env: Environment) -> None:
        self._clock = env.clock
        self._interval_ms = milliseconds(env.settings.commit_interval)
        self._budget = env.budget
        self.until_ms = 0
        """On the monotonic clock."""

    @property
    def waits(self) -> bool:
        return self.until_ms > 0 and self._clock.monotonic_ms() < self.until_ms

    def wrote(self) -> None:
        interval_ms = self._interval_ms
        if self._budget.limited:
            interval_ms = max(interval_ms, self._budget.commit_spacing_ms(self))
        self.until_ms = self._clock.monotonic_ms() + interval_ms if interval_ms else 0
