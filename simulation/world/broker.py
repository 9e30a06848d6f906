"""The real broker in a simulated process, and how soon it loses patience there."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from casque.broker.broker import Broker
from casque.client.opening import Parts
from casque.clock import Random
from casque.environment import Environment
from casque.errors import CasqueError
from casque.service import QueueService, Role
from casque.settings import BrokerSettings
from simulation.world.invariants import Invariant

if TYPE_CHECKING:
    from simulation.world.life import Life

ANYBODY = "*"
"""A broker claims for whoever asks it."""
LEASE_S = 1.5
"""How long a leader may show no sign of life before another broker tries to take over."""
SETTINGS = BrokerSettings(
    heartbeat=timedelta(seconds=0.4), lease=timedelta(seconds=LEASE_S), poll=timedelta(seconds=0.3)
)


class SimulatedBroker:
    """A broker and the process around it, which ends when its broker cannot start."""

    def __init__(self, life: Life, parts: Parts) -> None:
        self._life = life
        self._broker = Broker(
            parts.committer(),
            Environment(life.world.profile.settings, life.clock, Random(f"{life.world.seed}/{life.name}/broker")),
            address=life.node.name,
            settings=SETTINGS,
            staging=parts.staging(),
        )
        self._ended = asyncio.Event()

    async def run(self) -> None:
        try:
            await self._broker.run()
        except CasqueError as error:
            self._life.world.trace.note(self._life.name, f"its broker ends: {type(error).__name__}")
            self._life.world.loop.call_soon(self._life.node.crash)
        except Exception as error:  # noqa: BLE001  a bug: nobody waits for this task
            self._life.world.found(Invariant.EXPECTED, f"the broker of {self._life.name} failed: {error!r}")
        finally:
            self._ended.set()

    async def stop(self) -> None:
        self._broker.stop()
        await self._ended.wait()

    def service(self) -> QueueService:
        return self._broker.service()

    @property
    def epoch(self) -> int | None:
        """Of its lead, while it leads."""
        standing = self._broker.standing()
        return standing.epoch if standing.role is Role.LEADER else None
