"""The queue service in this very process: commands made here, carried out by an executor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import cast

from casque.engine.group import GroupCommit
from casque.engine.history import History
from casque.engine.operation import Executor
from casque.errors import CasqueError, NoHistoryError
from casque.service import ArchivedJob, Lease, QueueEvent, Stats
from casque.settings import QueueSettings
from casque.state import (
    Ack,
    Cancel,
    Dequeue,
    Enqueue,
    Expire,
    GiveBack,
    Heartbeat,
    Nack,
    Observed,
    Purge,
    Retry,
    State,
)
from casque.types import Backoff, JobRecord, JobSpec, JobState


class EmbeddedService:
    """Satisfies `QueueService` without any transport."""

    def __init__(self, executor: Executor, settings: QueueSettings, history: History | None = None) -> None:
        self._executor = executor
        self._history = history
        self._lease_ms = settings.lease_ms

    async def enqueue(self, specs: Sequence[JobSpec], *, request_id: str | None = None) -> Sequence[JobRecord]:
        if not specs:
            return ()
        return cast(Sequence[JobRecord], await self._executor.execute(Enqueue(tuple(specs), request_id)))

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
        command = Dequeue(entrypoints, limit, lease_ms or self._lease_ms, worker, request_id)
        if wait_s > 0 and isinstance(self._executor, GroupCommit):
            return cast(list[JobRecord], await self._executor.dequeue(command, wait_s=wait_s))
        return cast(list[JobRecord], await self._executor.execute(command))

    async def ack(
        self, job_id: str, *, token: int | None = None, result: bytes | None = None, request_id: str | None = None
    ) -> None:
        await self._executor.execute(Ack(job_id, token, request_id, result))

    async def nack(
        self,
        job_id: str,
        *,
        token: int | None = None,
        delay_ms: int | None = None,
        backoff: Backoff | None = None,
        error: str | None = None,
        request_id: str | None = None,
    ) -> JobRecord | None:
        command = Nack(job_id, token, delay_ms, backoff, error, request_id)
        return cast(JobRecord | None, await self._executor.execute(command))

    async def heartbeat(self, job_id: str, *, token: int | None = None) -> JobRecord:
        return cast(JobRecord, await self._executor.execute(Heartbeat(job_id, token)))

    async def heartbeats(self, leases: Sequence[Lease]) -> list[JobRecord | CasqueError]:
        beats = [self._executor.execute(Heartbeat(lease.job_id, lease.token)) for lease in leases]
        answers = await asyncio.gather(*beats, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, CasqueError):
                raise answer
        return cast("list[JobRecord | CasqueError]", answers)

    async def give_back(self, job_id: str, *, token: int) -> None:
        await self._executor.execute(GiveBack(job_id, token))

    async def cancel(self, job_id: str, *, request_id: str | None = None) -> None:
        await self._executor.execute(Cancel(job_id, request_id))

    async def retry(self, job_id: str, *, request_id: str | None = None) -> JobRecord | None:
        return cast(JobRecord | None, await self._executor.execute(Retry(job_id, request_id)))

    async def purge(self, *, entrypoint: str | None = None, request_id: str | None = None) -> int:
        return cast(int, await self._executor.execute(Purge(entrypoint, request_id)))

    async def expire_before(self, cutoff_ms: int) -> int:
        """Take back every lease whose last sign of life was written before `cutoff_ms`; answers how many.

        The one verb that trusts a written time, because an operator asked for it by name.
        """

        def stale(state: State, _now_ms: int) -> tuple[Observed, ...]:
            return tuple(
                Observed(job.spec.id, job.token, job.beat_ms)
                for job in state.leases()
                if job.beat_ms is None or job.beat_ms < cutoff_ms
            )

        leases = await self._executor.look(stale)
        return cast(int, await self._executor.execute(Expire(leases))) if leases else 0

    async def find(self, job_id: str) -> JobRecord | None:
        return cast(JobRecord | None, await self._executor.look(lambda state, _now: state.jobs.get(job_id)))

    async def jobs(
        self,
        *,
        states: frozenset[JobState] | None = None,
        entrypoint: str | None = None,
        limit: int | None = None,
        after: int = 0,
    ) -> list[JobRecord]:
        def chosen(state: State, now_ms: int) -> list[JobRecord]:
            found: list[JobRecord] = []
            for job in state.listed():
                if limit is not None and len(found) >= limit:
                    break
                if job.sequence <= after:
                    continue
                if entrypoint is not None and job.spec.entrypoint != entrypoint:
                    continue
                if states is None or state_at(job, now_ms) in states:
                    found.append(job)
            return found

        return cast(list[JobRecord], await self._executor.look(chosen))

    async def stats(self) -> Stats:
        def counted(state: State, now_ms: int) -> Stats:
            # The batch this look travels in makes the next position, if it writes anything at all.
            return Stats(state.position + bool(state.events), state.totals(now_ms))

        return cast(Stats, await self._executor.look(counted))

    def events(self, *, from_position: int | None = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        return self._past.events(from_position=from_position, follow=follow)

    def archive(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        entrypoint: str | None = None,
        states: frozenset[JobState] | None = None,
    ) -> AsyncGenerator[ArchivedJob]:
        return self._past.archive(since=since, until=until, entrypoint=entrypoint, states=states)

    @property
    def _past(self) -> History:
        if self._history is None:
            raise NoHistoryError
        return self._history


def state_at(job: JobRecord, now_ms: int) -> JobState:
    """A delayed job whose time has come is ready, though nothing was written about it."""
    if job.state is JobState.DELAYED and job.due_ms <= now_ms:
        return JobState.READY
    return job.state
