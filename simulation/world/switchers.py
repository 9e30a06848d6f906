"""Switchers of a ring: one process pauses and opens an entrypoint, and changes a zone, while others resize the ring."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from casque.clock import Random
from casque.types import Gate

if TYPE_CHECKING:
    from simulation.world.crew import Crew
    from simulation.world.life import Life

ENTRYPOINT = "mail"
ZONE = "acme"
SIZES = (1, 2, 3)


class Switchers:
    """Settings are changed by the first process alone: two would overlap, and then no order is promised."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._crew = crew
        self._rng = Random(f"{life.world.seed}/{life.name}/switchers")

    def roles(self) -> list[Coroutine[Any, Any, None]]:
        return [self._switch()] if self._life.node.name == "n1" else [self._resize()]

    async def _switch(self) -> None:
        while not self._life.world.healed:
            await self._life.clock.sleep(self._rng.uniform(0.0, 0.15))
            if self._rng.random() < 0.7:
                await self._crew.ask(self._crew.gate_request(self._rng.choice((Gate.PAUSED, Gate.OPEN)), ENTRYPOINT))
            else:
                await self._crew.ask(self._crew.zone_request(ZONE, paused=self._rng.random() < 0.5))

    async def _resize(self) -> None:
        while not self._life.world.healed:
            await self._life.clock.sleep(self._rng.uniform(0.0, 0.3))
            await self._crew.ask(self._crew.resize_request(self._rng.choice(SIZES)))
