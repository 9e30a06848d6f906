"""Readers who stop reading in a simulated process, and an eye on what a broker holds for them."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from casque.clock import Clock, Random
from casque.engine.held_commits import HeldCommits, Stretch
from casque.errors import CasqueError, HistoryGoneError
from casque.transport.grpc.door import Door, GrpcLimits
from simulation.world.invariants import Invariant
from simulation.world.readers import BACK, Reader, Readers

if TYPE_CHECKING:
    from simulation.world.crew import Crew
    from simulation.world.life import Life

STALLED = 3
"""In each process."""
HELD_BYTES = 1_500
"""Of decoded commits, for all readers of a broker together."""
LIMITS = GrpcLimits(
    packet_bytes=700, calls_per_stream=6, unsent_bytes=6_000, unsent_bytes_per_principal=4_000, stall_s=0.6
)
VALUE_BYTES = 2_000
"""More than one event or one finished job weighs: what is held may be beyond its bound by one of them."""


class Stalled:
    """Those of one process: they begin to read, and stop."""

    def __init__(self, life: Life, crew: Crew, readers: Readers) -> None:
        self._life = life
        self._crew = crew
        self._readers = readers
        self._world = life.world
        self._rng = Random(f"{life.world.seed}/{life.name}/stalled")

    def roles(self) -> list[Coroutine[Any, Any, None]]:
        return [self._stall() for _ in range(STALLED)]

    async def _stall(self) -> None:
        """For a while, or for good. At the end of the day all of them have stopped."""
        rng, world = self._rng, self._world
        async with self._life.visitor().queue as queue:
            while not world.healed:
                await self._life.clock.sleep(rng.expovariate(1.0))
                reader = Reader(world.history, max(0, world.history.position - rng.choice(BACK)))
                try:
                    if rng.random() < 0.3:
                        async with aclosing(queue.archive()) as jobs:
                            async for _ in jobs:
                                await self._stop_reading()
                        continue
                    async with aclosing(queue.events(from_position=reader.asks())) as events:
                        async for event in events:
                            self._readers.take(reader, event)
                            await self._stop_reading()
                except HistoryGoneError as error:
                    self._readers.check_gone(reader, error)
                except CasqueError as error:
                    await self._readers.refused("stalls", error)

    async def _stop_reading(self) -> None:
        if self._world.healed or self._rng.random() < 0.02:
            while True:
                await self._life.clock.sleep(60.0)
        if self._rng.random() < 0.3:
            await self._life.clock.sleep(self._rng.uniform(0.2, 4.0))


class WatchedCommits(HeldCommits):
    """The real one, with little room and an eye on what is really there."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, HELD_BYTES)
        self._sizes: dict[Stretch, int] = {}

    def hold(self, stretch: Stretch, size: int) -> None:
        from simulation.world.life import CURRENT

        super().hold(stretch, size)
        self._sizes[stretch] = size
        held = {one: size for one, size in self._sizes.items() if one._commits}  # noqa: SLF001
        self._sizes = held
        life = CURRENT.get()
        if life is not None:
            with life.world.watching():
                life.world.history.demand(
                    len(held) == 1 or sum(held.values()) <= HELD_BYTES,
                    Invariant.HELD,
                    lambda: f"{life.name} holds commits of {sorted(held.values())} bytes for {len(held)} readers",
                )


def check_unsent(life: Life, door: Door) -> None:
    """What was read for clients and is not sent yet."""
    counts, limits = door.quotas.unsent.counts, door.limits
    names = [f"ipv4:{node.name}" for node in life.world.nodes]
    with life.world.watching():
        life.world.history.demand(
            0 <= counts.total < limits.unsent_bytes + VALUE_BYTES
            and all(counts.of(name) < limits.unsent_bytes_per_principal + VALUE_BYTES for name in names),
            Invariant.HELD,
            lambda: f"{life.name} has {counts.total} bytes to send, {[counts.of(name) for name in names]} of each",
        )
