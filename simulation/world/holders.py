"""Holders of zones: they lease a zone, empty it, and keep the lease while the ring changes and jobs are admitted."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from casque.clock import Random
from simulation.world.asked import Verb

if TYPE_CHECKING:
    from simulation.world.crew import Crew
    from simulation.world.life import Life

ZONE = "acme"
"""Its home is another shard of a ring of one or three than of a ring of two or four."""
ROUNDS = 6
"""How often a holder asks for jobs before it takes the zone for one that never gets empty."""


class Holders:
    """Those of one process."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._crew = crew
        self._rng = Random(f"{life.world.seed}/{life.name}/holders")

    def roles(self) -> list[Coroutine[Any, Any, None]]:
        return [self._hold() for _ in range(self._life.world.profile.holders)]

    async def _hold(self) -> None:
        crew, rng = self._crew, self._rng
        while await crew.pause(0.5):
            lease = await crew.ask(crew.lease_zone_request(ZONE))
            if lease is None:
                continue
            for _ in range(ROUNDS):
                jobs = await crew.ask(crew.held_dequeue_request(lease))
                if not jobs:
                    break
                await crew.ask(crew.settle_request([(job_id, token, Verb.ACK) for job_id, token in jobs]))
            await crew.ask(crew.on_zone(Verb.BEAT_ZONE, lease))
            if rng.random() < 0.5:
                await crew.ask(crew.resize_request(rng.choice((1, 2, 3, 4))))
            await crew.ask(crew.admit_request(ZONE))
            await crew.ask(crew.on_zone(Verb.RELEASE_ZONE, lease))
