"""Whatever bytes arrive on the HTTP port: each request is answered or refused, and nothing fails."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from typing import Any

import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from casque.clock import yield_once
from casque.testing.hosting import leading
from casque.transport.http.routes import ROUTES
from casque.transport.http.server import HttpServer

EXAMPLES = int(os.environ.get("CASQUE_FUZZ", "150"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="CASQUE_FUZZ" not in os.environ,  # the normal run tries the same cases every time
    suppress_health_check=list(HealthCheck),
)
TURNS = 300
"""Of the event loop, for a request on a queue in memory."""
FINE = {200, 204, 400, 403, 404, 405, 408, 409, 413, 415, 421}


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed, "written after the end"
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


class Server:
    """Connections of a real server, without sockets."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.hosting = leading("memory://fuzzed-requests")
        host = self.loop.run_until_complete(self.hosting.__aenter__())
        self.config = HttpServer(host, listen="127.0.0.1:0")._config()

    def play(self, pieces: list[bytes]) -> Wire:
        return self.loop.run_until_complete(self._play(pieces))

    async def _play(self, pieces: list[bytes]) -> Wire:
        wire, state = Wire(), ServerState()
        kind: Any = self.config.http_protocol_class
        connection = kind(config=self.config, server_state=state, app_state={}, _loop=self.loop)
        connection.connection_made(wire)
        for piece in pieces:
            if wire.closed:
                break
            connection.data_received(piece)
            await yield_once()
        for _ in range(TURNS):
            if not state.tasks:
                break
            await yield_once()
        connection.connection_lost(None)
        await asyncio.wait_for(asyncio.gather(*state.tasks), 10)
        return wire

    def close(self) -> None:
        self.loop.run_until_complete(self.hosting.__aexit__(None, None, None))
        self.loop.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


PATHS = [route.path.replace("{id}", "a%2Fb").encode() for route in ROUTES if route.verb not in ("events", "claim")]
TARGETS = st.one_of(
    st.sampled_from([*PATHS, b"/", b"/healthz", b"/metrics", b"*", b"/v1/jobs/%ff", b"/v1/jobs/%00", b"//", b"/%"]),
    st.binary(min_size=1, max_size=30).map(lambda raw: b"/" + raw),
    st.sampled_from([b"?after=1", b"?%ff=%ff", b"?limit=1&limit=2", b"?since=0001-01-01T00:00:00%2B14:00"]).map(
        b"/v1/archive".__add__
    ),
)
HEADERS = st.one_of(
    st.sampled_from(
        [
            b"Content-Type: application/json",
            b"Content-Length: 2",
            b"Content-Length: 0",
            b"Content-Length: 99999999999999999999",
            b"Content-Length: -1",
            b"Content-Length: 2, 2",
            b"Transfer-Encoding: chunked",
            b"Transfer-Encoding: identity",
            b"Expect: 100-continue",
            b"Connection: close",
            b"Connection: upgrade\r\nUpgrade: websocket",
            b"Host: evil.example",
            b"Origin: null",
            b"Authorization: Bearer \xff",
            b"Idempotency-Key: %ff",
            b"X: y\r\n folded",
            b"Last-Event-ID: 9999999999999999999.9",
        ]
    ),
    st.tuples(st.binary(max_size=10), st.binary(max_size=20)).map(lambda pair: pair[0] + b": " + pair[1]),
)
BODIES = st.one_of(
    st.just(b""),
    st.sampled_from(
        [
            b"{}",
            b'{"entrypoint":"a"}',
            b'[{"entrypoint":"a","payload_json":' + b"[" * 2_000,
            b"2\r\n{}\r\n0\r\n\r\n",
            b"-2\r\n{}\r\n0\r\n\r\n",
            b"fffffffffffffffff\r\n{}",
            b"2;a=b\r\n{}\r\n0\r\nX: y\r\n\r\n",
        ]
    ),
    st.binary(max_size=40),
)


@st.composite
def requests(draw: Any) -> bytes:
    method = draw(st.sampled_from([b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"G\x00T", b"get", b""]))
    version = draw(st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b""]))
    end: bytes = draw(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]))
    lines = [method + b" " + draw(TARGETS) + b" " + version]
    if draw(st.integers(0, 9)):
        lines.append(b"Host: localhost")
    lines += draw(st.lists(HEADERS, max_size=4))
    body: bytes = draw(BODIES)
    head: bytes = end.join([*lines, b"", b""])
    return head + body


@st.composite
def traffic(draw: Any) -> list[bytes]:
    """Some requests, perhaps with bytes changed, in pieces of any size."""
    raw = b"".join(draw(st.lists(requests(), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=3)) + raw[at + draw(st.integers(0, 2)) :]
    cuts = sorted(draw(st.sets(st.integers(0, len(raw)), max_size=4)))
    return [raw[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True) if begin != end]


@fuzz
@given(traffic())
def test_every_request_is_answered_or_refused(server: Server, caplog: Any, pieces: list[bytes]) -> None:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        wire = server.play(pieces)

    # Who was refused is written down; anything else that is worth a warning is a bug.
    assert not [record for record in caplog.records if record.name != "casque.audit"], caplog.text
    for status in statuses(wire.written):
        assert status in FINE, (status, wire.written)


def statuses(written: bytes) -> list[int]:
    """Those of all answers, read as a client reads them."""
    found = []
    for answer in written.split(b"HTTP/1.1 ")[1:]:
        if not answer[:3].isdigit():
            continue  # those bytes were in a body
        found.append(int(answer[:3]))
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
        client.send(h11.EndOfMessage())
        client.receive_data(b"HTTP/1.1 " + answer)
        assert isinstance(client.next_event(), h11.Response | h11.InformationalResponse)
    return [status for status in found if status >= 200]
