"""The unary calls of `casque.v1.Queue`, for programs in any language."""

from __future__ import annotations

from typing import Any

from casque.errors import InvalidInputError
from casque.service import QueueService
from casque.service.requests import Dequeue, Reschedule
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.grpc import messages, packets
from casque.transport.grpc.door import Door
from casque.transport.grpc.messages import given
from casque.transport.settling import refused_among
from casque.types import JobRecord, StagedPart

ANSWER_BYTES = 4 * 1024 * 1024 - 64 * 1024
"""The largest message that clients accept by default, minus some room."""


class Verbs:
    """Each method takes a service, a request and gRPC's context and returns a response; `unary` adds the wire."""

    def __init__(self, door: Door, max_attempts: int | None) -> None:
        self._door = door
        self._attempts_max = max_attempts

    async def enqueue(self, service: QueueService, request: pb.EnqueueRequest, _context: Any) -> pb.EnqueueResponse:
        door = self._door
        specs = [
            messages.spec(new, max_attempts=self._attempts_max, clock=door.clock, rng=door.rng) for new in request.jobs
        ]
        added = await service.enqueue(specs, request_id=request.request_id or None)
        return pb.EnqueueResponse(jobs=map(messages.outline, added))

    async def admit(self, service: QueueService, request: pb.AdmitRequest, _context: Any) -> pb.AdmitResponse:
        parts = [StagedPart(part.key, part.sha256, part.jobs, part.bytes) for part in request.parts]
        admitted = await service.admit(request.source, request.batch, parts, skip_known=request.skip_known)
        return pb.AdmitResponse(
            jobs=admitted.jobs, skipped=admitted.skipped, repeated=admitted.repeated, position=admitted.position
        )

    async def dequeue(self, service: QueueService, request: pb.DequeueRequest, _context: Any) -> pb.DequeueResponse:
        if request.wait_ms < 0:
            raise InvalidInputError(f"wait_ms must be a whole number from 0, not {request.wait_ms}")
        ask = Dequeue(
            tuple(request.entrypoints) or None,
            request.limit or 1,
            given(request, "lease_ms"),
            given(request, "worker"),
            request.request_id or None,
            tuple(request.zones) or None,
            (request.zone_lease.zone, request.zone_lease.token) if request.HasField("zone_lease") else None,
            request.wait_ms / 1000,
        )
        jobs = await self._door.wait_for_jobs(service, ask)
        return pb.DequeueResponse(jobs=map(messages.job, self._fitting(service, jobs)))

    def _fitting(self, service: QueueService, jobs: list[JobRecord]) -> list[JobRecord]:
        """The jobs that fit into one message for the caller, at least one; give the others back."""
        room = ANSWER_BYTES
        for count, job in enumerate(jobs):
            room -= packets.weight(job)
            if room < 0 and count:
                self._door.give_back(service, jobs[count:])
                return jobs[:count]
        return jobs

    async def ack(self, service: QueueService, request: pb.AckRequest, _context: Any) -> pb.AckResponse:
        await service.ack(
            request.job_id,
            token=given(request, "token"),
            result=given(request, "result"),
            request_id=request.request_id or None,
        )
        return pb.AckResponse()

    async def nack(self, service: QueueService, request: pb.NackRequest, _context: Any) -> pb.NackResponse:
        job = await service.nack(
            request.job_id,
            token=given(request, "token"),
            delay_ms=given(request, "delay_ms"),
            backoff=messages.backoff(request, self._door.rng),
            error=given(request, "error"),
            request_id=request.request_id or None,
        )
        return pb.NackResponse(job=_outline(job))

    async def settle(self, service: QueueService, request: pb.SettleRequest, _context: Any) -> pb.SettleResponse:
        outcomes = [messages.outcome(one, self._door.rng) for one in request.outcomes]
        answers = await service.settle(outcomes, request_id=request.request_id or None)
        return pb.SettleResponse(refused=map(messages.refused, refused_among(answers)))

    async def heartbeat(
        self, service: QueueService, request: pb.HeartbeatRequest, _context: Any
    ) -> pb.HeartbeatResponse:
        answers = await service.heartbeats(list(map(messages.lease, request.leases)))
        return pb.HeartbeatResponse(answers=map(messages.beat, answers))

    async def give_back(self, service: QueueService, request: pb.GiveBackRequest, _context: Any) -> pb.GiveBackResponse:
        await service.give_back(request.job_id, token=request.token)
        return pb.GiveBackResponse()

    async def cancel(self, service: QueueService, request: pb.CancelRequest, _context: Any) -> pb.CancelResponse:
        await service.cancel(request.job_id, request_id=request.request_id or None)
        return pb.CancelResponse()

    async def retry(self, service: QueueService, request: pb.RetryRequest, _context: Any) -> pb.RetryResponse:
        return pb.RetryResponse(
            job=_outline(await service.retry(request.job_id, request_id=request.request_id or None))
        )

    async def reschedule(
        self, service: QueueService, request: pb.RescheduleRequest, _context: Any
    ) -> pb.RescheduleResponse:
        asked = Reschedule(
            request.job_id, given(request, "run_at_ms"), given(request, "priority"), request.request_id or None
        )
        return pb.RescheduleResponse(job=_outline(await service.call(asked)))

    async def purge(self, service: QueueService, request: pb.PurgeRequest, _context: Any) -> pb.PurgeResponse:
        purged = await service.purge(
            entrypoint=given(request, "entrypoint"),
            request_id=request.request_id or None,
            zone=given(request, "zone"),
        )
        return pb.PurgeResponse(purged=purged)

    async def requeue_stale(
        self, service: QueueService, request: pb.RequeueStaleRequest, _context: Any
    ) -> pb.RequeueStaleResponse:
        requeued = await service.requeue_stale(
            request.older_ms,
            entrypoint=given(request, "entrypoint"),
            request_id=request.request_id or None,
            zone=given(request, "zone"),
        )
        return pb.RequeueStaleResponse(requeued=requeued)

    async def set_gate(self, service: QueueService, request: pb.SetGateRequest, _context: Any) -> pb.SetGateResponse:
        gate = messages.gate(request.gate)
        await service.set_gate(gate, entrypoint=given(request, "entrypoint"), request_id=request.request_id or None)
        return pb.SetGateResponse()

    async def set_zone(self, service: QueueService, request: pb.SetZoneRequest, _context: Any) -> pb.SetZoneResponse:
        rules = messages.zone_rules(request.rules)
        await service.set_zone(request.zone, rules, request_id=request.request_id or None)
        return pb.SetZoneResponse()

    async def zones(self, service: QueueService, request: pb.ZonesRequest, _context: Any) -> pb.ZonesResponse:
        found = await service.zones(names=frozenset(request.names) or None, limit=request.limit or 100)
        return pb.ZonesResponse(zones=map(messages.zone, found))

    async def peek_zones(
        self, service: QueueService, request: pb.PeekZonesRequest, _context: Any
    ) -> pb.PeekZonesResponse:
        found = await service.peek_zones(
            entrypoints=tuple(request.entrypoints) or None,
            names=frozenset(request.names) or None,
            limit=request.limit or 100,
        )
        return pb.PeekZonesResponse(zones=map(messages.peeked_zone, found))

    async def lease_zone(
        self, service: QueueService, request: pb.LeaseZoneRequest, _context: Any
    ) -> pb.LeaseZoneResponse:
        lease = await service.lease_zone(
            request.zone,
            lease_ms=given(request, "lease_ms"),
            worker=given(request, "worker"),
            request_id=request.request_id or None,
        )
        return pb.LeaseZoneResponse(lease=messages.zone_lease(lease))

    async def heartbeat_zone(
        self, service: QueueService, request: pb.HeartbeatZoneRequest, _context: Any
    ) -> pb.HeartbeatZoneResponse:
        lease = await service.heartbeat_zone(request.zone, token=request.token)
        return pb.HeartbeatZoneResponse(lease=messages.zone_lease(lease))

    async def release_zone(
        self, service: QueueService, request: pb.ReleaseZoneRequest, _context: Any
    ) -> pb.ReleaseZoneResponse:
        await service.release_zone(request.zone, token=request.token)
        return pb.ReleaseZoneResponse()

    async def find(self, service: QueueService, request: pb.FindRequest, _context: Any) -> pb.FindResponse:
        job = await service.find(request.job_id)
        return pb.FindResponse(job=None if job is None else messages.job(job))

    async def stats(self, service: QueueService, _request: pb.StatsRequest, _context: Any) -> pb.StatsResponse:
        return messages.stats(await service.stats())

    async def set_schedule(
        self, service: QueueService, request: pb.SetScheduleRequest, _context: Any
    ) -> pb.SetScheduleResponse:
        door = self._door
        spec = messages.schedule_spec(request.schedule, max_attempts=self._attempts_max, clock=door.clock, rng=door.rng)
        return pb.SetScheduleResponse(schedule=messages.schedule(await service.set_schedule(spec)))

    async def schedules(
        self, service: QueueService, _request: pb.SchedulesRequest, _context: Any
    ) -> pb.SchedulesResponse:
        return pb.SchedulesResponse(schedules=map(messages.schedule, await service.schedules()))

    async def pause_schedule(
        self, service: QueueService, request: pb.PauseScheduleRequest, _context: Any
    ) -> pb.PauseScheduleResponse:
        paused = await service.pause_schedule(request.name, paused=request.paused)
        return pb.PauseScheduleResponse(schedule=messages.schedule(paused))

    async def drop_schedule(
        self, service: QueueService, request: pb.DropScheduleRequest, _context: Any
    ) -> pb.DropScheduleResponse:
        await service.drop_schedule(request.name)
        return pb.DropScheduleResponse()


def _outline(record: JobRecord | None) -> pb.Job | None:
    return None if record is None else messages.outline(record)
