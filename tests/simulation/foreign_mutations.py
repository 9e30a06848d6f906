"""Mistakes in what programs of other languages call, each made in the real code for the length of a test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from casque.clock import new_id
from casque.errors import CasqueError, JobNotFoundError, NoLeaderError, UnknownOutcomeError
from casque.service import QueueService
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.grpc import messages, osqueue_v1_pb2, refusals, unary, verbs
from casque.transport.grpc.osqueue import Osqueue
from casque.transport.grpc.verbs import Verbs
from casque.types import JobRecord, JobSpec


def osqueue_jobs_completed_by_whoever_names_them(patch: pytest.MonkeyPatch) -> None:
    """Whose job it is, is not looked at: one that lost its lease completes the work of another."""

    async def held(self: Osqueue, _service: QueueService, job_id: str, _worker: str) -> JobRecord:
        job = await self._door.host.service().find(job_id)
        if job is None:
            raise JobNotFoundError(job_id)
        return job

    patch.setattr(Osqueue, "_held", held)


def osqueue_pushes_answered_before_they_have_landed(patch: pytest.MonkeyPatch) -> None:
    pushed: set[asyncio.Future[Any]] = set()

    async def push(self: Osqueue, service: QueueService, request: Any, _context: Any) -> Any:
        job_id = new_id(self._door.rng)
        pushed.add(asyncio.ensure_future(service.enqueue([JobSpec(job_id, self._entrypoint, request.data)])))
        return osqueue_v1_pb2.PushResponse(job_id=job_id)

    patch.setattr(Osqueue, "push", push)


def osqueue_heartbeats_that_only_look(patch: pytest.MonkeyPatch) -> None:
    async def heartbeat(self: Osqueue, service: QueueService, request: Any, context: Any) -> Any:
        await self._held(service, request.job_id, self._worker(request.worker_id, context))
        return osqueue_v1_pb2.HeartbeatResponse()

    patch.setattr(Osqueue, "heartbeat", heartbeat)


def calls_that_were_cut_off_called_refused(patch: pytest.MonkeyPatch) -> None:
    """What may have been done is said not to have been."""
    as_refusal = refusals.as_refusal

    def refused(error: Exception) -> CasqueError:
        said = as_refusal(error)
        return NoLeaderError(str(said)) if isinstance(said, UnknownOutcomeError) else said

    patch.setattr(unary, "as_refusal", refused)
    patch.setattr(unary, "cut_off", lambda: NoLeaderError("cut off"))


def tokens_of_single_calls_lost(patch: pytest.MonkeyPatch) -> None:
    given = messages.given
    patch.setattr(verbs, "given", lambda request, name: None if name == "token" else given(request, name))


def request_ids_of_single_calls_lost(patch: pytest.MonkeyPatch) -> None:
    async def enqueue(self: Verbs, service: QueueService, request: pb.EnqueueRequest, _context: Any) -> Any:
        door = self._door
        specs = [messages.spec(new, max_attempts=None, clock=door.clock, rng=door.rng) for new in request.jobs]
        return pb.EnqueueResponse(jobs=map(messages.outline, await service.enqueue(specs)))

    patch.setattr(Verbs, "enqueue", enqueue)
