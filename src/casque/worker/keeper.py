"""Renews the leases of all jobs that a worker holds, in batches, and notices lost ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from casque.client.queue import Queue
from casque.clock import Clock
from casque.errors import CasqueError, JobNotFoundError, LeaseLostError
from casque.service import Lease
from casque.telemetry import logger
from casque.worker.claims import Claim, Claims
from casque.worker.guard import Guard

log = logger("worker")

BEATS_PER_LEASE = 3
PROGRESS_MS = 5_000
"""Progress triggers a heartbeat at most this often: a commit is a request to the store."""


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
        self._progress_ms = min(PROGRESS_MS, self._beat_ms)
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
                # A heartbeat may hang with the store; the guard must still hear that the worker lives.
                if self._beating is None or self._beating.done():
                    due = self._due()
                    self._beating = asyncio.create_task(self._beat(due)) if due else None
        finally:
            if self._beating is not None:
                self._beating.cancel()
                await asyncio.gather(self._beating, return_exceptions=True)

    def _due(self) -> list[Claim]:
        now_ms = self._clock.monotonic_ms()
        before_ms, further_ms = now_ms - self._beat_ms, now_ms - self._progress_ms
        return [
            claim
            for claim in self._claims.held.values()
            if claim.beaten_ms <= before_ms
            or (claim.beaten_ms <= further_ms and claim.context.last_progress is not claim.reported and not claim.ended)
        ]

    async def _beat(self, due: list[Claim]) -> None:
        now_ms = self._clock.monotonic_ms()
        progress = [claim.context.last_progress for claim in due]
        leases = [Lease(claim.job.id, claim.job.token, how_far) for claim, how_far in zip(due, progress, strict=True)]
        try:
            answers = await self._queue.heartbeats(leases)
        except CasqueError as error:
            log.warning("the heartbeats of %d jobs failed, trying again: %s", len(due), error)
            return
        for claim, how_far, refused in zip(due, progress, answers, strict=True):
            if refused is None:
                claim.beaten_ms, claim.reported = now_ms, how_far
            elif not isinstance(refused, (LeaseLostError, JobNotFoundError)):
                log.warning("the heartbeat of job %s failed, trying again: %s", claim.job.id, refused)
            elif self._claims.held.get(claim.job.id) is claim and not claim.ended:
                self._lost(claim)
