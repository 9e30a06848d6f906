"""What all calls of one server share: admission, the service behind it, and shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec

from casque.clock import Clock, Random
from casque.errors import CasqueError, InvalidInputError, LimitReachedError, NoLeaderError
from casque.service import Host, QueueService, RingHost, Role
from casque.service.requests import Dequeue, GiveBack
from casque.tasks import Background
from casque.telemetry import logger
from casque.transport import audit
from casque.transport.border import Admit, Wrapper, principal_of
from casque.transport.grpc.open_calls import STOPPING, OpenCalls
from casque.transport.quotas import Bytes, Connections, Places, Rate
from casque.types import JobRecord

log = logger("transport.grpc")

T = TypeVar("T")

UNTAKEN = "bytes of streams that their readers have not taken"
LOGGED_EVERY_MS = 10_000
SHARD = "casque-shard"
"""Metadata key for calls between brokers of a ring: the shard that the call is for."""
SHARD_DIGITS = 4


class GrpcLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one server."""

    message_bytes: int = 68 * 1024 * 1024
    """Size of one message: the largest payload, and room for the rest."""
    packet_bytes: int = 1024 * 1024
    """Answers on `Exchange` and on streams are cut into messages of about this size."""
    calls_per_stream: int = 4096
    """Calls in flight on one `Exchange`, including answers that its client has not taken; at the limit, reading pauses.
    """
    waiting_per_stream: int = 16_384
    """Waiting dequeues on one `Exchange`; further ones are refused."""
    rpcs: int = 10_000
    """Streams and unary calls at the same time, of all clients. Health checks and reflection are counted separately."""
    rpcs_per_peer: int = 5_000
    """The same, of one address."""
    rpcs_per_principal: int = 8_000
    """The same, of one token."""
    connections_per_peer: int = 2_000
    """Connections of one address that have calls under way."""
    streams_per_connection: int = 2_000
    """Calls on one connection; the client queues further ones."""
    bytes_under_way: int = 512 * 1024 * 1024
    """Size of requests read but not answered, of all clients. Beyond it, streams pause reading and unary calls are
    refused before they are read."""
    bytes_per_principal: int = 256 * 1024 * 1024
    """The same, of one token, or of one address without tokens."""
    unsent_bytes: int = 128 * 1024 * 1024
    """Size of values on `List`, `Watch` and `Archive` that were read from the queue and not written yet, of all
    clients. At the limit, reading pauses."""
    unsent_bytes_per_principal: int = 32 * 1024 * 1024
    """The same, of one token, or of one address without tokens."""
    stall_s: float = 30.0
    """How long a reader of these streams may take nothing while other readers wait for room."""
    calls_per_second: int | None = None
    """Per token, or per address without tokens, with a burst of one second's worth. Streams are read no faster, unary
    calls are refused. None: no limit."""
    health_checks: int = 200
    """Health checks and watches at the same time, of all clients. They need no token."""
    health_checks_per_peer: int = 20
    reflections: int = 4
    """Reflection calls at the same time. They need no token."""
    reflections_per_peer: int = 2
    reflection_s: float = 60.0
    """How long a reflection call may last."""
    handshake_s: float = 10.0
    """How long a new connection may take until it speaks HTTP/2."""
    idle_s: float = 900.0
    """A connection without calls is closed after this long."""


class Quotas:
    """Tracks the usage of one server, by address and by principal."""

    def __init__(self, limits: GrpcLimits, clock: Clock) -> None:
        self._connections = Connections(each=limits.connections_per_peer)
        self._peers = Places("calls under way", "from one address", most=limits.rpcs, each=limits.rpcs_per_peer)
        self._principals = Places("calls under way", "of one token", most=limits.rpcs, each=limits.rpcs_per_principal)
        self._health = Places(
            "health checks", "from one address", most=limits.health_checks, each=limits.health_checks_per_peer
        )
        self._reflections = Places(
            "calls to reflection", "from one address", most=limits.reflections, each=limits.reflections_per_peer
        )
        self.bytes = Bytes(most=limits.bytes_under_way, each=limits.bytes_per_principal)
        self.unsent = Bytes(most=limits.unsent_bytes, each=limits.unsent_bytes_per_principal, what=UNTAKEN)
        self.rate = Rate(limits.calls_per_second, clock)

    @contextmanager
    def call(self, context: Any) -> Iterator[None]:
        """Take a place for a call from this address, before its caller is authenticated."""
        host, port = peer_of(context)
        with self._connections.used(host, port), self._peers.taken(host):
            yield

    @contextmanager
    def principal(self, caller: str) -> Iterator[None]:
        with self._principals.taken(caller):
            yield

    def health(self, context: Any) -> AbstractContextManager[None]:
        return self._health.taken(peer_of(context)[0])

    def reflection(self, context: Any) -> AbstractContextManager[None]:
        return self._reflections.taken(peer_of(context)[0])


class Entered(NamedTuple):
    """An admitted caller."""

    admitted: Wrapper
    name: str
    """The name of its token, or its address without tokens. Its usage is counted under this name."""


def peer_of(context: Any) -> tuple[str, str]:
    """Address and port."""
    host, _, port = context.peer().rpartition(":")
    return host, port


class Door:
    """Admits every call of a server."""

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
        self.quotas = Quotas(limits, clock)
        self.open_calls = OpenCalls(clock)
        self._refusals = 0
        self._quiet_until_ms = 0
        self._patient: set[asyncio.Task[Any]] = set()
        self._cancelled_by_close: set[asyncio.Task[Any]] = set()
        self._left = Background()

    @asynccontextmanager
    async def entering(self, context: Any) -> AsyncIterator[Entered]:
        """Admit a caller for the duration of its call, before anything of its request is read.

        Raises:
            LimitReachedError: it has too many calls under way, or all callers together have.
            NotAuthenticatedError, NotAllowedError: as `enter`.
        """
        try:
            with self.quotas.call(context):
                admitted = self.enter(context)
                name = principal_of(admitted) or peer_of(context)[0]
                with self.quotas.principal(name):
                    yield Entered(admitted, name)
        except LimitReachedError as error:
            self._log(error, context)
            raise

    def _log(self, error: LimitReachedError, context: Any) -> None:
        """Log a refusal now and then: a thousand refusals a second must not fill the log."""
        self._refusals += 1
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._quiet_until_ms:
            log.warning("%d calls refused, the last one from %s: %s", self._refusals, peer_of(context)[0], error)
            self._refusals, self._quiet_until_ms = 0, now_ms + LOGGED_EVERY_MS

    def enter(self, context: Any) -> Wrapper:
        """
        Raises:
            NotAuthenticatedError: no valid token.
            NotAllowedError: the token is valid, but shards are for other brokers only.
        """
        audit.calls_from("gRPC", context.peer())
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        authorization, shard = metadata.get("authorization"), metadata.get(SHARD)
        if shard is None:
            return self._admit(authorization)
        if self._peers is None or not (shard.isascii() and shard.isdecimal() and len(shard) <= SHARD_DIGITS):
            raise InvalidInputError(f"{SHARD}: this broker serves no ring, or {shard!r} is no shard")
        return AtShard(self._peers(authorization), int(shard))

    def service(self, admitted: Wrapper) -> QueueService:
        """The queue, restricted to what this caller may do. Ask again for every call: leaders change."""
        if self.closing.is_set():
            raise NoLeaderError(STOPPING)
        return admitted(self.behind(admitted))

    def behind(self, admitted: Wrapper) -> QueueService:
        """The queue that this caller came for, without the restrictions of the caller."""
        if not isinstance(admitted, AtShard):
            return self.host.service()
        if not isinstance(self.host, RingHost):
            raise InvalidInputError(f"{SHARD}: this broker serves no ring")
        return self.host.shard(admitted.token)

    # --- Those who stay ---

    async def wait_for_jobs(self, service: QueueService, ask: Dequeue) -> list[JobRecord]:
        """Dequeue and wait, but only until the server closes; then answer without waiting."""
        if ask.wait_s <= 0 or self.closing.is_set():
            return await service.call(_without_waiting(ask))
        try:
            return await self.staying(_called(service, ask))
        except ClosingError:
            if ask.request_id is None:
                return []
            # The cancelled call may have claimed jobs at the last moment; the same request id returns them.
            return await service.call(msgspec.structs.replace(ask, wait_s=0.0, first=False))

    async def staying(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work that has no end of its own. Raises ClosingError when the server closes."""
        task = asyncio.current_task()
        assert task is not None
        if self.closing.is_set():
            work.close()
            raise ClosingError
        self._patient.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            # A task that its caller cancelled at the same time stays cancelled.
            if task not in self._cancelled_by_close or task.cancelling() > 1:
                raise
            raise ClosingError from None
        finally:
            self._patient.discard(task)
            if task in self._cancelled_by_close:
                self._cancelled_by_close.discard(task)
                task.uncancel()

    # --- Those who left ---

    def give_back(self, service: QueueService, jobs: list[JobRecord]) -> None:
        """Give back jobs whose claim never reached the caller: others need not wait for the leases to run out."""
        self._left.start(_give_back(service, jobs))

    # --- The end ---

    @property
    def stopping(self) -> bool:
        """True as soon as the broker stops, while the port is still open."""
        return self.closing.is_set() or self.host.standing().role is Role.STOPPING

    def close(self) -> None:
        self.closing.set()
        for task in self._patient:
            self._cancelled_by_close.add(task)
            task.cancel()

    async def settled(self) -> None:
        await self._left.ended()


class AtShard:
    """Admits another broker to one shard of a ring."""

    def __init__(self, admitted: Wrapper, token: int) -> None:
        self._admitted = admitted
        self.token = token

    def __call__(self, service: QueueService) -> QueueService:
        return self._admitted(service)

    @property
    def principal_key(self) -> str | None:
        return principal_of(self._admitted)


class ClosingError(Exception):
    """Internal: the server is closing and this work has no end of its own."""


def _without_waiting(ask: Dequeue) -> Dequeue:
    return ask if ask.wait_s == 0 else msgspec.structs.replace(ask, wait_s=0.0)


async def _called(service: QueueService, ask: Dequeue) -> list[JobRecord]:
    return await service.call(ask)


async def _give_back(service: QueueService, jobs: list[JobRecord]) -> None:
    for job in jobs:
        try:
            await service.call(GiveBack(job.id, job.token))
        except CasqueError as error:
            log.warning("job %s could not be given back; its lease runs out: %s", job.id, error)
