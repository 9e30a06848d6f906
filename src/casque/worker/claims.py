"""The jobs that a worker holds, from the claim until what became of them is durable."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from casque.client.job import Job
from casque.telemetry.tracing import Handling
from casque.types import Progress
from casque.worker.handlers import Handler, JobContext


class Claim:
    """One of them. Plain and small: there may be thousands in a second."""

    __slots__ = (
        "beaten_ms",
        "context",
        "ended_ms",
        "handler",
        "how",
        "job",
        "left",
        "over",
        "started_ms",
        "stopping",
        "task",
        "told",
        "trace",
        "why",
    )

    def __init__(self, job: Job[bytes], handler: Handler, now_ms: int) -> None:
        self.job = job
        self.handler = handler
        self.context = JobContext(
            job.id,
            job.entrypoint,
            attempt=job.attempts,
            token=job.token,
            headers=job.record.spec.headers,
        )
        self.beaten_ms = now_ms
        """When its lease was last known to be whole."""
        self.told: Progress | None = None
        """The progress that the queue knows of."""
        self.started_ms = 0
        self.ended_ms = 0
        self.task: asyncio.Task[Any] | None = None
        self.over = False
        """Whether it is known what became of it."""
        self.how = ""
        """What became of it, in a word."""
        self.why: str | None = None
        """The error of an attempt that failed."""
        self.trace: Handling | None = None
        self.stopping = False
        """Whether the worker stops and has asked its handler to end: however it ends then, the job goes back."""
        self.left = False
        """Whether nobody will say what became of it: its lease is lost, or is left to run out."""

    def came(self, progress: Progress) -> None:
        """A process says how far it has come."""
        self.context.last_progress = progress


class Claims:
    """All of them: `held` have a lease that must be kept, `waiting` have not been started, `running` have."""

    def __init__(self, gone: Callable[[str, int], None] | None = None) -> None:
        self._gone = gone
        self.held: dict[str, Claim] = {}
        self.waiting: deque[Claim] = deque()
        self.running: dict[Claim, None] = {}
        """In the order in which they were started."""

    def take(self, claim: Claim) -> None:
        self.held[claim.job.id] = claim
        self.waiting.append(claim)

    def drop(self, claim: Claim) -> None:
        """Its lease is no longer ours to keep. The same job may have been claimed again meanwhile."""
        if self.held.get(claim.job.id) is claim:
            del self.held[claim.job.id]
            if self._gone is not None:
                self._gone(claim.job.id, claim.job.token)

    @property
    def open(self) -> int:
        """Claimed, and not over."""
        return len(self.waiting) + len(self.running)
