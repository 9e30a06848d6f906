"""`osqueue.v1.QueueService`: clients of osqueue work against casque as they are.

Its jobs live under one entrypoint. What it promises is kept: first in, first out; a claim that finds nothing says so at
once; a job whose worker is silent for 30 seconds goes to somebody else, as often as it takes, because osqueue has no
place for dead jobs. Heartbeat and Complete are for the worker that holds the job and for nobody else.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, NoReturn

from casque.clock import new_id, new_nonce
from casque.errors import CasqueError, JobNotFoundError, LeaseLostError, QueueLedError
from casque.service import QueueService
from casque.transport.grpc import osqueue_v1_pb2 as pb
from casque.transport.grpc.door import Door
from casque.transport.grpc.refusals import abort
from casque.types import JobRecord, JobSpec, JobState

ENTRYPOINT = "osqueue"
LEASE_MS = 30_000


class Osqueue:
    def __init__(self, door: Door, *, entrypoint: str = ENTRYPOINT, lease_ms: int = LEASE_MS) -> None:
        self._door = door
        self._entrypoint = entrypoint
        self._lease_ms = lease_ms
        self._nonce = new_nonce(door.rng)

    async def push(self, service: QueueService, request: pb.PushRequest, _context: Any) -> pb.PushResponse:
        [job] = await service.enqueue([JobSpec(new_id(self._door.rng), self._entrypoint, request.data)])
        return pb.PushResponse(job_id=job.id)

    async def claim(self, service: QueueService, request: pb.ClaimRequest, context: Any) -> pb.ClaimResponse:
        jobs = await service.dequeue(
            entrypoints=(self._entrypoint,),
            limit=1,
            lease_ms=self._lease_ms,
            worker=self._worker(request.worker_id, context),
        )
        if not jobs:
            return pb.ClaimResponse(empty=True)
        [job] = jobs
        return pb.ClaimResponse(job_id=job.id, data=job.spec.payload)

    async def heartbeat(
        self, service: QueueService, request: pb.HeartbeatRequest, context: Any
    ) -> pb.HeartbeatResponse:
        job = await self._held(service, request.job_id, self._worker(request.worker_id, context))
        await service.heartbeat(job.id, token=job.token)
        return pb.HeartbeatResponse()

    async def complete(self, service: QueueService, request: pb.CompleteRequest, context: Any) -> pb.CompleteResponse:
        job = await self._held(service, request.job_id, self._worker(request.worker_id, context))
        await service.ack(job.id, token=job.token)
        return pb.CompleteResponse()

    async def _held(self, service: QueueService, job_id: str, worker: str) -> JobRecord:
        """The job, if this worker holds it. Its token then keeps what follows from acting on somebody else's claim."""
        await service.heartbeats(())  # of nothing: refused to those who may not work
        # Not as the caller: whoever may work need not be allowed to read.
        job = await self._door.host.service().find(job_id)
        if job is None or job.spec.entrypoint != self._entrypoint:
            raise JobNotFoundError(job_id)
        if job.state is not JobState.RUNNING or job.worker != worker:
            raise LeaseLostError(job_id)
        return job

    def _worker(self, worker_id: str, context: Any) -> str:
        """Who calls. Responses have no place for an id that the broker makes, so a client without one is known by its
        connection: the same id for all its calls, until it connects again."""
        if worker_id:
            return worker_id
        digest = sha256(f"{self._nonce} {context.peer()}".encode()).hexdigest()
        return f"connection-{digest[:32]}"


async def refuse(context: Any, error: CasqueError) -> NoReturn:
    """To osqueue's clients FAILED_PRECONDITION is a job that is somebody else's; a broker that does not lead is one to
    leave."""
    await abort(context, error, code="UNAVAILABLE" if isinstance(error, QueueLedError) else None)
