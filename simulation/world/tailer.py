"""Somebody who follows the log without writing: every commit that it is handed must be the one that was made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from casque.clock import Random
from casque.codec.log import Segment
from casque.environment import Environment
from casque.errors import CasqueError, CorruptQueueError, HistoryGoneError, InvalidInputError
from casque.journal.log.follower import Follower
from simulation.world.invariants import Invariant, Violation

if TYPE_CHECKING:
    from simulation.world.life import Life

PAUSE_S = 0.5


class Tailer:
    """Follows from the end, or from some position that it has heard of, until that is collected."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._history = life.world.history
        self._rng = Random(f"{life.world.seed}/{life.name}/tail")

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except HistoryGoneError:
                continue  # it says so, and skips nothing
            except (CorruptQueueError, InvalidInputError) as error:
                with self._life.world.watching():
                    raise Violation(Invariant.EXPECTED, f"{self._life.name} follows and met {error!r}") from error
            except CasqueError:
                await self._life.clock.sleep(PAUSE_S)

    async def _follow(self) -> None:
        life = self._life
        follower = Follower(life.line, Environment(life.world.profile.settings, life.clock, self._rng))
        tip = self._history.state.position
        position = self._rng.choice((None, max(0, tip - 3), tip))
        if not await follower.start(position):
            await life.clock.sleep(PAUSE_S)
            return
        while True:
            at, landed = follower.position, self._history.state.position
            self._check(await follower.read(), at, landed)
            await life.clock.sleep(self._rng.expovariate(1 / PAUSE_S))

    def _check(self, commits: list[Segment], at: int, landed: int) -> None:
        h = self._history
        with self._life.world.watching():
            for number, commit in enumerate(commits, at + 1):
                h.demand(
                    h.segments.get(number) == commit,
                    Invariant.ONE_HISTORY,
                    lambda: f"{self._life.name} was handed another commit {number} than was made",  # noqa: B023
                )
            h.demand(
                bool(commits) or at >= landed,
                Invariant.CURRENT,
                lambda: f"{self._life.name} was told that {at} is the end, and {landed} had landed",
            )
