"""Keeps the leases of everything that a worker holds, in batches, and notices those that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from casque.client.queue import Queue
from casque.clock import Clock
from casque.errors import CasqueError, JobNotFoundError, LeaseLostError
from casque.telemetry import logger
from casque.worker.claims import Claim, Claims
from casque.worker.guard import Guard

log = logger("worker")

BEATS_PER_LEASE = 3


class Keeper:
    def __init__(
        self,
        queue: Queue[bytes],
        claims: Claims,
        guard: Guard | None,
        *,
        lease_s: float,
        clock: Clock,
        lost: Callable[[Claim], None],
        tick: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._claims = claims
        self._guard = guard
        self._beat_ms = int(lease_s * 1000 / BEATS_PER_LEASE)
        self._tick_s = min(1.0, lease_s / 10)
        self._clock = clock
        self._lost = lost
        self._tick = tick
        self._beating: asyncio.Task[None] | None = None

    async def run(self) -> None:
        try:
            while True:
                await self._clock.sleep(self._tick_s)
                if self._guard is not None:
                    self._guard.alive()
                self._tick()
                # A beat that hangs, because the store does, must not keep the guard from hearing that we live.
                if self._beating is None or self._beating.done():
                    due = self._due()
                    self._beating = asyncio.create_task(self._beat(due)) if due else None
        finally:
            if self._beating is not None:
                self._beating.cancel()
                await asyncio.gather(self._beating, return_exceptions=True)

    def _due(self) -> list[Claim]:
        before_ms = self._clock.monotonic_ms() - self._beat_ms
        return [claim for claim in self._claims.held.values() if claim.beaten_ms <= before_ms]

    async def _beat(self, due: list[Claim]) -> None:
        now_ms = self._clock.monotonic_ms()
        try:
            answers = await self._queue.heartbeats([claim.job for claim in due])
        except CasqueError as error:
            log.warning("the heartbeats of %d jobs failed, trying again: %s", len(due), error)
            return
        for claim, refused in zip(due, answers, strict=True):
            if refused is None:
                claim.beaten_ms = now_ms
            elif not isinstance(refused, (LeaseLostError, JobNotFoundError)):
                log.warning("the heartbeat of job %s failed, trying again: %s", claim.job.id, refused)
            elif self._claims.held.get(claim.job.id) is claim and not claim.over:
                self._lost(claim)
