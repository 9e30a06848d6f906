"""What all calls of one server share: whom it lets in, what it stands in front of, and how it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from casque.clock import Clock, Random
from casque.errors import CasqueError, InvalidInputError, NoLeaderError
from casque.service import Host, QueueService, RingHost
from casque.telemetry import logger
from casque.transport.border import Admit, Wrapper
from casque.transport.grpc.packets import DequeueCall
from casque.types import JobRecord, ZoneLease

log = logger("transport.grpc")

T = TypeVar("T")

STOPPING = "this one is stopping"
SHARD = "casque-shard"
"""Metadata of a call from one broker of a ring to another: which shard it is for."""


class GrpcLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one server takes on."""

    message_bytes: int = 68 * 1024 * 1024
    """Of one message: the largest payload, and room for the rest."""
    packet_bytes: int = 1024 * 1024
    """Answers on `Exchange` and on streams are cut into messages of about this size."""
    calls_per_stream: int = 4096
    """Calls in flight on one `Exchange`, and answers that its client has not taken; then reading stops for a while."""
    waiting_per_stream: int = 16_384
    """Waiting dequeues on one `Exchange`; further ones are refused."""
    rpcs: int = 10_000
    """Streams and unary calls at the same time, of all clients."""


class Door:
    """Every call comes through here."""

    def __init__(
        self,
        host: Host,
        admit: Admit,
        limits: GrpcLimits,
        *,
        peers: Admit | None = None,
        clock: Clock,
        rng: Random,
    ) -> None:
        self.host = host
        self.limits = limits
        self.clock = clock
        self.rng = rng
        self.closing = asyncio.Event()
        self._admit = admit
        self._peers = peers
        self._patient: set[asyncio.Task[Any]] = set()
        self._told: set[asyncio.Task[Any]] = set()
        self._left: set[asyncio.Task[None]] = set()

    def enter(self, context: Any) -> Wrapper:
        """
        Raises:
            NotAuthenticatedError: this is nobody who may come in.
            NotAllowedError: somebody who may, but not to a shard, which is for other brokers.
        """
        said = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        authorization, shard = said.get("authorization"), said.get(SHARD)
        if shard is None:
            return self._admit(authorization)
        if self._peers is None or not shard.isdecimal():
            raise InvalidInputError(f"{SHARD}: this broker serves no ring, or {shard!r} is no shard")
        return AtShard(self._peers(authorization), int(shard))

    def service(self, admitted: Wrapper) -> QueueService:
        """The queue, as this caller may use it. To be asked for every call: leaders change."""
        if self.closing.is_set():
            raise NoLeaderError(STOPPING)
        return admitted(self.behind(admitted))

    def behind(self, admitted: Wrapper) -> QueueService:
        """The queue that this caller came for, whatever the caller may do with it."""
        if not isinstance(admitted, AtShard):
            return self.host.service()
        if not isinstance(self.host, RingHost):
            raise InvalidInputError(f"{SHARD}: this broker serves no ring")
        return self.host.shard(admitted.token)

    # --- Those who stay ---

    async def wait_for_jobs(self, service: QueueService, ask: DequeueCall) -> list[JobRecord]:
        """A dequeue that waits, but not beyond the end of this server: then it is one that does not wait."""
        if ask.wait_s <= 0 or self.closing.is_set():
            return await _dequeue(service, ask, wait_s=0.0, first=ask.first)
        try:
            return await self.staying(_dequeue(service, ask, wait_s=ask.wait_s, first=ask.first))
        except ClosingError:
            if ask.request_id is None:
                return []
            # It may have claimed jobs at the very last moment, which are this caller's under the same id.
            return await _dequeue(service, ask, wait_s=0.0)

    async def staying(self, work: Coroutine[Any, Any, T]) -> T:
        """Work without an end of its own. Raises ClosingError when the server wants to close."""
        task = asyncio.current_task()
        assert task is not None
        if self.closing.is_set():
            work.close()
            raise ClosingError
        self._patient.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            # One that its caller left at the same time stays cancelled.
            if task not in self._told or task.cancelling() > 1:
                raise
            raise ClosingError from None
        finally:
            self._patient.discard(task)
            if task in self._told:
                self._told.discard(task)
                task.uncancel()

    # --- Those who left ---

    def give_back(self, service: QueueService, jobs: list[JobRecord]) -> None:
        """Nobody heard of these claims: the jobs go back, so that others need not wait for the leases to run out."""
        task = asyncio.create_task(_give_back(service, jobs))
        self._left.add(task)
        task.add_done_callback(self._left.discard)

    # --- The end ---

    def close(self) -> None:
        self.closing.set()
        for task in self._patient:
            self._told.add(task)
            task.cancel()

    async def settled(self) -> None:
        if self._left:
            await asyncio.wait(self._left)


class AtShard:
    """Lets another broker in, to one shard of a ring."""

    def __init__(self, admitted: Wrapper, token: int) -> None:
        self._admitted = admitted
        self.token = token

    def __call__(self, service: QueueService) -> QueueService:
        return self._admitted(service)


class ClosingError(Exception):
    """Not for callers: the server wants to close, and this had no end of its own."""


async def _dequeue(service: QueueService, ask: DequeueCall, *, wait_s: float, first: bool = False) -> list[JobRecord]:
    return await service.dequeue(
        entrypoints=ask.entrypoints,
        limit=ask.limit,
        first=first,
        lease_ms=ask.lease_ms,
        worker=ask.worker,
        wait_s=wait_s,
        request_id=ask.request_id,
        zones=ask.zones,
        # What the queue asks of a lease is which one it is.
        zone_lease=None if ask.zone_lease is None else ZoneLease(*ask.zone_lease, lease_ms=0),
    )


async def _give_back(service: QueueService, jobs: list[JobRecord]) -> None:
    for job in jobs:
        try:
            await service.give_back(job.id, token=job.token)
        except CasqueError as error:
            log.warning("job %s could not be given back; its lease runs out: %s", job.id, error)
