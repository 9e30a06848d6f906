"""Operators who erase finished jobs from the archive, by id or by zone, several at once, and repeat what broke off."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from casque.client.erasing import Erasing
from casque.clock import Random
from casque.environment import Environment
from casque.errors import CasqueError, CorruptQueueError
from casque.types import Finished
from simulation.world.invariants import Invariant

if TYPE_CHECKING:
    from simulation.world.crew import Crew
    from simulation.world.life import Life


class Wish(NamedTuple):
    """What one of them wants erased."""

    zone: str | None
    ids: frozenset[str]

    def names(self, one: Finished) -> bool:
        return one.job.id in self.ids or (self.zone is not None and one.job.spec.zone == self.zone)


class Erasers:
    """Those of one process."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._crew = crew
        self._world = life.world
        self._rng = Random(f"{life.world.seed}/{life.name}/erasers")

    def roles(self) -> list[Coroutine[Any, Any, None]]:
        return [self._erase(), self._erase()]

    async def _erase(self) -> None:
        life, world = self._life, self._world
        env = Environment(world.profile.settings, life.clock, self._rng)
        while await self._crew.pause(1.0):
            wish = self._wish()
            if wish is None:
                continue
            [(_, _, shelves)] = world.parts()
            archived = shelves.archived
            shelves.wished(wish)
            erasing = Erasing(life.line, by=life.name, zone=wish.zone, ids=sorted(wish.ids), env=env)
            try:
                await erasing.erase()
            except CasqueError as error:
                world.trace.note(life.name, f"an erasure broke off: {type(error).__name__}")
                world.known.unerased.append(wish)
                continue
            world.trace.note(life.name, f"erased {len(wish.ids)} jobs and zone {wish.zone}")
            with world.watching():
                shelves.erased(wish, archived)

    def _wish(self) -> Wish | None:
        """One that broke off before, or some of those who finished last, archived or not; seldom a whole zone."""
        rng, known = self._rng, self._world.known
        if known.unerased and rng.random() < 0.5:
            return known.unerased.pop(rng.randrange(len(known.unerased)))
        [(_, _, shelves)] = self._world.parts()
        last = shelves.finished[-12:]
        if not last:
            return None
        zone = rng.choice(last).job.spec.zone if rng.random() < 0.1 else None
        return Wish(zone, frozenset(one.job.id for one in rng.sample(last, min(len(last), rng.randint(1, 3)))))


def in_the_way(key: str) -> CorruptQueueError:
    """A writer takes what was erased for damage."""
    from simulation.world.life import CURRENT

    life = CURRENT.get()
    assert life is not None
    life.world.found(Invariant.ARCHIVED, f"{life.name} takes {key} for something else than it has to archive")
    return CorruptQueueError(key, "something else is there")
