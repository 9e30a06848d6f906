"""Reports outcomes to the queue: at once when idle, under load in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from casque.client.queue import Queue
from casque.clock import Clock, Random, new_id
from casque.errors import CasqueError, JobNotFoundError, LeaseLostError
from casque.service import Outcome
from casque.telemetry import logger
from casque.worker.claims import Claim, Claims
from casque.worker.hooks import Hooks
from casque.worker.patience import Patience
from casque.worker.summary import Summary

log = logger("worker")

SETTLED_AT_ONCE = 2_000
BACKLOG_MAX = 10_000
"""Outcomes that may wait for an unhealthy store; beyond that the worker stops claiming."""


class Settler:
    def __init__(
        self,
        queue: Queue[bytes],
        claims: Claims,
        summary: Summary,
        *,
        clock: Clock,
        rng: Random,
        settled: Callable[[], None],
        hooks: Hooks | None = None,
    ) -> None:
        self._queue = queue
        self._claims = claims
        self._summary = summary
        self._clock = clock
        self._rng = rng
        self._settled = settled
        self._hooks = hooks
        self._ready: list[tuple[Claim, Outcome]] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def backlog(self) -> int:
        return len(self._ready)

    async def wait_idle(self) -> None:
        """Wait until all outcomes are durable or refused."""
        await self._idle.wait()

    def add(self, claim: Claim, outcome: Outcome) -> None:
        self._ready.append((claim, outcome))
        self._idle.clear()
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._ready:
                batch, self._ready = self._ready[:SETTLED_AT_ONCE], self._ready[SETTLED_AT_ONCE:]
                await self._settle(batch)
            self._idle.set()

    async def _settle(self, batch: list[tuple[Claim, Outcome]]) -> None:
        answers = await self._write([outcome for _, outcome in batch])
        for (claim, outcome), refused in zip(batch, answers, strict=True):
            self._claims.drop(claim)
            if refused is None:
                self._summary.count(claim.how)
                if self._hooks is not None:
                    self._hooks.settled(claim, outcome, (claim.ended_ms - claim.started_ms) / 1000)
            else:
                self._refused(claim, refused)
        self._settled()

    async def _write(self, outcomes: list[Outcome]) -> list[CasqueError | None]:
        request_id = new_id(self._rng)  # makes a retry after a lost answer safe
        patience = Patience(self._clock, self._rng)
        while True:
            try:
                return await self._queue.settle(outcomes, request_id=request_id)
            except CasqueError as error:
                if patience.is_hopeless(error):
                    raise
                log.warning("could not write the outcomes of %d jobs, trying again: %s", len(outcomes), error)
                await patience.wait()

    def _refused(self, claim: Claim, error: CasqueError) -> None:
        """The job was cancelled, or another worker has it: the outcome does not count."""
        self._summary.lost += 1
        if isinstance(error, (LeaseLostError, JobNotFoundError)):
            log.warning("lost the lease of job %s before its outcome was written: %s", claim.job.id, error)
        else:
            log.error("the outcome of job %s was refused: %s", claim.job.id, error)
