"""A calendar for worlds that last seconds: what is a minute elsewhere is a second here, and it ends with the day.

It begins with the world, too: a clock that is twenty minutes behind would otherwise have a thousand ticks to make up
for.
"""

from __future__ import annotations

from casque.types import Schedule
from simulation.world.clock import EPOCH_MS

STEADY = "steady"
"""A schedule that is always set to the same and never paused: all of its ticks are accounted for."""
SECOND_MS = 1_000
LAST_MS = EPOCH_MS + 12_000
"""After the last tick a world comes to rest."""
FAR_MS = EPOCH_MS + 1_000_000_000


class FastCron:
    """Stands in the place of `casque.cron.Cron`."""

    def __init__(self, every_ms: int) -> None:
        self._every_ms = every_ms

    def next_after(self, ms: int) -> int:
        found = (max(ms, EPOCH_MS) // self._every_ms + 1) * self._every_ms
        return found if found <= LAST_MS else max(FAR_MS, found)

    def latest(self, first_ms: int, until_ms: int) -> int:
        return max(first_ms, min(until_ms, LAST_MS) // self._every_ms * self._every_ms)


def parse(expression: str, tz: str) -> FastCron:  # noqa: ARG001  as the real one
    """Only what a crew writes: `*/N * * * *`."""
    return FastCron(int(expression.split(maxsplit=1)[0].removeprefix("*/")) * SECOND_MS)


def ticks_between(schedule: Schedule, from_ms: int, until_ms: int) -> list[int]:
    """From one on, up to another and without it."""
    times = parse(schedule.spec.cron, schedule.spec.tz)
    found: list[int] = []
    while from_ms < min(until_ms, FAR_MS):
        found.append(from_ms)
        from_ms = times.next_after(from_ms)
    return found
