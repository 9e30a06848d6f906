"""A service whose calls are counted and timed, whichever wire they came by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from datetime import datetime
from typing import TypeVar

from casque.errors import CasqueError
from casque.service import ArchivedJob, Lease, QueueEvent, QueueService, Stats
from casque.telemetry.metrics import Metrics
from casque.transport.border import Admit, Wrapper
from casque.transport.errors import name_of
from casque.types import Backoff, JobRecord, JobSpec, JobState

T = TypeVar("T")


def measuring(admit: Admit, metrics: Metrics) -> Admit:
    """The same hook for a server, with everything counted that it lets through, and what it refuses to let through."""

    def admitted(authorization: str | None) -> Wrapper:
        wrapper = admit(authorization)
        made: tuple[QueueService, QueueService] | None = None

        def measured(service: QueueService) -> QueueService:
            nonlocal made
            wrapped = wrapper(service)
            # A stream of calls meets the same service until the lead changes.
            if made is None or made[0] is not wrapped:
                made = (wrapped, Measured(wrapped, metrics))
            return made[1]

        return measured

    return admitted


class Numbers:
    """What is counted about calls. To be made once before the first call, so that there are zeros to be seen."""

    def __init__(self, metrics: Metrics) -> None:
        self.calls = metrics.counter(
            "casque_calls_total", "Calls that ended, by outcome: ok, cancelled, or an error.", ("verb", "outcome")
        )
        self.seconds = metrics.histogram(
            "casque_call_duration_seconds", "How long calls took, the waiting of a dequeue included.", ("verb",)
        )
        self.in_flight = metrics.gauge("casque_calls_in_flight", "Calls that are being carried out.", ("verb",))
        self.waiting = metrics.gauge("casque_dequeues_waiting", "Dequeues that may wait for a job.").of()


class Measured:
    """Satisfies `QueueService` by passing everything on, and counts it."""

    def __init__(self, service: QueueService, metrics: Metrics) -> None:
        self._service = service
        self._numbers = Numbers(metrics)

    async def enqueue(self, specs: Sequence[JobSpec], *, request_id: str | None = None) -> Sequence[JobRecord]:
        return await self._counted("enqueue", self._service.enqueue(specs, request_id=request_id))

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
        call = self._service.dequeue(
            entrypoints=entrypoints,
            limit=limit,
            lease_ms=lease_ms,
            worker=worker,
            wait_s=wait_s,
            request_id=request_id,
        )
        waiting = self._numbers.waiting
        waiting.add(1 if wait_s > 0 else 0)
        try:
            return await self._counted("dequeue", call)
        finally:
            waiting.add(-1 if wait_s > 0 else 0)

    async def ack(
        self, job_id: str, *, token: int | None = None, result: bytes | None = None, request_id: str | None = None
    ) -> None:
        await self._counted("ack", self._service.ack(job_id, token=token, result=result, request_id=request_id))

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
        call = self._service.nack(
            job_id, token=token, delay_ms=delay_ms, backoff=backoff, error=error, request_id=request_id
        )
        return await self._counted("nack", call)

    async def heartbeat(self, job_id: str, *, token: int | None = None) -> JobRecord:
        return await self._counted("heartbeat", self._service.heartbeat(job_id, token=token))

    async def heartbeats(self, leases: Sequence[Lease]) -> list[JobRecord | CasqueError]:
        return await self._counted("heartbeats", self._service.heartbeats(leases))

    async def give_back(self, job_id: str, *, token: int) -> None:
        await self._counted("give_back", self._service.give_back(job_id, token=token))

    async def cancel(self, job_id: str, *, request_id: str | None = None) -> None:
        await self._counted("cancel", self._service.cancel(job_id, request_id=request_id))

    async def retry(self, job_id: str, *, request_id: str | None = None) -> JobRecord | None:
        return await self._counted("retry", self._service.retry(job_id, request_id=request_id))

    async def purge(self, *, entrypoint: str | None = None, request_id: str | None = None) -> int:
        return await self._counted("purge", self._service.purge(entrypoint=entrypoint, request_id=request_id))

    async def find(self, job_id: str) -> JobRecord | None:
        return await self._counted("find", self._service.find(job_id))

    async def jobs(
        self,
        *,
        states: frozenset[JobState] | None = None,
        entrypoint: str | None = None,
        limit: int | None = None,
        after: int = 0,
    ) -> list[JobRecord]:
        call = self._service.jobs(states=states, entrypoint=entrypoint, limit=limit, after=after)
        return await self._counted("jobs", call)

    async def stats(self) -> Stats:
        return await self._counted("stats", self._service.stats())

    async def events(self, *, from_position: int | None = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        stream = self._service.events(from_position=from_position, follow=follow)
        with self._counting("events"):
            async with aclosing(stream):
                async for event in stream:
                    yield event

    async def archive(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        entrypoint: str | None = None,
        states: frozenset[JobState] | None = None,
    ) -> AsyncGenerator[ArchivedJob]:
        stream = self._service.archive(since=since, until=until, entrypoint=entrypoint, states=states)
        with self._counting("archive"):
            async with aclosing(stream):
                async for job in stream:
                    yield job

    async def _counted(self, verb: str, call: Awaitable[T]) -> T:
        with self._counting(verb):
            return await call

    @contextmanager
    def _counting(self, verb: str) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = self._numbers
        in_flight = numbers.in_flight.of(verb)
        in_flight.add()
        began = loop.time()
        outcome = "ok"
        try:
            yield
        except CasqueError as error:
            outcome = name_of(error)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "cancelled"  # the caller has left
            raise
        except BaseException:
            outcome = "failure"
            raise
        finally:
            in_flight.add(-1)
            numbers.seconds.of(verb).observe(loop.time() - began)
            numbers.calls.of(verb, outcome).add()
