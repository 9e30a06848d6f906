"""Renews the leases of one batch while executors work on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from casque.client.job import Job
from casque.clock import Clock
from casque.errors import CasqueError, JobNotFoundError, LeaseLostError
from casque.telemetry import logger

log = logger("spark.work")

BEATS_PER_LEASE = 4
"""A lease should survive one or two failed heartbeats."""


class Beating(Protocol):
    async def heartbeats(self, jobs: Sequence[Job[bytes]]) -> list[CasqueError | None]: ...


class Keeper:
    """Sends heartbeats for all unsettled jobs of a batch at once, from the event loop, independent of Spark."""

    def __init__(
        self, queue: Beating, unsettled: Callable[[], list[Job[bytes]]], *, lease_ms: int, clock: Clock
    ) -> None:
        self._queue = queue
        self._unsettled = unsettled
        self._lost: set[str] = set()
        self._interval_s = lease_ms / BEATS_PER_LEASE / 1000
        self._clock = clock

    async def run(self) -> None:
        """Runs until cancelled, or until no lease is left."""
        pause_s = self._interval_s
        while True:
            await self._clock.sleep(pause_s)
            if not (kept := [job for job in self._unsettled() if job.id not in self._lost]):
                return
            try:
                answers = await self._queue.heartbeats(kept)
            except CasqueError as error:
                log.warning("%d leases could not be renewed, trying again: %s", len(kept), error)
                pause_s = self._interval_s / BEATS_PER_LEASE
                continue
            pause_s = self._interval_s
            self._drop_lost(kept, answers)

    def _drop_lost(self, kept: Sequence[Job[bytes]], answers: Sequence[CasqueError | None]) -> None:
        gone = (JobNotFoundError, LeaseLostError)
        refused = {job.id for job, answer in zip(kept, answers, strict=True) if isinstance(answer, gone)}
        if not refused:
            return
        # A job that was settled since the heartbeat was sent is not lost.
        lost = refused & {job.id for job in self._unsettled()}
        self._lost |= lost
        if lost:
            # Executors cannot be informed. Their outcomes will be refused, because the tokens are old.
            log.warning("%d leases are lost: their jobs were cancelled, or claimed by others", len(lost))


class keeping:  # noqa: N801  reads as a statement
    """`async with keeping(...)`: renews leases until the block ends, or `stop` is called."""

    def __init__(
        self, queue: Beating, unsettled: Callable[[], list[Job[bytes]]], *, lease_ms: int, clock: Clock
    ) -> None:
        self._keeper = Keeper(queue, unsettled, lease_ms=lease_ms, clock=clock)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._keeper.run(), name="casque spark leases")
        return self

    async def __aexit__(self, *_error: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
