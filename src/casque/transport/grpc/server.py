"""The gRPC server of a broker: one port, its services, start and orderly shutdown."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection

from casque.clock import Clock, Random, SystemClock, system_random, yield_once
from casque.errors import CasqueError, InvalidInputError, NoLeaderError
from casque.service import Host
from casque.tasks import is_cancelled
from casque.telemetry import logger
from casque.transport.border import Admit, admit
from casque.transport.grpc import casque_v1_pb2, osqueue, osqueue_v1_pb2
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.grpc.casque_v1_pb2 import Packet
from casque.transport.grpc.credentials import server_credentials
from casque.transport.grpc.door import Door, GrpcLimits
from casque.transport.grpc.health import HEALTH, OSQUEUE, QUEUE, Health
from casque.transport.grpc.open_calls import STOPPING
from casque.transport.grpc.osqueue import Osqueue
from casque.transport.grpc.reflected import Reflection
from casque.transport.grpc.refusals import abort, as_refusal, cut_off
from casque.transport.grpc.requests import parser
from casque.transport.grpc.session import Session
from casque.transport.grpc.streams import Streams
from casque.transport.grpc.unary import one_request, unary
from casque.transport.grpc.verbs import Verbs
from casque.transport.tls import ServerTls

log = logger("transport.grpc")

__all__ = ["GrpcLimits", "GrpcServer"]

ATTEMPTS_MAX = 25
LAST_S = 1.0
"""How long a reader that takes nothing may delay the end of its call."""
DEFAULT_LIMITS = GrpcLimits()
EVERYBODY = admit(None)


class GrpcServer:
    """Offers a host's queue on a port.

    `listen` is `host:port`; port 0 takes a free one, which `port` returns. `admit` is called once per call, and once
    per stream; without it, every caller may do everything. `peers` is called instead for other brokers of a ring, which
    call shards; without it, there are none. `max_attempts` applies to jobs from clients in other languages that do not
    set their own.

    >>> import asyncio
    >>> from casque.testing.hosting import leading
    >>> from casque.transport.grpc.client import GrpcService
    >>> async def main():
    ...     async with leading("memory://grpc-example") as host:
    ...         server = GrpcServer(host, listen="127.0.0.1:0")
    ...         await server.start()
    ...         client = GrpcService(f"127.0.0.1:{server.port}")
    ...         print((await client.stats()).totals.enqueued)
    ...         await client.close()
    ...         await server.stop(grace_s=1)
    >>> asyncio.run(main())
    0
    """

    def __init__(
        self,
        host: Host,
        *,
        listen: str,
        tls: ServerTls | None = None,
        admit: Admit = EVERYBODY,
        peers: Admit | None = None,
        limits: GrpcLimits = DEFAULT_LIMITS,
        max_attempts: int | None = ATTEMPTS_MAX,
        osqueue_entrypoint: str = osqueue.ENTRYPOINT,
        osqueue_lease_ms: int = osqueue.LEASE_MS,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self._host = host
        self._listen = listen
        self._tls = tls
        self._admit = admit
        self._peers = peers
        self._limits = limits
        self._max_attempts = max_attempts
        self._osqueue_entrypoint = osqueue_entrypoint
        self._osqueue_lease_ms = osqueue_lease_ms
        self._clock = clock or SystemClock()
        self._rng = rng or system_random()
        self._door: Door | None = None
        self._server: grpc.aio.Server | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port that it listens on, once started."""
        return self._port

    async def start(self) -> None:
        """Raises InvalidInputError if it cannot listen there."""
        assert self._server is None, "a server starts once"
        self._door = Door(self._host, self._admit, self._limits, peers=self._peers, clock=self._clock, rng=self._rng)
        self._server = self._transport()
        self._add_services(self._server, self._door)
        self._port = self._bind(self._server)
        await self._server.start()
        log.info("gRPC listens on port %d", self._port)

    async def stop(self, grace_s: float = 30.0) -> None:
        """Accept no more calls. Calls in flight may finish within the grace period; waiting dequeues return no jobs.

        All others end as UNAVAILABLE.
        """
        if self._server is None or self._door is None:
            return
        server, self._server = self._server, None
        self._door.close()
        calls = self._door.open_calls
        await calls.end(grace_s)
        await calls.hold()
        stopping = asyncio.create_task(server.stop(LAST_S))
        await yield_once()  # gRPC refuses further calls from here on
        calls.release()
        await stopping
        await self._door.settled()

    def _transport(self) -> grpc.aio.Server:
        """The server that carries the services. The simulator substitutes its own."""
        # gRPC's own limit on calls is off: it knows neither the sender nor which calls need no token, and would refuse
        # all callers because of what a stranger holds. The door counts calls instead.
        return grpc.aio.server(options=_options(self._limits))

    def _bind(self, server: grpc.aio.Server) -> int:
        try:
            if self._tls is None:
                return int(server.add_insecure_port(self._listen))
            return int(server.add_secure_port(self._listen, server_credentials(self._tls)))
        except RuntimeError as error:
            raise InvalidInputError(
                f"cannot listen on {self._listen}: the port is in use, the address is not this machine's, or the "
                "certificate and key do not match; choose another address with --listen HOST:PORT"
            ) from error

    def _add_services(self, server: grpc.aio.Server, door: Door) -> None:
        names = (QUEUE, OSQUEUE, HEALTH, reflection.SERVICE_NAME)
        handlers = (self._queue(door), self._osqueue(door), Health(door).handler(), Reflection(door, names).handler())
        server.add_generic_rpc_handlers(handlers)

    def _queue(self, door: Door) -> grpc.GenericRpcHandler:
        calls, streams = Verbs(door, self._max_attempts), Streams(door)
        behaviours = {
            "List": one_request(door, pb.ListRequest, streams.list),
            "Watch": one_request(door, pb.WatchRequest, streams.watch),
            "Archive": one_request(door, pb.ArchiveRequest, streams.archive),
            "Exchange": _exchange(door),
        }
        for method in casque_v1_pb2.DESCRIPTOR.services_by_name["Queue"].methods:
            if method.name not in behaviours:
                verb = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method.name).lower()
                behaviours[method.name] = unary(door, getattr(pb, method.input_type.name), getattr(calls, verb))
        return _handler(casque_v1_pb2, "Queue", behaviours)

    def _osqueue(self, door: Door) -> grpc.GenericRpcHandler:
        calls = Osqueue(door, entrypoint=self._osqueue_entrypoint, lease_ms=self._osqueue_lease_ms)
        behaviours = {
            "Push": unary(door, osqueue_v1_pb2.PushRequest, calls.push, code=osqueue.code),
            "Claim": unary(door, osqueue_v1_pb2.ClaimRequest, calls.claim, code=osqueue.code),
            "Heartbeat": unary(door, osqueue_v1_pb2.HeartbeatRequest, calls.heartbeat, code=osqueue.code),
            "Complete": unary(door, osqueue_v1_pb2.CompleteRequest, calls.complete, code=osqueue.code),
        }
        return _handler(osqueue_v1_pb2, "QueueService", behaviours)


def _exchange(door: Door) -> Any:
    async def exchange(_requests: Any, context: Any) -> None:
        refusal: CasqueError
        try:
            async with door.entering(context) as (admitted, name):
                await Session(door, admitted, context, name).run()
            if not door.closing.is_set():
                return
            refusal = NoLeaderError(STOPPING)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            refusal = cut_off()
        except Exception as error:  # noqa: BLE001  every call has an answer
            refusal = as_refusal(error)
        await abort(context, refusal)

    return door.open_calls.watched(exchange)


def _handler(module: Any, service: str, behaviours: dict[str, Any]) -> grpc.GenericRpcHandler:
    """The methods of a service as its proto file describes them, each with its implementation.

    All are handled as streams of bytes, whatever they are on the wire, so that no part of a request is received before
    its caller is admitted.
    """
    described = module.DESCRIPTOR.services_by_name[service]
    handlers = {
        method.name: grpc.stream_stream_rpc_method_handler(
            behaviours.pop(method.name), parser(Packet) if method.client_streaming else None, _bytes_of
        )
        for method in described.methods
    }
    assert not behaviours, behaviours
    return grpc.method_handlers_generic_handler(described.full_name, handlers)


def _bytes_of(message: Message) -> bytes:
    return message.SerializeToString()


def _options(limits: GrpcLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.message_bytes),
        # Answers are cut to size here, where the error can still be handled.
        ("grpc.max_send_message_length", -1),
        # Two servers on one port would each get some of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_concurrent_streams", limits.streams_per_connection),
        ("grpc.server_handshake_timeout_ms", int(limits.handshake_s * 1000)),
        ("grpc.max_connection_idle_ms", int(limits.idle_s * 1000)),
    ]
