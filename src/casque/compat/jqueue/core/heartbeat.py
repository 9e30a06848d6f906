"""`HeartbeatManager`: heartbeats for one job while it runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, Self

from casque.clock import SystemClock
from casque.compat.jqueue.domain.errors import JQueueError
from casque.errors import (
    BrokerUnreachableError,
    CASConflictError,
    LimitReachedError,
    NoLeaderError,
    StorageError,
    UnknownOutcomeError,
)
from casque.telemetry import logger

log = logger("compat.jqueue")

PASSING = (
    StorageError,
    CASConflictError,
    UnknownOutcomeError,
    NoLeaderError,
    LimitReachedError,
    BrokerUnreachableError,
)
"""Errors after which the next heartbeat may succeed."""


class HasHeartbeat(Protocol):
    """Any of the queues, or any other object with this method."""

    async def heartbeat(self, job_id: str) -> Any: ...


class HeartbeatManager:
    """Calls `queue.heartbeat(job_id)` every `interval` until the block ends.

    It stops silently when the job is gone or another worker's. A failing storage does not stop it: a claim survives a
    few failed heartbeats. An error that is not the queue's own stops it and is raised at the end of the block.
    """

    def __init__(self, queue: HasHeartbeat, job_id: str, interval: timedelta = timedelta(seconds=60)) -> None:
        self.queue = queue
        self.job_id = job_id
        self.interval = interval
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._beat(), name=f"casque heartbeat {self.job_id}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        task, self._task = self._task, None
        task.cancel()
        # Not awaited by itself: a cancellation of the block must not be taken for that of the heartbeats.
        [ended] = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended

    async def _beat(self) -> None:
        clock = SystemClock()
        while True:
            await clock.sleep(self.interval.total_seconds())
            try:
                await self.queue.heartbeat(self.job_id)
            except PASSING as error:
                log.warning("heartbeat of job %s failed, trying again: %s", self.job_id, error)
            except JQueueError:
                return

    def __repr__(self) -> str:
        return f"HeartbeatManager(queue={self.queue!r}, job_id={self.job_id!r}, interval={self.interval!r})"
