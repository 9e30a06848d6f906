"""An HTTP proxy on loopback that makes a store slow and unreliable, on purpose and repeatably.

It stands before a real server. Every request waits once (fixed or log-normal), and may then meet a fault:
lost before or after the server acted on it, refused with a status, or never answered. The bytes pass
untouched, the Host header included, so signatures still verify.

It works on whole messages in protocol callbacks instead of streams and tasks: with hundreds of connections
and a delay of 50 ms the proxy must not become the bottleneck that a benchmark then measures.

    async with Proxy("http://127.0.0.1:8333", delay=Delay(50, sigma=0.3)) as proxy:
        proxy.inject(Fault.DROP_AFTER, methods={"PUT"}, times=1)
        store = CloudStore("s3", "bucket", options={"endpoint": proxy.endpoint, ...})

As a process: `python -m tests.support.proxy --upstream http://127.0.0.1:8333 --delay-ms 50`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, cast
from urllib.parse import urlsplit

from casque.clock import Clock, Random, SystemClock, Timer
from tests.support.http1 import BadMessageError, Framer, Message


class Fault(StrEnum):
    DROP_BEFORE = "drop-before"
    """The connection breaks; the server never saw the request."""
    DROP_AFTER = "drop-after"
    """The server acted and answered; the connection breaks before the answer arrives."""
    HANG = "hang"
    """Never answered; the server never saw the request."""
    HANG_AFTER = "hang-after"
    """Never answered, although the server acted."""
    INTERNAL_ERROR = "500"
    UNAVAILABLE = "503"
    TOO_MANY = "429"
    CONFLICT = "409"


@dataclass(frozen=True)
class Delay:
    """How long a request waits: `median_ms`, always the same, or log-normal around it with `sigma`."""

    median_ms: float = 0.0
    sigma: float = 0.0

    def draw_seconds(self, rng: Random) -> float:
        if self.sigma and self.median_ms:
            return rng.lognormvariate(math.log(self.median_ms), self.sigma) / 1000
        return self.median_ms / 1000


@dataclass
class Rule:
    """Which requests meet a fault. `times` is how often it may still strike; None is for ever."""

    fault: Fault
    chance: float = 1.0
    methods: frozenset[str] = frozenset()
    times: int | None = None
    target: str = ""
    """A part of the request's path or query; empty means any."""

    def strikes(self, message: Message, rng: Random) -> bool:
        if self.times == 0 or (self.methods and message.method not in self.methods):
            return False
        if self.target and self.target not in message.target:
            return False
        if self.chance < 1.0 and rng.random() >= self.chance:
            return False
        if self.times is not None:
            self.times -= 1
        return True


class Proxy:
    """Forwards to `upstream` (http://host:port). Use it as an async context manager."""

    def __init__(
        self,
        upstream: str,
        *,
        delay: Delay | None = None,
        seed: int = 0,
        clock: Clock | None = None,
        port: int = 0,
    ) -> None:
        parts = urlsplit(upstream)
        self.upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.delay = delay or Delay()
        self.clock: Clock = clock or SystemClock()
        self.rng = Random(seed)
        self.rules: list[Rule] = []
        self.requests: Counter[str] = Counter()
        self.faults: Counter[Fault] = Counter()
        self.statuses: Counter[int] = Counter()
        self.bytes_up = 0
        self.bytes_down = 0
        self._port = port
        self._server: asyncio.Server | None = None
        self._clients: set[_Client] = set()
        self._connections = 0
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._watchers: list[tuple[str, int, asyncio.Future[None]]] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Client(self), "127.0.0.1", self._port, backlog=1024)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for client in list(self._clients):
            client.abort()
        await self._server.wait_closed()
        # An aborted connection is only closed on the loop's next turn, and there may be none after us.
        await self._all_closed.wait()

    def inject(
        self,
        fault: Fault,
        *,
        chance: float = 1.0,
        methods: Collection[str] = (),
        times: int | None = None,
        target: str = "",
    ) -> None:
        """From now on, let requests meet `fault`. Rules are tried in the order they were added."""
        self.rules.append(Rule(fault, chance, frozenset(methods), times, target))

    def calm(self) -> None:
        """No more faults. Requests that hang already go on hanging."""
        self.rules.clear()

    async def requested(self, method: str, count: int = 1) -> None:
        """Wait until `count` requests with this method have come in, counted from the start."""
        if self.requests[method] < count:
            future = asyncio.get_running_loop().create_future()
            self._watchers.append((method, count, future))
            await future

    def pick(self, message: Message) -> Fault | None:
        """Count a request, and decide what happens to it."""
        self.requests[message.method] += 1
        self.bytes_up += len(message.raw)
        for watcher in [w for w in self._watchers if self.requests[w[0]] >= w[1]]:
            self._watchers.remove(watcher)
            if not watcher[2].done():
                watcher[2].set_result(None)
        for rule in self.rules:
            if rule.strikes(message, self.rng):
                self.faults[rule.fault] += 1
                return rule.fault
        return None

    # What a subclass may change on the way; the proxy itself changes nothing.

    def refuse(self, request: Message) -> bytes | None:
        """An answer of our own, without asking the server."""
        return None

    def to_server(self, request: Message) -> bytes:
        return request.raw

    def to_client(self, request: Message, answer: Message) -> bytes:
        return answer.raw

    def opened(self) -> None:
        self._connections += 1
        self._all_closed.clear()

    def closed(self) -> None:
        self._connections -= 1
        if self._connections == 0:
            self._all_closed.set()

    def joined(self, client: _Client) -> None:
        self._clients.add(client)

    def left(self, client: _Client) -> None:
        self._clients.discard(client)


class _Client(asyncio.Protocol):
    """One client's connection, and its own connection to the server. One request at a time, in order."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._frames = Framer(requests=True)
        self._transport: asyncio.Transport | None = None
        self._upstream: _Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._current: Message | None = None
        self._fault: Fault | None = None
        self._told_to_continue = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._proxy.opened()
        self._proxy.joined(self)

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        self._advance()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._proxy.closed()
        if self._timer is not None:
            self._timer.cancel()
        # What was forwarded stays with the server: a client that gives up does not undo it.
        if not self._is_forwarding:
            self.abort()

    def abort(self) -> None:
        """Leave, and close both sides."""
        self._proxy.left(self)
        self._current = None
        if self._transport is not None:
            self._transport.abort()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._upstream is not None:
            self._upstream.close()

    @property
    def _is_forwarding(self) -> bool:
        if self._connecting is not None and not self._connecting.done():
            return True
        return self._upstream is not None and self._upstream.is_waiting

    def _advance(self) -> None:
        if self._current is not None:
            return
        assert self._transport is not None
        try:
            message = self._frames.next()
        except BadMessageError:
            self._transport.abort()
            return
        if message is None:
            if self._frames.waits_for_body and not self._told_to_continue:
                # Answered here: the server's own go-ahead would come one delay too late.
                self._told_to_continue = True
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        self._told_to_continue = False
        self._current = message
        self._fault = self._proxy.pick(message)
        seconds = self._proxy.delay.draw_seconds(self._proxy.rng)
        if seconds > 0:
            self._timer = self._proxy.clock.call_later(seconds, self._act)
        else:
            self._act()

    def _act(self) -> None:
        assert self._transport is not None
        match self._fault:
            case Fault.HANG:
                return
            case Fault.DROP_BEFORE:
                self._transport.abort()
            case Fault.INTERNAL_ERROR | Fault.UNAVAILABLE | Fault.TOO_MANY | Fault.CONFLICT:
                self._reply(_refusal(int(self._fault)), keep_alive=True)
            case _:
                self._forward()

    def _forward(self) -> None:
        assert self._current is not None
        refusal = self._proxy.refuse(self._current)
        if refusal is not None:
            self._reply(refusal, keep_alive=True)
        elif self._upstream is not None and self._upstream.is_open:
            self._send()
        else:
            self._connecting = asyncio.get_running_loop().create_task(self._connect_and_forward())

    async def _connect_and_forward(self) -> None:
        host, port = self._proxy.upstream
        loop = asyncio.get_running_loop()
        try:
            _, self._upstream = await loop.create_connection(lambda: _Upstream(self, self._proxy), host, port)
        except OSError:
            self._connecting = None
            self.abort()
            return
        if self._current is not None:
            self._send()

    def _send(self) -> None:
        assert self._upstream is not None
        assert self._current is not None
        self._upstream.send(self._proxy.to_server(self._current), method=self._current.method)

    def answered(self, answer: Message) -> None:
        self._proxy.statuses[answer.status] += 1
        assert self._transport is not None
        if self._fault is Fault.DROP_AFTER or self._transport.is_closing():
            self.abort()
        elif self._fault is not Fault.HANG_AFTER:
            assert self._current is not None
            self._reply(self._proxy.to_client(self._current, answer), keep_alive=answer.keeps_alive)

    def _reply(self, raw: bytes, *, keep_alive: bool) -> None:
        assert self._transport is not None
        self._current = self._fault = self._timer = None
        self._proxy.bytes_down += len(raw)
        self._transport.write(raw)
        if keep_alive:
            self._advance()
        else:
            self._transport.close()


class _Upstream(asyncio.Protocol):
    """A client's connection to the server."""

    def __init__(self, client: _Client, proxy: Proxy) -> None:
        self._client = client
        self._proxy = proxy
        self._frames = Framer(requests=False)
        self._transport: asyncio.Transport | None = None
        self.is_waiting = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._proxy.opened()

    def send(self, raw: bytes, *, method: str) -> None:
        assert self._transport is not None
        self.is_waiting = True
        self._frames.answers_to = method
        self._transport.write(raw)

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        self._take(closed=False)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._proxy.closed()
        self._transport = None
        self._take(closed=True)
        if self.is_waiting:
            self.is_waiting = False
            self._client.abort()

    def close(self) -> None:
        self.is_waiting = False
        if self._transport is not None:
            self._transport.abort()

    def _take(self, *, closed: bool) -> None:
        try:
            while self.is_waiting and (answer := self._frames.next(closed=closed)) is not None:
                if answer.status >= 200:  # a 1xx is not the answer, and the client has had its go-ahead
                    self.is_waiting = False
                    self._client.answered(answer)
        except BadMessageError:
            self.close()
            self._client.abort()


def _refusal(status: int) -> bytes:
    reason = {
        500: "InternalError",
        503: "SlowDown",
        429: "TooManyRequests",
        409: "ConditionalRequestConflict",
    }
    body = f'<?xml version="1.0"?><Error><Code>{reason[status]}</Code></Error>'.encode()
    head = f"HTTP/1.1 {status} {reason[status]}\r\nContent-Type: application/xml\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def run_until_killed(proxy: Proxy) -> None:
    """The whole life of a proxy that is a process. uvloop halves what a request costs."""
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(proxy))


async def _serve(proxy: Proxy) -> None:
    async with proxy:
        sys.stdout.write(proxy.endpoint + "\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().create_future()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.support.proxy", description="A slow, unreliable way to a server")
    parser.add_argument("--upstream", required=True, help="http://host:port")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="median delay per request")
    parser.add_argument("--sigma", type=float, default=0.0, help="spread of the log-normal delay; 0 is fixed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", action="append", default=[], metavar="KIND:CHANCE[:METHOD,METHOD]")
    args = parser.parse_args()
    proxy = Proxy(args.upstream, delay=Delay(args.delay_ms, args.sigma), seed=args.seed, port=args.port)
    for text in args.fault:
        kind, chance, methods = (text + "::").split(":")[:3]
        proxy.inject(Fault(kind), chance=float(chance or 1), methods=[m for m in methods.split(",") if m])
    run_until_killed(proxy)


if __name__ == "__main__":
    main()
