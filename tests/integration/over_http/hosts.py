"""What the servers under test stand in front of."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from typing import Any, NamedTuple

from casque import Queue
from casque.errors import CasqueError
from casque.service import Host, QueueService, Role, Standing
from casque.storage.memory import MemoryStore
from casque.transport.http.client import HttpService
from casque.transport.http.server import HttpServer


class Leading:
    """An embedded queue that is always led here."""

    def __init__(self, service: QueueService) -> None:
        self._service = service
        self.stands = Standing(Role.LEADER, epoch=3, leader="127.0.0.1:1", position=0)

    def service(self) -> QueueService:
        return self._service

    def standing(self) -> Standing:
        return self.stands


class Refusing:
    """A broker that does not lead."""

    def __init__(self, error: CasqueError, standing: Standing | None = None) -> None:
        self._error = error
        self._standing = standing or Standing(Role.STANDBY)

    def service(self) -> QueueService:
        raise self._error

    def standing(self) -> Standing:
        return self._standing


@asynccontextmanager
async def embedded(**settings: Any) -> AsyncIterator[QueueService]:
    async with Queue.open(MemoryStore(), **settings) as queue:
        yield queue._service


@asynccontextmanager
async def serving(host: Host, **options: Any) -> AsyncIterator[HttpServer]:
    server = HttpServer(host, listen="127.0.0.1:0", **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(grace_s=1)


@asynccontextmanager
async def over_http(service: QueueService, **options: Any) -> AsyncIterator[HttpService]:
    async with (
        serving(Leading(service), **options) as server,
        HttpService(f"127.0.0.1:{server.port}") as client,
    ):
        yield client


@asynccontextmanager
async def pretending(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """The port of something that is not quite a broker: it answers one connection as it is told, and closes it."""
    over = asyncio.Event()

    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(reader, writer)
        writer.close()
        await writer.wait_closed()
        over.set()

    async with await asyncio.start_server(whole, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await over.wait()


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    server: HttpServer, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> Reply:
    """One plain request, as any program would make it. A body that is not bytes is sent as JSON."""
    sent = dict(headers or {})
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        sent.setdefault("Content-Type", "application/json")

    def exchange() -> Reply:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())  # type: ignore[arg-type]
        finally:
            connection.close()

    return await asyncio.to_thread(exchange)
