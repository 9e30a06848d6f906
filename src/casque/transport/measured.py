"""A service whose calls are counted and timed, whichever wire they came by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TypeVar

from casque.errors import CasqueError
from casque.service import ArchivedJob, Lease, Outcome, QueueEvent, QueueService, Stats
from casque.telemetry.metrics import Metrics
from casque.transport import audit
from casque.transport.border import Admit, Wrapper, principal_of
from casque.transport.errors import name_of
from casque.types import (
    Admission,
    Backoff,
    Gate,
    JobRecord,
    JobSpec,
    JobState,
    PeekedZone,
    Schedule,
    ScheduleSpec,
    StagedPart,
    ZoneLease,
    ZoneRules,
    ZoneStanding,
)

T = TypeVar("T")


def measuring(admit: Admit, metrics: Metrics) -> Admit:
    """The same hook for a server, with everything counted that it lets through."""

    def admitted(authorization: str | None) -> Wrapper:
        return _Measuring(admit(authorization), metrics)

    return admitted


class _Measuring:
    """A session's wrapper is asked for every call, and mostly has the same service in its hands as before."""

    def __init__(self, wrapper: Wrapper, metrics: Metrics) -> None:
        self._wrapper = wrapper
        self._metrics = metrics
        self._inner: QueueService | None = None
        self._measured: Measured | None = None
        self.principal_key = principal_of(wrapper)

    def __call__(self, service: QueueService) -> QueueService:
        inner = self._wrapper(service)
        if self._measured is None or inner is not self._inner:
            self._inner, self._measured = inner, Measured(inner, self._metrics)
        return self._measured


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

    def of(self, verb: str) -> OfVerb:
        return OfVerb(verb, self)


class OfVerb:
    """The numbers of one verb, found once: thousands of calls a second are counted here."""

    __slots__ = ("_numbers", "_ok", "_verb", "in_flight", "seconds")

    def __init__(self, verb: str, numbers: Numbers) -> None:
        self._verb = verb
        self._numbers = numbers
        self._ok = numbers.calls.of(verb, "ok")
        self.in_flight = numbers.in_flight.of(verb)
        self.seconds = numbers.seconds.of(verb)

    def went_well(self) -> None:
        self._ok.value += 1

    def went_wrong(self, error: BaseException) -> None:
        if isinstance(error, CasqueError):
            outcome = name_of(error)
            if isinstance(error, audit.REFUSALS):
                audit.refused(self._verb, error)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            outcome = "cancelled"  # the caller has left
        else:
            outcome = "failure"
        self._numbers.calls.of(self._verb, outcome).add()


class Measured:
    """Satisfies `QueueService` by passing everything on, and counts it."""

    def __init__(self, service: QueueService, metrics: Metrics) -> None:
        self._service = service
        self._numbers = Numbers(metrics)
        self._verbs: dict[str, OfVerb] = {}
        self._now: Callable[[], float] | None = None

    async def enqueue(self, specs: Sequence[JobSpec], *, request_id: str | None = None) -> Sequence[JobRecord]:
        # Without a coroutine in between, as for all that is called often.
        with self._counting("enqueue"):
            return await self._service.enqueue(specs, request_id=request_id)

    async def admit(
        self, source: str, batch: int, parts: Sequence[StagedPart], *, skip_known: bool = False
    ) -> Admission:
        return await self._counted("admit", self._service.admit(source, batch, parts, skip_known=skip_known))

    async def dequeue(
        self,
        *,
        entrypoints: tuple[str, ...] | None,
        limit: int,
        first: bool = False,
        lease_ms: int | None = None,
        worker: str | None = None,
        wait_s: float = 0.0,
        request_id: str | None = None,
        zones: tuple[str, ...] | None = None,
        zone_lease: ZoneLease | None = None,
    ) -> list[JobRecord]:
        call = self._service.dequeue(
            entrypoints=entrypoints,
            limit=limit,
            first=first,
            lease_ms=lease_ms,
            worker=worker,
            wait_s=wait_s,
            request_id=request_id,
            zones=zones,
            zone_lease=zone_lease,
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
        with self._counting("ack"):
            await self._service.ack(job_id, token=token, result=result, request_id=request_id)

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

    async def settle(self, outcomes: Sequence[Outcome], *, request_id: str | None = None) -> list[CasqueError | None]:
        return await self._counted("settle", self._service.settle(outcomes, request_id=request_id))

    async def heartbeat(self, job_id: str, *, token: int | None = None) -> JobRecord:
        return await self._counted("heartbeat", self._service.heartbeat(job_id, token=token))

    async def heartbeats(self, leases: Sequence[Lease]) -> list[JobRecord | CasqueError]:
        return await self._counted("heartbeats", self._service.heartbeats(leases))

    async def give_back(self, job_id: str, *, token: int) -> None:
        await self._counted("give_back", self._service.give_back(job_id, token=token))

    async def cancel(self, job_id: str, *, request_id: str | None = None) -> None:
        with audit.recorded("cancel", job_id=job_id):
            await self._counted("cancel", self._service.cancel(job_id, request_id=request_id))

    async def retry(self, job_id: str, *, request_id: str | None = None) -> JobRecord | None:
        with audit.recorded("retry", job_id=job_id):
            return await self._counted("retry", self._service.retry(job_id, request_id=request_id))

    async def purge(
        self, *, entrypoint: str | None = None, request_id: str | None = None, zone: str | None = None
    ) -> int:
        with audit.recorded("purge", entrypoint=entrypoint, zone=zone):
            call = self._service.purge(entrypoint=entrypoint, request_id=request_id, zone=zone)
            return await self._counted("purge", call)

    async def requeue_stale(
        self,
        older_ms: int,
        *,
        entrypoint: str | None = None,
        request_id: str | None = None,
        zone: str | None = None,
    ) -> int:
        with audit.recorded("requeue_stale", older_ms=older_ms, entrypoint=entrypoint, zone=zone):
            asked = self._service.requeue_stale(older_ms, entrypoint=entrypoint, request_id=request_id, zone=zone)
            return await self._counted("requeue_stale", asked)

    async def set_gate(self, gate: Gate, *, entrypoint: str | None = None, request_id: str | None = None) -> None:
        with audit.recorded("set_gate", gate=str(gate), entrypoint=entrypoint):
            call = self._service.set_gate(gate, entrypoint=entrypoint, request_id=request_id)
            await self._counted("set_gate", call)

    async def set_zone(self, zone: str, rules: ZoneRules, *, request_id: str | None = None) -> None:
        with audit.recorded("set_zone", zone=zone, rules=rules):
            await self._counted("set_zone", self._service.set_zone(zone, rules, request_id=request_id))

    async def zones(self, *, names: frozenset[str] | None = None, limit: int = 100) -> list[ZoneStanding]:
        return await self._counted("zones", self._service.zones(names=names, limit=limit))

    async def peek_zones(
        self,
        *,
        entrypoints: tuple[str, ...] | None = None,
        names: frozenset[str] | None = None,
        limit: int = 100,
    ) -> list[PeekedZone]:
        call = self._service.peek_zones(entrypoints=entrypoints, names=names, limit=limit)
        return await self._counted("peek_zones", call)

    async def lease_zone(
        self, zone: str, *, lease_ms: int | None = None, worker: str | None = None, request_id: str | None = None
    ) -> ZoneLease | None:
        call = self._service.lease_zone(zone, lease_ms=lease_ms, worker=worker, request_id=request_id)
        return await self._counted("lease_zone", call)

    async def heartbeat_zone(self, zone: str, *, token: int) -> ZoneLease:
        return await self._counted("heartbeat_zone", self._service.heartbeat_zone(zone, token=token))

    async def release_zone(self, zone: str, *, token: int) -> None:
        with audit.recorded("release_zone", zone=zone, lease=token):
            await self._counted("release_zone", self._service.release_zone(zone, token=token))

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

    async def set_schedule(self, spec: ScheduleSpec) -> Schedule:
        with audit.recorded("set_schedule", name=spec.name, cron=spec.cron, entrypoint=spec.job.entrypoint):
            return await self._counted("set_schedule", self._service.set_schedule(spec))

    async def schedules(self) -> list[Schedule]:
        return await self._counted("schedules", self._service.schedules())

    async def pause_schedule(self, name: str, *, paused: bool) -> Schedule:
        with audit.recorded("pause_schedule", name=name, paused=paused):
            return await self._counted("pause_schedule", self._service.pause_schedule(name, paused=paused))

    async def drop_schedule(self, name: str) -> None:
        with audit.recorded("drop_schedule", name=name):
            await self._counted("drop_schedule", self._service.drop_schedule(name))

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

    def _counting(self, verb: str) -> _Counting:
        numbers = self._verbs.get(verb)
        if numbers is None:
            numbers = self._verbs[verb] = self._numbers.of(verb)
        if self._now is None:
            # Once: to ask for the running loop is a system call on some versions of Python.
            self._now = asyncio.get_running_loop().time
        return _Counting(numbers, self._now)


class _Counting:
    """One call, from its beginning to its end."""

    __slots__ = ("_began", "_now", "_numbers")

    def __init__(self, numbers: OfVerb, now: Callable[[], float]) -> None:
        self._numbers = numbers
        self._now = now

    def __enter__(self) -> None:
        self._numbers.in_flight.value += 1
        self._began = self._now()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        numbers = self._numbers
        numbers.in_flight.value -= 1
        numbers.seconds.observe(self._now() - self._began)
        if error is None:
            numbers.went_well()
        else:
            numbers.went_wrong(error)
