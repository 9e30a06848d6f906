"""The edge to the network: a listening socket, and uvicorn adapted to run inside a host process."""

from __future__ import annotations

import asyncio
import logging
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from casque.errors import CasqueError, InvalidInputError
from casque.telemetry import logger
from casque.transport.errors import http_status, to_wire
from casque.transport.http.budget import Budget
from casque.transport.http.limits import HttpLimits

log = logger("transport.http")
_uvicorn_log = logging.getLogger("casque.transport.http.uvicorn")
_uvicorn_log.setLevel(logging.ERROR)
"""A malformed request gets an answer, not a warning: otherwise any caller could fill the log."""

BACKLOG = 2048
TURN_BYTES = 8 * 1024
"""Size of a turn; chunks of one byte take about 5 ms to parse then."""


def bound(listen: str) -> socket.socket:
    """A socket that listens on `host:port`."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise InvalidInputError(f"listen must be host:port, for example 127.0.0.1:7072, not {listen!r}")
    host = host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(host or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return _listening(found[0])
    except OSError as error:
        raise InvalidInputError(f"cannot listen on {listen}: {error.strerror or error}; choose another port") from error


def _listening(found: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, _, address = found
    # Pass the protocol: asyncio disables Nagle's algorithm only for sockets whose protocol is TCP.
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


class Connection(H11Protocol):
    """Uvicorn's connection, with limits on time, on connections, and on the requests it accepts.

    Requests can ask it, at the moment of an answer, whether the client is still connected. ASGI reports a disconnect
    only some time later.
    """

    limits: HttpLimits
    places: Budget

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app_state = {**self.app_state, "connection": self}
        self.logger = _uvicorn_log
        self.last_words: bytes | None = None
        """The last message to a stream's reader that is too slow."""
        self._peer: str | None = None
        self._slow: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._held = b""
        """Received and not parsed yet."""
        self._parsing: asyncio.Handle | None = None

    def is_gone(self) -> bool:
        return self.transport.is_closing()

    # --- How many ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = self.client[0] if self.client else ""
        if not self.places.try_take(peer, 1):
            self.refuse(self.places.refusal(peer))
            return
        self._peer = peer
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._peer is not None:
            self.places.give_back(self._peer, 1)
            self._peer = None
        for timer in (self._slow, self._stalled, self._parsing):
            if timer is not None:
                timer.cancel()
        self._held = b""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    # --- What comes, and how fast ---

    def data_received(self, data: bytes) -> None:
        self._held += data
        if self._parsing is None:
            self._parse()

    def _parse(self) -> None:
        """Parse received bytes, in turns with other connections: a chunk of one byte takes as long as a large one,
        and thousands of them arrive at once."""
        self._parsing = None
        size = len(self._held) if self._is_plain_body() else TURN_BYTES
        turn, self._held = self._held[:size], self._held[size:]
        super().data_received(turn)
        self._watch()
        if self._held and not self.transport.is_closing():
            self.transport.pause_reading()
            self._parsing = self.loop.call_soon(self._parse)
        elif not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _is_plain_body(self) -> bool:
        """True within a body of a known length, which is passed on without being parsed."""
        return self.conn.their_state is h11.SEND_BODY and all(name != b"transfer-encoding" for name, _ in self.headers)

    def handle_events(self) -> None:
        if self.conn.their_state is h11.IDLE and (problem := problem_with_head(self.conn.trailing_data[0])) is not None:
            self.refuse(InvalidInputError(problem))
            return
        super().handle_events()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """Time out headers that have begun and not ended, and a body that is no longer read."""
        begun = self.conn.their_state is h11.IDLE and (
            self.timeout_keep_alive_task is None or bool(self.conn.trailing_data[0])
        )
        cycle: RequestResponseCycle | None = self.cycle
        unread = self.conn.their_state is h11.SEND_BODY and cycle is not None and cycle.response_complete
        if not begun and not unread:
            if self._slow is not None:
                self._slow.cancel()
                self._slow = None
        elif self._slow is None and not self.transport.is_closing():
            self._slow = self.loop.call_later(self.limits.header_s, self._too_slow)

    def _too_slow(self) -> None:
        self._slow = None
        seconds = self.limits.header_s
        self.refuse(InvalidInputError(f"the request did not come within {seconds:g} s; send it faster"), status=408)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  it always says the same
        self.refuse(InvalidInputError("this is not an HTTP/1.1 request: its lines, headers or chunks cannot be read"))

    def refuse(self, error: CasqueError, *, status: int | None = None) -> None:
        """Answer with the error, unless an answer has begun, and close the connection."""
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = msgspec.json.encode(to_wire(error))
            headers = [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ]
            code = status or http_status(error)
            response = h11.Response(status_code=code, headers=headers, reason=HTTPStatus(code).phrase.encode())
            asked_for_head = self.conn.our_state is h11.SEND_RESPONSE and self.scope["method"] == "HEAD"
            for event in (response, h11.Data(data=b"" if asked_for_head else body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self._hang_up()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._hang_up()

    def _hang_up(self) -> None:
        """Close without waiting for ever until the client has read everything."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.flow.resume_writing()
        self.transport.close()
        self.loop.call_later(self.limits.stall_s, self.transport.abort)

    # --- Readers ---

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent = self.transport.get_write_buffer_size()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.limits.stall_s, self._look_at_reader)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _look_at_reader(self) -> None:
        """Nothing is written while the reader is behind, so the remaining bytes show how much it has read."""
        left = self.transport.get_write_buffer_size()
        if self._unsent - left >= self.limits.rate_min * self.limits.stall_s:
            self._unsent = left
            self._stalled = self.loop.call_later(self.limits.stall_s, self._look_at_reader)
            return
        self._stalled = None
        log.info("a reader was too slow: %s is hung up on", self.client[0] if self.client else "it")
        if self.last_words is not None and self.conn.our_state is h11.SEND_BODY:
            self.transport.write(self.conn.send(h11.Data(data=self.last_words)) or b"")
            self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
            self._hang_up()
            return
        self._hang_up()
        self.transport.abort()


def connection_class(limits: HttpLimits) -> type[Connection]:
    """The connection class of one server."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limits.connections if files == resource.RLIM_INFINITY else min(limits.connections, max(16, files - 128))
    places = Budget("connections", most, limits.connections_per_peer)
    return type("LimitedConnection", (Connection,), {"limits": limits, "places": places})


def problem_with_head(head: bytes) -> str | None:
    """Find ambiguities that this server and a proxy in front could interpret differently (request smuggling)."""
    end = _HEAD_END.search(head)
    if end is None:
        return None
    head = head[: end.start() + 1]
    if _FOLDED.search(head) is not None:
        return "a header must be on one line"
    lengths = _LENGTHS.findall(head)
    encodings = _ENCODINGS.findall(head)
    if len(lengths) > 1 or any(b"," in value for value in lengths):
        return "Content-Length is given twice"
    if lengths and encodings:
        return "give Content-Length or Transfer-Encoding, not both"
    if encodings and b"HTTP/1.0" in head.partition(b"\n")[0]:
        return "Transfer-Encoding is for HTTP/1.1"
    return None


_HEAD_END = re.compile(rb"\n\r?\n")
_FOLDED = re.compile(rb"\n[ \t]")
_LENGTHS = re.compile(rb"\ncontent-length[ \t]*:([^\n]*)", re.IGNORECASE)
_ENCODINGS = re.compile(rb"\ntransfer-encoding[ \t]*:([^\n]*)", re.IGNORECASE)


class QuietServer(uvicorn.Server):
    """Uvicorn without its signal handlers, and without polling ten times a second whether it should stop."""

    def __init__(self, config: uvicorn.Config, leaving: asyncio.Event) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._leaving = leaving

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        await self._leaving.wait()
