"""Those who read in a simulated process through brokers: they follow the events, list the jobs and read the archive.

What they are shown comes over the real streams (`Watch`, `List`, `Archive`), through failovers and lost connections,
and is held against what has landed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from casque.clock import Random
from casque.codec.log import Segment
from casque.engine import feed
from casque.errors import CasqueError, CorruptQueueError, HistoryGoneError, InvalidInputError, QueueClosedError
from casque.service import QueueEvent
from casque.state import Event
from casque.state.events import subject
from casque.transport.grpc import unpacking
from casque.types import from_ms
from simulation.world.history import History
from simulation.world.invariants import Invariant, Violation
from simulation.world.lists import Lists

if TYPE_CHECKING:
    from casque.client.queue import Queue
    from simulation.world.crew import Crew
    from simulation.world.life import Life

PAUSE_S = 0.5
END = 1 << 62
"""An index behind all events of a commit."""
BACK = (0, 0, 1, 4, 12, 40)
"""From how many commits ago somebody reads."""


class Readers:
    """Those of one process."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._crew = crew
        self._world = life.world
        self._rng = Random(f"{life.world.seed}/{life.name}/readers")

    def roles(self) -> list[Coroutine[Any, Any, None]]:
        followers = [self._follow, self._follow, self._read_up] if self._world.layout.followed else []
        lists = Lists(self._life, self)
        return [self._begin(role) for role in (*followers, lists.list_jobs, lists.read_archive)]

    async def _begin(self, role: Callable[[Queue[bytes]], Awaitable[None]]) -> None:
        """With a connection of its own, as a program has that only reads, or with one that others use as well."""
        if self._rng.random() < 0.3:
            await role(self._life.queue)
            return
        async with self._life.visitor().queue as queue:
            await role(queue)

    # --- Events ---

    async def _follow(self, queue: Queue[bytes]) -> None:
        """From now on, or from a while ago, for as long as the process lives. Some take their time."""
        pace_s = self._rng.choice((0.0, 0.0, 0.2))
        while True:
            reader = Reader(self._world.history, self._somewhere())
            self._world.followers[reader] = self._life
            try:
                await self._keep_following(queue, reader, pace_s)
                return
            except HistoryGoneError as error:
                self.check_gone(reader, error)
            finally:
                del self._world.followers[reader]

    async def _keep_following(self, queue: Queue[bytes], reader: Reader, pace_s: float) -> None:
        while True:
            try:
                async with aclosing(queue.events(from_position=reader.asks())) as events:
                    async for event in events:
                        self.take(reader, event)
                        await self._think(pace_s)
            except HistoryGoneError:
                raise
            except QueueClosedError:
                return
            except CasqueError as error:
                await self.refused("follows", error)

    async def _read_up(self, queue: Queue[bytes]) -> None:
        """Up to the end of the log, again and again."""
        history, pace_s = self._world.history, self._rng.choice((0.0, 0.1))
        while await self._crew.pause(1.0):
            reader, landed = Reader(history, max(0, history.position - self._rng.choice(BACK))), history.position
            try:
                async with aclosing(queue.events(from_position=reader.asks(), follow=False)) as events:
                    async for event in events:
                        self.take(reader, event)
                        await self._think(pace_s)
            except HistoryGoneError as error:
                self.check_gone(reader, error)
            except CasqueError as error:
                await self.refused("reads events", error)
            else:
                with self._world.watching():
                    left = reader.next(landed)
                    history.demand(
                        left is None,
                        Invariant.FOLLOWED,
                        lambda: f"{self._life.name} was told that this is the end, before {left}",  # noqa: B023
                    )

    async def _think(self, pace_s: float) -> None:
        if pace_s and not self._world.healed:
            await self._life.clock.sleep(self._rng.expovariate(1 / pace_s))

    def _somewhere(self) -> int | None:
        back = self._rng.choice((None, *BACK))
        return None if back is None else max(0, self._world.history.position - back)

    def take(self, reader: Reader, event: QueueEvent) -> None:
        with self._world.watching():
            reader.take(event, self._life.name)

    def check_gone(self, reader: Reader, error: HistoryGoneError) -> None:
        """It says so, and that is true."""
        world = self._world
        floor = world.layout.collected(world.bucket.objects)
        with world.watching():
            world.history.demand(
                reader.begin is None or floor > reader.begin,
                Invariant.FOLLOWED,
                lambda: f"{self._life.name} heard that {error}, and what follows {reader.begin} is there",
            )

    # --- Refusals ---

    async def pause(self, mean_s: float) -> bool:
        return await self._crew.pause(mean_s)

    async def refused(self, who: str, error: CasqueError) -> None:
        self._world.trace.note(self._life.name, f"somebody {who}: {type(error).__name__}")
        if isinstance(error, (CorruptQueueError, InvalidInputError)):
            with self._world.watching():
                raise Violation(Invariant.EXPECTED, f"somebody in {self._life.name} {who} and met {error!r}")
        await self._life.clock.sleep(self._rng.expovariate(1 / PAUSE_S))


class Reader:
    """How far somebody has read."""

    def __init__(self, history: History, begin: int | None) -> None:
        self._h = history
        self.begin = begin
        """Where to go on if it has to ask again: the last commit may have been cut in the middle, so it is read again.
        None while nothing was shown to somebody who reads from now on."""
        self._last: tuple[int, int] | None = None
        """The commit and the index of the last event of this answer; None while it is not known where it begins."""
        self._landed = 0

    def asks(self) -> int | None:
        """From which position."""
        self._last = None if self.begin is None else (self.begin, END)
        self._landed = self._h.position
        return self.begin

    @property
    def behind(self) -> tuple[int, int] | None:
        """The first event that it has not seen, if there is one."""
        return self.next(self._h.position)

    def next(self, until: int) -> tuple[int, int] | None:
        """What comes next, up to this commit."""
        if self._last is None:
            return None
        position, index = self._last
        if index + 1 < len(_events(self._h, position)):
            return position, index + 1
        return next(((later, 0) for later in range(position + 1, until + 1) if _events(self._h, later)), None)

    def take(self, event: QueueEvent, name: str) -> None:
        h, place = self._h, (event.position, event.index)
        if self._last is None:
            h.demand(
                event.position > self._landed and event.index == 0,
                Invariant.FOLLOWED,
                lambda: f"{name} follows from now on, {self._landed}, and begins with {place}",
            )
        else:
            expected = self.next(h.position)
            h.demand(
                place == expected, Invariant.FOLLOWED, lambda: f"{name} is shown {place}, and {expected} comes next"
            )
        self._last, self.begin = place, event.position - 1
        made = _as_shown(h.segments[event.position], event.index)
        h.demand(event == made, Invariant.FOLLOWED, lambda: f"{name} is shown {event}, and what happened is {made}")


def _events(history: History, position: int) -> list[Event]:
    return history.segments[position].events if position in history.segments else []


def _as_shown(commit: Segment, index: int) -> QueueEvent:
    """As it comes over the wire."""
    event = commit.events[index]
    kind, fields = feed._kind(event), feed._fields(event)  # noqa: SLF001
    made = QueueEvent(commit.position, index, from_ms(commit.at), kind, subject(event), fields)
    [shown] = unpacking.events(msgspec.msgpack.encode([made]))
    return shown
