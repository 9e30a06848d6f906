"""gRPC streams without sockets: what `grpc.aio` offers a client and a handler, in virtual time.

A stream belongs to one connection. Its messages arrive late and in order, as bytes. A connection may be cut: then each
side finds out by itself and some time later, and what was on its way may still arrive meanwhile. So a call that the
client has given up, and asks again on another connection, may be carried out after the second one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from casque.clock import Random
from simulation.world.profile import Fault
from simulation.world.stalled import check_unsent

if TYPE_CHECKING:
    from simulation.world.life import Life, Node

REFUSED = 0.8
"""The chance that a machine without a listening process refuses a connection instead of saying nothing."""
BLOCKED_S = 0.1
"""How soon a message is sent again that met a machine which is cut off."""
BUFFERED = 0.8
"""The chance that a write returns at once instead of waiting for the network."""
SILENCE_S = 0.7
"""Twice this without an answer to a ping, and the client gives the connection up."""

WINDOW_BYTES = 2_000
"""A server that has sent so much waits until its client has taken some of it, where that is simulated."""

Event = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Status:
    """How a stream ended."""

    code: grpc.StatusCode
    details: str = ""
    trailing: tuple[tuple[str, Any], ...] = ()


OK = Status(grpc.StatusCode.OK)


class Transport:
    """Stands in the place of `grpc.aio.Server`: has handlers, and runs them in its process."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._handlers: list[Any] = []
        self._running: set[asyncio.Task[None]] = set()

    def add_generic_rpc_handlers(self, handlers: tuple[Any, ...]) -> None:
        self._handlers += handlers

    def add_insecure_port(self, address: str) -> int:
        return int(address.rpartition(":")[2])

    async def start(self) -> None:
        self._life.listening = self

    async def stop(self, grace_s: float) -> None:
        """No new streams; the others may end by themselves for a while, and are cancelled then."""
        self._life.listening = None
        limit = asyncio.create_task(self._life.clock.sleep(grace_s))
        while self._running and not limit.done():
            await asyncio.wait({*self._running, limit}, return_when=asyncio.FIRST_COMPLETED)
        ending = [limit, *self._running]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def begin(self, stream: ServerStream, method: str) -> None:
        details = _Details(method, stream.invocation_metadata())
        handler = next(found for one in self._handlers if (found := one.service(details)) is not None)
        stream.deserializer, stream.serializer = handler.request_deserializer or bytes, handler.response_serializer
        task = stream.task = self._life.start(stream.run(handler))
        self._running.add(task)
        task.add_done_callback(self._running.discard)


@dataclass(frozen=True, slots=True)
class _Details:
    method: str
    invocation_metadata: tuple[tuple[str, str], ...]


class Channel:
    """Stands in the place of `grpc.aio.Channel`, to whatever process runs on one node."""

    def __init__(self, life: Life, node: Node) -> None:
        self._life = life
        self._node = node
        self._streams: list[ClientStream] = []

    def stream_stream(
        self, method: str, *, request_serializer: Callable[[Any], bytes], response_deserializer: Callable[[bytes], Any]
    ) -> Callable[..., ClientStream]:
        def call(*, metadata: tuple[tuple[str, str], ...]) -> ClientStream:
            return self._begin(method, metadata, request_serializer, response_deserializer)

        return call

    def unary_stream(
        self, method: str, *, request_serializer: Callable[[Any], bytes], response_deserializer: Callable[[bytes], Any]
    ) -> Callable[..., ClientStream]:
        def call(request: Any, *, metadata: tuple[tuple[str, str], ...]) -> ClientStream:
            stream = self._begin(method, metadata, request_serializer, response_deserializer)
            stream.post(request)
            return stream

        return call

    def unary_unary(
        self, method: str, *, request_serializer: Callable[[Any], bytes], response_deserializer: Callable[[bytes], Any]
    ) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any) -> Any:
            stream = self._begin(method, (), request_serializer, response_deserializer)
            stream.post(request)
            answer = await stream.read()
            # The answer counts when the status has come, which says that it is the whole of it.
            if answer is not grpc.aio.EOF and await stream.read() is not grpc.aio.EOF:
                raise AssertionError(f"{method} was answered twice")
            return answer

        return call

    async def close(self) -> None:
        for stream in self._streams:
            stream.cancel()

    def _begin(self, method: str, metadata: Any, serializer: Any, deserializer: Any) -> ClientStream:
        stream = ClientStream(_Link(self._life, self._node), method, metadata, serializer, deserializer)
        self._streams.append(stream)
        return stream


class _Link:
    """One connection, for one stream: the way there, the way back, and what befalls them."""

    def __init__(self, client: Life, node: Node) -> None:
        self.client = client
        self.node = node
        self.world = client.world
        client.streams_begun += 1
        self.rng = Random(f"{self.world.seed}/{client.name}/stream/{client.streams_begun}")
        self.there = _Way(self)
        self.back = _Way(self)
        self.server: Life | None = None
        """The process that took the connection."""
        self.is_cut = False
        self.has_window = self.world.layout.read
        """Whether what a client has not taken is bounded."""

    @property
    def blocked(self) -> bool:
        """Nothing passes: one of the machines is cut off. A process calls itself through no network."""
        return self.client.node is not self.node and (self.client.node.cut_off or self.node.cut_off)

    def latency_s(self) -> float:
        return self.rng.uniform(*self.world.profile.latency_s)

    def draws_a_cut(self) -> bool:
        if self.is_cut or self.world.healed or self.rng.random() >= self.world.profile.cuts:
            return False
        self.world.faults[Fault.CUT] += 1
        return True


class _Way:
    """Events of one direction, each at its time and none before an earlier one."""

    def __init__(self, link: _Link) -> None:
        self._link = link
        self._loop = link.world.loop
        self._waiting: deque[tuple[Callable[[], Life | None], Event]] = deque()
        self._last = 0.0
        self._closed = False
        self.is_torn = False
        """A message was lost: what is said after it does not arrive."""

    def tear(self) -> None:
        """A message is lost, and so is whatever is sent after it: a stream has no gaps."""
        self.is_torn = True

    def send(self, to: Callable[[], Life | None], event: Event, *, late_s: float = 0.0) -> None:
        """`to` is asked when it arrives: a process may have taken another's place by then."""
        self._waiting.append((to, event))
        self._last = max(self._last, self._loop.time() + self._link.latency_s() + late_s)
        self._loop.call_later(self._last - self._loop.time(), self._arrive)

    def close(self) -> None:
        """What is still on its way never arrives."""
        self._closed = True

    def _arrive(self) -> None:
        if self._closed:
            return
        if self._link.blocked:
            self._loop.call_later(BLOCKED_S, self._arrive)
            return
        to, event = self._waiting.popleft()
        life = to()
        if life is not None:
            life.deliver(event)


class ClientStream:
    """What a client's call object offers."""

    def __init__(
        self,
        link: _Link,
        method: str,
        metadata: tuple[tuple[str, str], ...],
        serializer: Callable[[Any], bytes],
        deserializer: Callable[[bytes], Any],
    ) -> None:
        self._link = link
        self._life = link.client
        self._serializer = serializer
        self._deserializer = deserializer
        loop = link.world.loop
        self._connected: asyncio.Future[None] = loop.create_future()
        self._greeted: asyncio.Future[tuple[tuple[str, str], ...]] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._inbox: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._status: Status | None = None
        self._cancelled = False
        self._silent = 0
        self._server = ServerStream(link, self, metadata)
        link.there.send(self._listener, lambda: self._server.accept(method))
        link.there.send(lambda: self._life, self._check_refused)
        self._life.streams[self] = None
        self._life.clock.call_later(SILENCE_S, self._ping)

    # --- What grpc.aio offers ---

    async def wait_for_connection(self) -> None:
        either: set[asyncio.Future[Any]] = {self._connected, self._ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._connected.done():
            self._raise_for_status()

    async def initial_metadata(self) -> tuple[tuple[str, str], ...]:
        either: set[asyncio.Future[Any]] = {self._greeted, self._ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return self._greeted.result() if self._greeted.done() else ()

    async def read(self) -> Any:
        while not self._inbox and self._status is None:
            self._news.clear()
            await self._news.wait()
        if self._inbox:
            body = self._inbox.popleft()
            if self._link.has_window:
                self._link.there.send(self._listener, lambda: self._server.taken(len(body)))
            return self._deserializer(body)
        self._raise_for_status()
        return grpc.aio.EOF

    async def write(self, message: Any) -> None:
        if self._status is not None:
            raise asyncio.InvalidStateError("the stream is over")
        self.post(message)
        await _pause(self._life, self._link)
        self._raise_for_status()

    async def code(self) -> grpc.StatusCode:
        await asyncio.wait({self._ended})
        assert self._status is not None
        return self._status.code

    async def details(self) -> str:
        await asyncio.wait({self._ended})
        assert self._status is not None
        return self._status.details

    async def trailing_metadata(self) -> tuple[tuple[str, Any], ...]:
        await asyncio.wait({self._ended})
        assert self._status is not None
        return self._status.trailing

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self._cancelled = True
        self._link.there.send(self._listener, self._server.abandon)
        self.finish(Status(grpc.StatusCode.CANCELLED, "locally cancelled"))
        return True

    # --- Underneath ---

    def post(self, message: Any) -> None:
        body, link = self._serializer(message), self._link
        if link.draws_a_cut():
            if link.rng.random() < 0.5:
                # Sent, and on its way for as long as it takes the network to get over it.
                link.there.send(self._listener, lambda: self._server.receive(body), late_s=link.rng.uniform(0.0, 3.0))
            else:
                link.there.tear()
            self.cut()
        elif not link.there.is_torn:
            link.there.send(self._listener, lambda: self._server.receive(body))

    def cut(self) -> None:
        """The connection breaks, and each side learns of it in its own time. What is on its way still arrives."""
        link, loop = self._link, self._link.world.loop
        link.is_cut = True
        timeout = link.world.profile.timeout_s
        loop.call_later(link.rng.uniform(0.0, timeout[1]), self._life.deliver, self._break)
        if link.rng.random() < 0.5:
            link.there.send(self._listener, self._server.abandon)
        else:
            loop.call_later(link.rng.uniform(0.0, 2 * timeout[1]), self._abandon_server)

    def connected(self) -> None:
        if not self._connected.done():
            self._connected.set_result(None)

    def greeted(self, metadata: tuple[tuple[str, str], ...]) -> None:
        if not self._greeted.done():
            self._greeted.set_result(metadata)

    def receive(self, body: bytes) -> None:
        if self._status is None:
            self._inbox.append(body)
            self._news.set()
            self._life.told()

    def finish(self, status: Status) -> None:
        if self._status is None:
            self._status = status
            self._news.set()
            self._life.streams.pop(self, None)
            if not self._ended.done():
                self._ended.set_result(None)

    def peer_died(self) -> None:
        """The process at the other end is gone. Mostly its machine says so."""
        if self._link.rng.random() < REFUSED:
            self._link.back.send(lambda: self._life, self._break)

    def client_died(self) -> None:
        self._link.world.loop.call_later(self._link.latency_s(), self._abandon_server)

    def _abandon_server(self) -> None:
        server = self._link.server
        if server is not None:
            server.deliver(self._server.abandon)

    def _listener(self) -> Life | None:
        """Who gets what is sent there: the process that took the connection, or the one that may take it."""
        return self._link.server or self._link.node.life

    def _check_refused(self) -> None:
        """Nobody took the connection."""
        life = self._link.node.life
        nobody = life is None or life.listening is None
        if self._link.server is None and nobody and self._link.rng.random() < REFUSED:
            self.finish(Status(grpc.StatusCode.UNAVAILABLE, "connection refused"))

    def _break(self) -> None:
        self.finish(Status(grpc.StatusCode.UNAVAILABLE, "connection reset"))

    def _ping(self) -> None:
        """As HTTP/2 does it: a process that is stopped, dead or cut off does not answer."""
        if self._status is not None:
            return
        server = self._link.server
        answers = server is not None and not server.dead and not server.stopped and not self._link.blocked
        self._silent = 0 if answers else self._silent + 1
        if self._silent >= 2:
            self.finish(Status(grpc.StatusCode.UNAVAILABLE, "ping timeout"))
            self._link.world.loop.call_later(self._link.latency_s(), self._abandon_server)
        else:
            self._life.clock.call_later(SILENCE_S, self._ping)

    def _raise_for_status(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError
        status = self._status
        if status is not None and status.code is not grpc.StatusCode.OK:
            greeting = self._greeted.result() if self._greeted.done() else ()
            raise grpc.aio.AioRpcError(
                status.code, grpc.aio.Metadata(*greeting), grpc.aio.Metadata(*status.trailing), status.details
            )


class ServerStream:
    """What a handler's context offers."""

    def __init__(self, link: _Link, client: ClientStream, metadata: tuple[tuple[str, str], ...]) -> None:
        self._link = link
        self._client = client
        self._metadata = metadata
        self._inbox: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._over = False
        """The client is gone, or a status was sent."""
        self._abandoned = False
        self._untaken = 0
        """Bytes that were sent, and that the client has not taken as far as is known here."""
        self._room = asyncio.Event()
        self.deserializer: Callable[[bytes], Any] = bytes
        self.serializer: Callable[[Any], bytes] = bytes
        self.task: asyncio.Task[None] | None = None

    # --- What grpc.aio offers ---

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def peer(self) -> str:
        return f"ipv4:{self._link.client.node.name}:{self._link.client.streams_begun}"

    async def send_initial_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._tell(lambda: self._client.greeted(metadata))

    async def read(self) -> Any:
        while not self._inbox and not self._abandoned:
            self._news.clear()
            await self._news.wait()
        return self.deserializer(self._inbox.popleft()) if self._inbox else grpc.aio.EOF

    async def write(self, message: Any) -> None:
        if self._over:
            raise grpc.aio.UsageError("RPC already finished.")
        body = self.serializer(message)
        if self._link.draws_a_cut():
            if self._link.rng.random() < 0.5:
                self._tell(lambda: self._client.receive(body))
            else:
                self._link.back.tear()
            self._client.cut()
        else:
            self._tell(lambda: self._client.receive(body))
        assert self._link.server is not None
        await _pause(self._link.server, self._link)
        if self._link.has_window:
            if (server := self._link.server).door is not None and self._link.world.layout.stalled:
                check_unsent(server, server.door)
            self._untaken += len(body)
            while self._untaken > WINDOW_BYTES and not self._abandoned:
                self._room.clear()
                await self._room.wait()

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: tuple[tuple[str, Any], ...] = ()
    ) -> None:
        if self._over:
            raise grpc.aio.UsageError("RPC already finished.")
        self._end(Status(code, details, tuple(trailing_metadata)))
        raise grpc.aio.AbortError("locally aborted")

    # --- Underneath ---

    def accept(self, method: str) -> None:
        """A connection has come, in whatever process runs on the node now."""
        link = self._link
        life = link.node.life
        if life is None or life.listening is None or self._abandoned:
            return
        link.server = life
        life.served[self._client] = None
        self._tell(self._client.connected)
        life.listening.begin(self, method)

    async def run(self, handler: Any) -> None:
        try:
            if handler.stream_stream is not None:
                await handler.stream_stream(None, self)
            else:
                await handler.unary_stream(await self.read(), self)
        except (grpc.aio.AbortError, grpc.aio.UsageError):
            self._end(Status(grpc.StatusCode.UNKNOWN, "the handler failed"))
        except asyncio.CancelledError:
            self._end(Status(grpc.StatusCode.CANCELLED, "the server ended the call"))
            raise
        else:
            self._end(OK)
        finally:
            assert self._link.server is not None
            self._link.server.served.pop(self._client, None)

    def receive(self, body: bytes) -> None:
        if not self._abandoned:
            self._inbox.append(body)
            self._news.set()
            if self._link.server is not None:
                self._link.server.told()

    def taken(self, size: int) -> None:
        self._untaken -= size
        self._room.set()

    def abandon(self) -> None:
        """The client is gone: whoever reads hears of the end, and the handler is cancelled, in whatever order."""
        if self._abandoned:
            return
        self._abandoned = self._over = True
        if self._link.rng.random() < 0.5:
            self._inbox.clear()
        self._news.set()
        self._room.set()
        if self.task is not None:
            _cancel_in(self._link, self.task, self._link.rng.choice((0, 0, 1, 2, 4)))

    def _end(self, status: Status) -> None:
        if not self._over:
            self._over = True
            self._tell(lambda: self._client.finish(status))

    def _tell(self, event: Event) -> None:
        if not self._link.back.is_torn:
            self._link.back.send(lambda: self._link.client, event)


def _cancel_in(link: _Link, task: asyncio.Task[None], rounds: int) -> None:
    if rounds:
        link.world.loop.call_soon(_cancel_in, link, task, rounds - 1)
    else:
        task.cancel()


async def _pause(life: Life, link: _Link) -> None:
    """A write waits now and then until the network has room."""
    if link.rng.random() >= BUFFERED:
        await life.clock.sleep(link.latency_s())
