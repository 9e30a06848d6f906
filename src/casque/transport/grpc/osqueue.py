"""`osqueue.v1.QueueService`: clients of osqueue work against casque unchanged.

Its jobs live under one entrypoint. casque keeps osqueue's guarantees: first in, first out; a claim that finds nothing
returns at once; a job whose worker is silent for too long goes to another worker, without a limit on attempts,
because osqueue has no dead jobs. Only the worker that holds a job can call Heartbeat and Complete for it.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from casque.clock import new_id, new_nonce
from casque.errors import CasqueError, InvalidInputError, JobNotFoundError, LeaseLostError, QueueLedError
from casque.service import QueueService
from casque.transport.errors import grpc_code
from casque.transport.grpc import osqueue_v1_pb2 as pb
from casque.transport.grpc.door import Door
from casque.types import JobRecord, JobSpec, JobState

ENTRYPOINT = "osqueue"
LEASE_MS = 30_000
DATA_MAX = 4 * 1024 * 1024 - 1024
"""gRPC clients take messages of at most 4 MiB by default: a larger job could be pushed and never claimed."""


class Osqueue:
    def __init__(self, door: Door, *, entrypoint: str = ENTRYPOINT, lease_ms: int = LEASE_MS) -> None:
        self._door = door
        self._entrypoint = entrypoint
        self._lease_ms = lease_ms
        self._nonce = new_nonce(door.rng)

    async def push(self, service: QueueService, request: pb.PushRequest, _context: Any) -> pb.PushResponse:
        if len(request.data) > DATA_MAX:
            raise InvalidInputError(
                f"data has {len(request.data):,} bytes, and clients of osqueue can claim {DATA_MAX:,}: put it into "
                "an object of your own and push its name"
            )
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
        """The job, if this worker holds it. Its lease token then prevents later calls from acting on another claim."""
        await service.heartbeats(())  # empty: refuses callers that may not work
        # Not as the caller: a caller that may work need not be allowed to read.
        job = await self._door.host.service().find(job_id)
        if job is None or job.spec.entrypoint != self._entrypoint:
            raise JobNotFoundError(job_id)
        if job.state is not JobState.RUNNING or job.worker != worker:
            raise LeaseLostError(job_id)
        return job

    def _worker(self, worker_id: str, context: Any) -> str:
        """The caller's worker id. Responses have no field for an id made by the broker, so a client without one is
        identified by its connection: all its calls share an id until it reconnects."""
        if worker_id:
            return worker_id
        digest = sha256(f"{self._nonce} {context.peer()}".encode()).hexdigest()
        return f"connection-{digest[:32]}"


def code(error: CasqueError) -> str:
    """osqueue's clients read FAILED_PRECONDITION as a job held by another worker, so a broker that does not lead
    answers with a code that makes them go elsewhere."""
    return "UNAVAILABLE" if isinstance(error, QueueLedError) else grpc_code(error)
