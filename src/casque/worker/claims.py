"""The jobs that a worker holds, from the claim until their outcome is durable."""

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
    """A claimed job. Plain and small: there may be thousands per second."""

    __slots__ = (
        "beaten_ms",
        "claimed_ms",
        "context",
        "ended",
        "ended_ms",
        "handler",
        "how",
        "job",
        "left",
        "reported",
        "started_ms",
        "stopping",
        "task",
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
        self.claimed_ms = self.beaten_ms = now_ms
        """When its lease was last known to be valid."""
        self.reported: Progress | None = None
        """The progress last sent to the queue."""
        self.started_ms = 0
        self.ended_ms = 0
        self.task: asyncio.Task[Any] | None = None
        self.ended = False
        """Whether it has an outcome."""
        self.how = ""
        """Kind of the outcome, such as `done`."""
        self.why: str | None = None
        """The error of a failed attempt."""
        self.trace: Handling | None = None
        self.stopping = False
        """Whether the worker is stopping and has asked the handler to end: the job then goes back, however it ends."""
        self.left = False
        """Whether no outcome will be reported: the lease is lost, or is left to expire."""

    @property
    def waited_ms(self) -> int:
        """From its due time to its start, or to its claim if it has not started. The queue's clock measures until the
        claim and the worker's from then on, so the two need not agree."""
        job = self.job.record
        until_claim_ms = 0 if job.claimed_ms is None else max(job.claimed_ms - job.due_ms, 0)
        return until_claim_ms + max(self.started_ms - self.claimed_ms, 0)

    def record_progress(self, progress: Progress) -> None:
        """Record progress from a child process."""
        self.context.last_progress = progress


class Claims:
    """All claims: `held` have a lease to keep, `waiting` are not started yet, `running` are."""

    def __init__(self, gone: Callable[[str, int], None] | None = None) -> None:
        self._gone = gone
        self.held: dict[str, Claim] = {}
        self.waiting: deque[Claim] = deque()
        self.running: dict[Claim, None] = {}
        """In the order of their start."""

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
        """Number of claims without an outcome."""
        return len(self.waiting) + len(self.running)
