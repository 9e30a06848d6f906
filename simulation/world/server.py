"""The whole program behind `casque serve` in a simulated process: broker or ring broker, door and sessions, and the
clients that reach them over simulated streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import grpc

from casque.app.ring import Peers
from casque.app.server import BrokerServer, ServeOptions
from casque.client.connecting import AddressFinder, BucketFinder
from casque.client.opening import Parts
from casque.client.remote import Finder, RemoteQueue, RemoteService
from casque.client.remote_shard import LedShard, RemoteShard
from casque.clock import Random
from casque.environment import Environment
from casque.errors import CasqueError
from casque.service import QueueService, Role
from casque.transport.grpc.client import GrpcService
from casque.transport.grpc.door import Door, GrpcLimits
from casque.transport.grpc.peer import GrpcShard
from casque.transport.grpc.server import GrpcServer
from casque.transport.listening import Address
from simulation.world.badges import STAFF, Badge, Book
from simulation.world.broker import SETTINGS
from simulation.world.foreign import LEASE_MS
from simulation.world.invariants import Invariant
from simulation.world.streams import Channel, Transport

if TYPE_CHECKING:
    from casque.ring.shards import Shard
    from simulation.world.life import Life, Node
    from simulation.world.line import Line

PORT = 7700
LIMITS = GrpcLimits(packet_bytes=700, calls_per_stream=6)
"""Answers of a few jobs are cut into parts here, and a stream that brings much is read with pauses."""
DRAIN_S = 6.0
CONNECT_S = 0.8
CALL_S = 4.0
"""How long a caller waits for an answer: seconds here, a minute elsewhere."""


def address_of(node: Node) -> str:
    return f"{node.name}:{PORT}"


class ServedBroker:
    """A process that runs `casque serve`, and ends when that cannot start."""

    def __init__(self, life: Life, parts: Parts) -> None:
        self._life = life
        self._server = _Server(life, parts)
        self._ended = asyncio.Event()

    async def run(self) -> None:
        world = self._life.world
        try:
            await self._server.start()
            await self._server.wait()
        except CasqueError as error:
            world.trace.note(self._life.name, f"its broker ends: {type(error).__name__}")
            if not self._life.closing:
                world.loop.call_soon(self._life.node.crash)
        except Exception as error:  # noqa: BLE001  a bug: nobody waits for this task
            world.found(Invariant.EXPECTED, f"the broker of {self._life.name} failed: {error!r}")
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """As on SIGTERM."""
        await self._server.stop()

    def service(self) -> QueueService:
        return self._server.service()

    @property
    def epoch(self) -> int | None:
        """Of its lead, while it leads."""
        standing = self._server.standing()
        return standing.epoch if standing.role is Role.LEADER else None

    def led(self) -> tuple[int, ...]:
        """The shards of a ring that it leads."""
        return self._server.led()


class _Server(BrokerServer):
    """The real one, on a simulated transport and a simulated store."""

    def __init__(self, life: Life, parts: Parts) -> None:
        name = life.node.name
        self._grpc_server = lambda *args, **options: _Grpc(life, *args, **options)  # type: ignore[assignment]
        super().__init__(
            ServeOptions(
                url="memory://never-opened",
                listen=Address("127.0.0.1", PORT),
                advertise=f"{name}:{PORT}",
                queue=life.world.profile.settings,
                broker=SETTINGS,
                drain=timedelta(seconds=DRAIN_S),
                peers=_Peers(life=life),
                grpc_limits=LIMITS,
                tokens=Book(life.world.tokens, life.clock) if life.world.layout.guarded else None,
            ),
            clock=life.clock,
            rng=Random(f"{life.world.seed}/{life.name}/server"),
        )
        self._parts = parts

    def led(self) -> tuple[int, ...]:
        from casque.ring.broker import RingBroker

        return self._broker.led() if isinstance(self._broker, RingBroker) else ()


class _Grpc(GrpcServer):
    """The real services on a simulated transport."""

    def __init__(self, life: Life, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "osqueue_lease_ms": LEASE_MS})
        self._life = life

    def _transport(self) -> grpc.aio.Server:
        return cast(grpc.aio.Server, Transport(self._life))

    def _add_services(self, server: grpc.aio.Server, door: Door) -> None:
        server.add_generic_rpc_handlers((self._queue(door),))
        self._life.door = door
        if self._life.world.layout.foreign:
            server.add_generic_rpc_handlers((self._osqueue(door),))


class _Peers(Peers, frozen=True, kw_only=True):
    life: Any

    def connect(self, shard: int, address: str) -> RemoteService:
        return cast(RemoteService, _Shard(self.life, address, shard))


class _OverStreams:
    """Connects over simulated streams."""

    _life: Life
    address: str

    def _channel(self) -> grpc.aio.Channel:
        node = next(one for one in self._life.world.nodes if address_of(one) == self.address)
        return cast(grpc.aio.Channel, Channel(self._life, node))


class _Service(_OverStreams, GrpcService):
    def __init__(self, life: Life, address: str, badge: Badge) -> None:
        token = badge.token if life.world.layout.guarded else None
        super().__init__(address, token=token, connect_s=CONNECT_S, call_s=CALL_S, clock=life.clock)
        self._life = life


class _Shard(_OverStreams, GrpcShard):
    def __init__(self, life: Life, address: str, shard: int) -> None:
        super().__init__(address, shard, connect_s=CONNECT_S, call_s=CALL_S, clock=life.clock)
        self._life = life


def remote_queue(life: Life, name: str, line: Line | None = None, badge: Badge = STAFF) -> RemoteQueue:
    """The real client: it asks the bucket where to connect, or tries all addresses. `line`: that of another bucket."""
    rng = Random(f"{life.world.seed}/{life.name}/{name}")
    addresses = [address_of(node) for node in life.world.nodes]
    finder: Finder = BucketFinder(line or life.line, owns_store=False, rng=rng)
    if line is None and rng.random() < 0.5:
        finder = AddressFinder(rng.sample(addresses, len(addresses)))
    return RemoteQueue(
        finder,
        lambda address: cast(RemoteService, _Service(life, address, badge)),
        Environment(life.world.profile.settings, life.clock, rng),
    )


def led_shards(life: Life, parts: Parts) -> Callable[[int], Shard]:
    """How somebody who resizes a ring reaches the shards that brokers lead."""

    def shard(token: int) -> Shard:
        remote = RemoteShard(
            BucketFinder(parts.shard(token).store, owns_store=False, rng=parts.rng),
            lambda address: cast(RemoteService, _Shard(life, address, token)),
            parts,
        )
        return LedShard(token, remote)

    return shard
