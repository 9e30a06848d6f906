"""The protocol of every queue service: embedded, over a wire, or through a ring.

Values that cross it are frozen. Every refusal is one of `casque.errors`. A request that carries a `request_id` may be
repeated with the same id: it gets the same answer and acts once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from datetime import datetime
from typing import Protocol, TypedDict, TypeVar

from casque.errors import CasqueError
from casque.service import requests
from casque.service.answers import ArchivedJob, Known, QueueEvent, Stats, ZoneOrKey
from casque.service.outcomes import Lease, Outcome
from casque.service.requests import Request
from casque.types import (
    Admission,
    Backoff,
    Gate,
    JobRecord,
    JobSpec,
    JobState,
    PeekedZone,
    Reach,
    Schedule,
    ScheduleSpec,
    StagedPart,
    ZoneLease,
    ZoneRules,
    ZoneStanding,
)

A = TypeVar("A")


class ArchiveFilter(TypedDict, total=False):
    """The arguments of `QueueService.archive`, for services that hand them on."""

    since: datetime | None
    until: datetime | None
    entrypoint: str | None
    states: frozenset[JobState] | None


class QueueService(Protocol):
    """A queue: requests in, answers out, and two streams. No call returns before its effect is durable.

    Every verb exists twice: as a value for `call`, and as a method that builds the value.
    """

    def call(self, request: Request[A]) -> Awaitable[A]:
        """Carry out a request."""
        ...

    def events(self, *, from_position: int | None = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        """The events after a position, or from now on; without `follow` up to the end of the log."""
        ...

    def archive(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        entrypoint: str | None = None,
        states: frozenset[JobState] | None = None,
    ) -> AsyncGenerator[ArchivedJob]:
        """Finished jobs, hour by hour; `since` and `until` (exclusive) refer to when they finished."""
        ...

    # --- Each verb as a method: see `requests` for what it does ---

    async def enqueue(self, specs: Sequence[JobSpec], *, request_id: str | None = None) -> Sequence[JobRecord]:
        return await self.call(requests.Enqueue(tuple(specs), request_id))

    async def admit(
        self, source: str, batch: int, parts: Sequence[StagedPart], *, skip_known: bool = False
    ) -> Admission:
        return await self.call(requests.Admit(source, batch, tuple(parts), skip_known))

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
        lease = None if zone_lease is None else (zone_lease.zone, zone_lease.token)
        return await self.call(
            requests.Dequeue(entrypoints, limit, lease_ms, worker, request_id, zones, lease, wait_s, first)
        )

    async def ack(
        self, job_id: str, *, token: int | None = None, result: bytes | None = None, request_id: str | None = None
    ) -> None:
        return await self.call(requests.Ack(job_id, token, request_id, result))

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
        return await self.call(requests.Nack(job_id, token, delay_ms, backoff, error, request_id))

    async def settle(self, outcomes: Sequence[Outcome], *, request_id: str | None = None) -> list[CasqueError | None]:
        return await self.call(requests.Settle(tuple(outcomes), request_id))

    async def heartbeat(self, job_id: str, *, token: int | None = None) -> JobRecord:
        return await self.call(requests.Heartbeat(job_id, token))

    async def heartbeats(self, leases: Sequence[Lease]) -> list[JobRecord | CasqueError]:
        return await self.call(requests.Heartbeats(tuple(leases)))

    async def give_back(self, job_id: str, *, token: int) -> None:
        return await self.call(requests.GiveBack(job_id, token))

    async def cancel(self, job_id: str, *, request_id: str | None = None) -> None:
        return await self.call(requests.Cancel(job_id, request_id))

    async def retry(self, job_id: str, *, request_id: str | None = None) -> JobRecord | None:
        return await self.call(requests.Retry(job_id, request_id))

    async def purge(
        self, *, entrypoint: str | None = None, request_id: str | None = None, zone: str | None = None
    ) -> int:
        return await self.call(requests.Purge(entrypoint, request_id, zone))

    async def requeue_stale(
        self,
        older_ms: int,
        *,
        entrypoint: str | None = None,
        request_id: str | None = None,
        zone: str | None = None,
    ) -> int:
        return await self.call(requests.RequeueStale(older_ms, entrypoint, request_id, zone))

    async def set_gate(self, gate: Gate, *, entrypoint: str | None = None, request_id: str | None = None) -> None:
        return await self.call(requests.SetGate(gate, entrypoint, request_id))

    async def set_zone(self, zone: str, rules: ZoneRules, *, request_id: str | None = None) -> None:
        return await self.call(requests.SetZone(zone, rules, request_id))

    async def zones(self, *, names: frozenset[str] | None = None, limit: int = 100) -> list[ZoneStanding]:
        return await self.call(requests.ListZones(names, limit))

    async def peek_zones(
        self,
        *,
        entrypoints: tuple[str, ...] | None = None,
        names: frozenset[str] | None = None,
        limit: int = 100,
    ) -> list[PeekedZone]:
        return await self.call(requests.PeekZones(entrypoints, names, limit))

    async def lease_zone(
        self, zone: str, *, lease_ms: int | None = None, worker: str | None = None, request_id: str | None = None
    ) -> ZoneLease | None:
        return await self.call(requests.LeaseZone(zone, lease_ms, worker, request_id))

    async def heartbeat_zone(self, zone: str, *, token: int) -> ZoneLease:
        return await self.call(requests.HeartbeatZone(zone, token))

    async def release_zone(self, zone: str, *, token: int) -> None:
        return await self.call(requests.ReleaseZone(zone, token))

    async def find(self, job_id: str) -> JobRecord | None:
        return await self.call(requests.Find(job_id))

    async def jobs(
        self,
        *,
        states: frozenset[JobState] | None = None,
        entrypoint: str | None = None,
        limit: int | None = None,
        after: int = 0,
    ) -> list[JobRecord]:
        return await self.call(requests.ListJobs(states, entrypoint, limit, after))

    async def stats(self) -> Stats:
        return await self.call(requests.GetStats())

    async def set_schedule(self, spec: ScheduleSpec) -> Schedule:
        return await self.call(requests.SetSchedule(spec))

    async def schedules(self) -> list[Schedule]:
        return await self.call(requests.ListSchedules())

    async def pause_schedule(self, name: str, *, paused: bool) -> Schedule:
        return await self.call(requests.PauseSchedule(name, paused))

    async def drop_schedule(self, name: str) -> None:
        return await self.call(requests.DropSchedule(name))


class ScopedService(QueueService, Protocol):
    """A queue that can be restricted to what a caller may name."""

    def within(self, reach: Reach) -> QueueService:
        """The same queue for a limited caller: jobs and schedules beyond its reach do not exist for it. The check
        happens
        where the call is carried out, so that a name cannot change its owner in between."""
        ...


class ShardService(QueueService, Protocol):
    """One shard of a ring: a queue, and the ring's own requests. Its numbers and tokens are its own."""

    def within(self, reach: Reach) -> ShardService:
        """As `ScopedService`."""
        ...

    async def enqueue(
        self, specs: Sequence[JobSpec], *, request_id: str | None = None, generation: int = 0
    ) -> Sequence[JobRecord]:
        """Add jobs, all or none. `generation`: of the ring that the caller knows.

        Raises:
            ZoneMovedError: they belong elsewhere, or the caller's ring is outdated; nothing was done.
        """
        return await self.call(requests.Enqueue(tuple(specs), request_id, generation))

    async def admit(
        self,
        source: str,
        batch: int,
        parts: Sequence[StagedPart],
        *,
        skip_known: bool = False,
        generation: int = 0,
    ) -> Admission:
        """Add staged jobs, all or none. No parts means that nothing of this batch will ever come.

        Raises:
            ZoneMovedError: they belong elsewhere, or the caller's ring is outdated; nothing was done.
        """
        return await self.call(requests.Admit(source, batch, tuple(parts), skip_known, generation))

    async def adopt(self, generation: int, size: int) -> int:
        return await self.call(requests.Adopt(generation, size))

    async def known(
        self,
        job_ids: Sequence[str] = (),
        *,
        request_id: str | None = None,
        places: Sequence[ZoneOrKey] = (),
        admission: tuple[str, int] | None = None,
    ) -> Known:
        return await self.call(requests.AskKnown(tuple(job_ids), request_id, tuple(places), admission))

    async def copy_gate(self, gate: Gate, *, entrypoint: str | None, since: int) -> None:
        return await self.call(requests.CopyGate(gate, entrypoint, since))

    async def copy_zone(self, zone: str, rules: ZoneRules, *, since: int) -> None:
        return await self.call(requests.CopyZone(zone, rules, since))

    async def has_due(self, entrypoints: tuple[str, ...] | None, zones: tuple[str, ...] | None) -> bool:
        return await self.call(requests.HasDue(entrypoints, zones))
