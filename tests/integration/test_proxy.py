"""The proxy and its framing: what a client sees through it, fault by fault."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from casque.clock import Random, SystemClock
from tests.support.http1 import BadMessageError, Framer
from tests.support.proxy import Delay, Fault, Proxy

CHUNKED = b"4\r\nabcd\r\n3;x=y\r\nefg\r\n0\r\n\r\n"


class Echo:
    """A plain HTTP server that remembers the raw requests it got, and answers with their bodies."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.connections = 0
        self.endpoint = ""
        self.tasks: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.create_task(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        frames = Framer(requests=True)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                frames.feed(data)
                while (message := frames.next()) is not None:
                    self.seen.append(message.raw)
                    writer.write(self._answer(message.target, message.method, message.body))
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    @staticmethod
    def _answer(target: str, method: str, body: bytes) -> bytes:
        if target == "/chunked":
            return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED
        if target == "/empty":
            return b"HTTP/1.1 204 No Content\r\n\r\n"
        head = b"HTTP/1.1 100 Continue\r\n\r\n" if target == "/continue" else b""
        head += b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        return head if method == "HEAD" else head + body


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    echo = Echo()
    server = await asyncio.start_server(echo.accept, "127.0.0.1", 0)
    echo.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield echo
    server.close()
    await server.wait_closed()
    await asyncio.gather(*echo.tasks)


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[Proxy]:
    async with Proxy(echo.endpoint) as proxy:
        yield proxy


class Client:
    """One connection; sends raw bytes and reads one whole answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = Framer(requests=False)

    @classmethod
    async def connect(cls, proxy: Proxy) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", int(proxy.endpoint.rpartition(":")[2])))

    async def ask(self, raw: bytes) -> tuple[int, bytes]:
        self._writer.write(raw)
        return await self.answer(raw.partition(b" ")[0].decode())

    async def answer(self, method: str = "GET") -> tuple[int, bytes]:
        """The next answer; (0, b"") when the connection ends without one."""
        self._frames.answers_to = method
        while (message := self._frames.next()) is None:
            try:
                data = await self._reader.read(65536)
            except ConnectionError:
                data = b""
            if not data:
                return 0, b""
            self._frames.feed(data)
        return message.status, message.body

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    client = await Client.connect(proxy)
    yield client
    await client.close()


def put(body: bytes, target: str = "/key") -> bytes:
    return (
        b"PUT %s HTTP/1.1\r\nHost: a.example\r\nContent-Length: %d\r\n\r\n"
        % (
            target.encode(),
            len(body),
        )
        + body
    )


GET = b"GET /key HTTP/1.1\r\nHost: a.example\r\n\r\n"


async def test_requests_pass_untouched_on_one_connection(echo: Echo, proxy: Proxy, client: Client) -> None:
    assert await client.ask(put(b"one")) == (200, b"one")
    assert await client.ask(GET) == (200, b"")
    assert await client.ask(put(b"x" * 300_000)) == (200, b"x" * 300_000)

    assert echo.seen == [put(b"one"), GET, put(b"x" * 300_000)]
    assert echo.connections == 1
    assert proxy.requests == {"PUT": 2, "GET": 1}
    assert proxy.bytes_up == sum(map(len, echo.seen))


async def test_chunked_bodies_pass_both_ways(echo: Echo, client: Client) -> None:
    request = b"PUT /chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED

    assert await client.ask(request) == (200, b"abcdefg")

    assert echo.seen == [request]


async def test_answers_without_a_body_do_not_stall(client: Client) -> None:
    head = b"HEAD /key HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"

    assert await client.ask(head) == (200, b"")
    assert (await client.ask(b"DELETE /empty HTTP/1.1\r\nHost: a\r\n\r\n"))[0] == 204
    assert await client.ask(put(b"next")) == (200, b"next")


async def test_a_client_that_asks_before_sending_the_body_is_told_to_go_on(client: Client) -> None:
    head = b"PUT /continue HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"

    assert await client.ask(head) == (100, b"")
    assert await client.ask(b"body") == (200, b"body")


async def test_pipelined_requests_are_answered_in_order(client: Client) -> None:
    assert await client.ask(put(b"one") + put(b"two")) == (200, b"one")
    assert await client.answer() == (200, b"two")


@pytest.mark.parametrize(
    ("fault", "status", "reached"),
    [
        (Fault.DROP_BEFORE, 0, False),
        (Fault.DROP_AFTER, 0, True),
        (Fault.INTERNAL_ERROR, 500, False),
        (Fault.UNAVAILABLE, 503, False),
        (Fault.TOO_MANY, 429, False),
        (Fault.CONFLICT, 409, False),
    ],
)
async def test_each_fault(echo: Echo, proxy: Proxy, client: Client, fault: Fault, status: int, reached: bool) -> None:
    proxy.inject(fault, times=1)

    assert (await client.ask(put(b"one")))[0] == status

    assert bool(echo.seen) is reached
    assert proxy.faults == {fault: 1}
    again = await Client.connect(proxy)
    assert await again.ask(put(b"two")) == (200, b"two")
    await again.close()


@pytest.mark.parametrize(("fault", "reached"), [(Fault.HANG, False), (Fault.HANG_AFTER, True)])
async def test_a_request_that_hangs_gets_no_answer(
    echo: Echo, proxy: Proxy, client: Client, fault: Fault, reached: bool
) -> None:
    proxy.inject(fault, times=1)
    asking = asyncio.create_task(client.ask(put(b"one")))
    await proxy.requested("PUT")
    other = await Client.connect(proxy)
    assert await other.ask(put(b"two")) == (200, b"two")
    await other.close()

    assert not asking.done()
    assert (put(b"one") in echo.seen) is reached
    asking.cancel()


async def test_faults_strike_only_what_they_are_meant_for(echo: Echo, proxy: Proxy, client: Client) -> None:
    proxy.inject(Fault.UNAVAILABLE, methods={"PUT"}, target="queue")

    assert (await client.ask(GET))[0] == 200
    assert (await client.ask(put(b"a", "/other")))[0] == 200
    assert (await client.ask(put(b"a", "/queue.json")))[0] == 503
    proxy.calm()
    assert (await client.ask(put(b"a", "/queue.json")))[0] == 200


async def test_chance_repeats_with_the_seed(echo: Echo) -> None:
    async def run(seed: int) -> list[int]:
        async with Proxy(echo.endpoint, seed=seed) as proxy:
            proxy.inject(Fault.TOO_MANY, chance=0.5)
            client = await Client.connect(proxy)
            statuses = [(await client.ask(GET))[0] for _ in range(40)]
            await client.close()
            return statuses

    assert await run(1) == await run(1)
    assert await run(1) != await run(2)
    assert set(await run(1)) == {200, 429}


async def test_many_slow_requests_wait_side_by_side(echo: Echo) -> None:
    clock = SystemClock()
    async with Proxy(echo.endpoint, delay=Delay(50)) as proxy:
        clients = await asyncio.gather(*(Client.connect(proxy) for _ in range(100)))
        start = clock.monotonic_ms()

        answers = await asyncio.gather(*(client.ask(put(b"x")) for client in clients))

        spent_ms = clock.monotonic_ms() - start
        assert answers == [(200, b"x")] * 100
        # One after the other they would take five seconds.
        assert 50 <= spent_ms < 2500
        for client in clients:
            await client.close()


def test_log_normal_delays_have_the_median_that_was_asked_for() -> None:
    rng, delay = Random(1), Delay(50, sigma=0.5)

    drawn = sorted(delay.draw_seconds(rng) for _ in range(2001))

    assert 0.045 < drawn[1000] < 0.055
    assert drawn[0] < 0.02
    assert drawn[-1] > 0.15


async def test_a_server_that_is_gone_looks_like_a_dropped_connection() -> None:
    async with Proxy("http://127.0.0.1:1") as proxy:
        client = await Client.connect(proxy)
        assert await client.ask(GET) == (0, b"")
        await client.close()


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_messages_are_found_however_the_bytes_are_cut(step: int) -> None:
    chunked = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED
    trailers = chunked[:-2] + b"X-Sum: 1\r\n\r\n"
    stream = put(b"one") + chunked + trailers + GET + put(b"")
    frames, found = Framer(requests=True), []

    for at in range(0, len(stream), step):
        frames.feed(stream[at : at + step])
        while (message := frames.next()) is not None:
            found.append(message.raw)

    assert found == [put(b"one"), chunked, trailers, GET, put(b"")]


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16\x03\x01 tls\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_refused(junk: bytes) -> None:
    frames = Framer(requests=True)
    frames.feed(junk)

    with pytest.raises(BadMessageError):
        frames.next()
