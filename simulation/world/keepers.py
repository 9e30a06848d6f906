"""Keepers of an archive whose clocks are days ahead, from their start or from one moment on: they delete old hours."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from casque.clock import Random
from casque.environment import Environment
from casque.errors import CasqueError
from casque.journal.archive import ArchiveRetention
from simulation.world.clock import LifeClock

if TYPE_CHECKING:
    from simulation.world.crew import Crew
    from simulation.world.life import Life

DAY_MS = 24 * 3600 * 1000


class Keepers:
    """Those of one process. They run what a journal runs when it archives; if it were the journal itself, delays of
    jobs would be days, too."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._crew = crew
        self._rng = Random(f"{life.world.seed}/{life.name}/keepers")

    def roles(self) -> list[Coroutine[Any, Any, None]]:
        return [self._keep(ahead_at_once=True), self._keep(ahead_at_once=False)]

    async def _keep(self, *, ahead_at_once: bool) -> None:
        life, settings = self._life, self._life.world.profile.settings
        while await self._crew.pause(1.0):
            clock = _Ahead(life)
            ahead_ms = self._rng.randint(3, 400) * DAY_MS
            clock.ahead_ms = ahead_ms if ahead_at_once else 0
            retention = ArchiveRetention(life.line, Environment(settings, clock, self._rng))
            clock.ahead_ms = ahead_ms
            try:
                await retention.apply()
            except CasqueError as error:
                life.world.trace.note(life.name, f"a keeper could not look: {type(error).__name__}")


class _Ahead(LifeClock):
    """The clock of its process, set forward."""

    def __init__(self, life: Life) -> None:
        super().__init__(life.node.clock, life, life.world.loop)
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms
