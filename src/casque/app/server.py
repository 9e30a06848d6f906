"""One broker with its ports."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Protocol

from casque.app.observed import ObservedParts, metered
from casque.app.ring import Peers, ring_broker
from casque.broker.broker import Broker
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.clock import Clock, Random
from casque.codec.head import KEY, RING, read_layout
from casque.environment import Environment
from casque.errors import InvalidInputError, NoLeaderError
from casque.ring.broker import RingBroker
from casque.service import QueueService, Role, ShardService, Standing, Stats
from casque.settings import BrokerSettings, QueueSettings, milliseconds
from casque.storage.port import Stored, locate, place_of
from casque.telemetry import logger
from casque.telemetry.metrics import Metrics
from casque.transport.access import TokenBook
from casque.transport.border import admit
from casque.transport.grpc.server import GrpcLimits, GrpcServer
from casque.transport.http.entrypoint_numbers import EntrypointNumbers, watching
from casque.transport.http.led_states import LedStates
from casque.transport.http.limits import HttpLimits
from casque.transport.http.server import HttpServer
from casque.transport.limits import DEFAULT_LIMITS, Limits
from casque.transport.listening import Address, advertised, check_exposure
from casque.transport.measured import measuring
from casque.transport.shard_border import admit_peers
from casque.transport.tls import ServerTls

log = logger("app")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """An operator's options for one broker."""

    url: str
    listen: Address
    http: Address | None = None
    advertise: str | None = None
    """The address of the gRPC port for clients, if it differs from the one it listens on."""
    tls: ServerTls | None = None
    tokens: TokenBook | None = None
    insecure: bool = False
    guarded: bool = False
    """Require a token for `/metrics` and `/readyz` as well."""
    allow_hosts: tuple[str, ...] = ()
    """Names by which clients call the HTTP port, besides its own, that of `advertise`, and addresses."""
    allow_origins: tuple[str, ...] = ()
    """Sites whose web pages may call the HTTP port."""
    http_limits: HttpLimits = field(default_factory=HttpLimits)
    """Limits of the HTTP port."""
    layout: str | None = None
    store_options: Mapping[str, str] = field(default_factory=dict)
    queue: QueueSettings = DEFAULTS
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    limits: Limits = DEFAULT_LIMITS
    grpc_limits: GrpcLimits = field(default_factory=GrpcLimits)
    drain: timedelta = timedelta(seconds=30)
    """How long a clean stop may take."""
    peers: Peers = field(default_factory=Peers)
    """How it reaches the other brokers, if it serves a ring."""


class Server(Protocol):
    async def stop(self, grace_s: float) -> None: ...


class BrokerServer:
    """One broker with its ports. Satisfies `Host`, and of a ring `RingHost`, by way of its broker.

    >>> import asyncio
    >>> from casque import Queue
    >>> from casque.app import BrokerServer, ServeOptions
    >>> from casque.transport.listening import Address
    >>> async def main():
    ...     server = BrokerServer(ServeOptions(url="memory://app-example", listen=Address.parse("127.0.0.1:0")))
    ...     await server.start()
    ...     async with Queue.open(f"grpc://{server.address}") as queue:
    ...         print((await queue.enqueue("send", b"hello")).entrypoint)
    ...     await server.stop()
    >>> asyncio.run(main())
    send
    """

    _grpc_server: type[GrpcServer] = GrpcServer
    """The simulator serves the same services on its own transport."""

    def __init__(self, options: ServeOptions, *, clock: Clock | None = None, rng: Random | None = None) -> None:
        """Raises InvalidInputError for an unprotected port, or an address that clients cannot reach."""
        for address, option in ((options.listen, "--listen"), (options.http, "--http")):
            if address is not None:
                check_exposure(
                    address,
                    tls=options.tls is not None,
                    tokens=options.tokens is not None,
                    insecure=options.insecure,
                    option=option,
                )
        self._advertise = advertised(options.listen, options.advertise)
        self._options = options
        self.metrics = Metrics()
        self._entrypoints: EntrypointNumbers | None = None
        store = as_store(options.url, options.store_options)
        if options.http is None:
            self._parts = Parts(store, options.queue, layout=options.layout, clock=clock, rng=rng)
        else:
            self._parts = observed = ObservedParts(
                metered(store, self.metrics), options.queue, layout=options.layout, clock=clock, rng=rng
            )
            self._entrypoints = EntrypointNumbers(LedStates(observed.committers, observed.clock), observed.clock)
        self._env: Environment = self._parts
        self._broker: Broker | RingBroker | None = None
        self._running: asyncio.Task[None] | None = None
        self._servers: list[Server] = []
        self.grpc_port = 0
        self.http_port: int | None = None

    @property
    def address(self) -> str:
        """The address of this broker for clients."""
        advertise = self._advertise
        return str(advertise.at(self.grpc_port) if advertise.port == 0 else advertise)

    # --- Called by the servers ---

    def service(self) -> QueueService:
        if self._broker is None:
            raise NoLeaderError("this broker has just started")
        return self._broker.service()

    def shard(self, token: int) -> ShardService:
        """For the other brokers of a ring."""
        if isinstance(self._broker, RingBroker):
            return self._broker.shard(token)
        raise (
            NoLeaderError("this broker has just started")
            if self._broker is None
            else InvalidInputError("this broker serves a queue without shards")
        )

    async def led_stats(self) -> Stats:
        assert isinstance(self._broker, RingBroker), "only of a ring"
        return await self._broker.led_stats()

    def standing(self) -> Standing:
        return Standing(Role.STARTING) if self._broker is None else self._broker.standing()

    async def changed(self) -> Standing:
        """Wait until this broker's standing changes."""
        assert self._broker is not None, "start() comes first"
        return await self._broker.changed()

    # --- Life ---

    async def start(self) -> None:
        """Open the ports and the queue. When this returns the broker leads, or stands by.

        Raises:
            InvalidInputError: it cannot listen on the address.
            StoreAccessError: the bucket does not exist, or the credentials are wrong.
            CorruptQueueError: the stored object is not a queue.
        """
        try:
            await self._listen()
            self._broker = self._ring_broker() if await self._is_ring() else self._queue_broker()
            await self._broker.open()
            self._running = asyncio.create_task(self._broker.run(), name="casque broker")
            await self._broker.settled()
        except BaseException:
            await self.stop()
            raise

    async def _is_ring(self) -> bool:
        read = await self._parts.store.get(KEY)
        return isinstance(read, Stored) and read_layout(KEY, read.body, locate(self._parts.store, KEY)).layout == RING

    def _queue_broker(self) -> Broker:
        parts = self._parts
        return Broker(
            parts.committer(),
            self._env,
            parts.history(),
            address=self.address,
            settings=self._options.broker,
            blobs=parts.blobs(),
            staging=parts.staging(),
            place=partial(place_of, parts.store, make=True),
        )

    def _ring_broker(self) -> RingBroker:
        self._options.peers.check(self._options.tokens)
        return ring_broker(
            self._parts, self._options.peers.connect, address=self.address, settings=self._options.broker
        )

    async def wait(self) -> None:
        """Wait until the broker ends: after `stop`, or because of an error, which is raised."""
        assert self._running is not None, "start() comes first"
        await asyncio.shield(self._running)

    async def stop(self) -> None:
        """Accept no more calls, finish those under way, resign, close: within the drain limit."""
        ends_ms = self._env.clock.monotonic_ms() + self._options.drain.total_seconds() * 1000
        try:
            if self._broker is not None and self._running is not None:
                self._broker.stop()
                await self._within(self._running, self._options.drain.total_seconds())
        finally:
            left_s = max((ends_ms - self._env.clock.monotonic_ms()) / 1000, 0.5)
            await asyncio.gather(*(server.stop(left_s) for server in self._servers))
            await self._parts.store.close()

    async def _listen(self) -> None:
        options = self._options
        door = admit(options.tokens, options.limits)
        if self._entrypoints is not None:
            door = watching(door, self._entrypoints)
        grpc = self._grpc_server(
            self,
            listen=str(options.listen),
            tls=options.tls,
            admit=measuring(door, self.metrics),
            peers=admit_peers(options.tokens, options.limits),
            limits=options.grpc_limits,
            max_attempts=options.queue.max_attempts,
            osqueue_lease_ms=milliseconds(options.queue.osqueue_timeout),
            clock=self._env.clock,
            rng=self._env.rng,
        )
        await grpc.start()
        self._servers.append(grpc)
        self.grpc_port = grpc.port
        if options.http is None:
            return
        http = HttpServer(
            self,
            listen=str(options.http),
            tls=options.tls,
            admit=door,
            metrics=self.metrics,
            entrypoints=self._entrypoints,
            budget=self._env.budget,
            settings=options.queue,
            guarded=options.guarded,
            hosts=(self._advertise.host, *options.allow_hosts),
            origins=options.allow_origins,
            limits=options.http_limits,
            clock=self._env.clock,
            rng=self._env.rng,
        )
        await http.start()
        self._servers.append(http)
        self.http_port = http.port

    async def _within(self, task: asyncio.Task[None], seconds: float) -> None:
        limit = asyncio.create_task(self._env.clock.sleep(seconds))
        await asyncio.wait({task, limit}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            log.warning("not everything could be finished within %.0f s: others take over after the lease", seconds)
        for one in (task, limit):
            one.cancel()
        await asyncio.gather(task, limit, return_exceptions=True)
