"""The one protocol that every way to reach a queue speaks: embedded today, over a wire later.

Values that cross it are frozen. Every refusal is one of `casque.errors`. A call that carries a `request_id` may be
repeated with the same id: it gets the same answer and acts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from casque.types import Backoff, JobRecord, JobSpec, JobState, Totals


class Stats(msgspec.Struct, frozen=True):
    """How a queue stands after its last commit."""

    position: int
    totals: Totals


class QueueService(Protocol):
    """A queue's verbs. No call returns before what it did is durable."""

    async def enqueue(self, specs: Sequence[JobSpec], *, request_id: str | None = None) -> Sequence[JobRecord]:
        """Add jobs, all or none."""
        ...

    async def dequeue(
        self,
        *,
        entrypoints: tuple[str, ...] | None,
        limit: int,
        lease_ms: int | None = None,
        worker: str | None = None,
        wait_s: float = 0.0,
        request_id: str | None = None,
    ) -> list[JobRecord]:
        """Claim up to `limit` jobs; with `wait_s`, wait that long for a first one."""
        ...

    async def ack(self, job_id: str, *, token: int | None = None, request_id: str | None = None) -> None: ...

    async def nack(
        self,
        job_id: str,
        *,
        token: int | None = None,
        delay_ms: int | None = None,
        backoff: Backoff | None = None,
        error: str | None = None,
        request_id: str | None = None,
    ) -> JobRecord | None: ...

    async def heartbeat(self, job_id: str, *, token: int | None = None) -> JobRecord: ...

    async def give_back(self, job_id: str, *, token: int) -> None:
        """Return a claim that was not worked on; it does not count as an attempt."""
        ...

    async def cancel(self, job_id: str, *, request_id: str | None = None) -> None: ...

    async def retry(self, job_id: str, *, request_id: str | None = None) -> JobRecord | None: ...

    async def purge(self, *, entrypoint: str | None = None, request_id: str | None = None) -> int: ...

    async def find(self, job_id: str) -> JobRecord | None: ...

    async def jobs(
        self, *, states: frozenset[JobState] | None = None, entrypoint: str | None = None, limit: int | None = None
    ) -> list[JobRecord]:
        """Unfinished and dead jobs in enqueue order."""
        ...

    async def stats(self) -> Stats: ...
