"""A small HTTP endpoint for probes and scrapers, of processes that serve nothing else.

It answers GET and HEAD for a few fixed paths, one request per connection, on the event loop of the process: a loop that
is blocked does not answer, which is what a liveness probe is to find out. The standard library is enough for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import NamedTuple, Self, TypeAlias

from casque.errors import InvalidInputError
from casque.telemetry import logger

log = logger("telemetry")

HEAD_BYTES = 8 * 1024
READ_S = 5.0
"""How long a client may take to send its request."""
CONNECTIONS_MAX = 32
"""More are closed at once: probes and scrapers are few."""
TEXT = "text/plain; charset=utf-8"


class Reply(NamedTuple):
    body: str
    status: HTTPStatus = HTTPStatus.OK
    media: str = TEXT


Answer: TypeAlias = Callable[[], Awaitable[Reply]]


class Endpoint:
    """Answers requests for the given paths while it is open.

    >>> import asyncio
    >>> async def main():
    ...     async def alive():
    ...         return Reply("ok\\n")
    ...     async with Endpoint("127.0.0.1", 0, {"/healthz": alive}) as endpoint:
    ...         reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    ...         writer.write(b"GET /healthz HTTP/1.1\\r\\n\\r\\n")
    ...         print((await reader.read()).splitlines()[0].decode())
    ...         writer.close()
    >>> asyncio.run(main())
    HTTP/1.1 200 OK
    """

    def __init__(self, host: str, port: int, answers: Mapping[str, Answer]) -> None:
        """Port 0 takes a free one, which `port` returns."""
        self._host = host
        self._asked_port = port
        self._answers = answers
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None, "it is not open"
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        """Raises InvalidInputError if it cannot listen there."""
        try:
            self._server = await asyncio.start_server(
                self._connected, self._host, self._asked_port, limit=HEAD_BYTES, reuse_address=True
            )
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise InvalidInputError(f"cannot listen on {self._host}:{self._asked_port}: {why}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._open.add(task)
        try:
            async with asyncio.timeout(READ_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(await self._answered(head))
            async with asyncio.timeout(READ_S):
                await writer.drain()
        except asyncio.LimitOverrunError:
            writer.write(_encoded(Reply("the request is too long\n", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client left, or takes too long
        except asyncio.CancelledError:
            pass  # the endpoint closes
        finally:
            self._open.discard(task)
            writer.close()

    async def _answered(self, head: bytes) -> bytes:
        first, *headers = head.decode("latin-1").split("\r\n")
        method, _, rest = first.partition(" ")
        path, _, version = rest.rpartition(" ")
        if not version.startswith("HTTP/1."):
            return _encoded(Reply("this is HTTP/1.1\n", HTTPStatus.BAD_REQUEST))
        if method not in ("GET", "HEAD"):
            return _encoded(Reply("GET or HEAD\n", HTTPStatus.METHOD_NOT_ALLOWED))
        if _is_of_a_page(headers):
            return _encoded(Reply("not for web pages\n", HTTPStatus.FORBIDDEN))
        answer = self._answers.get(path.partition("?")[0])
        if answer is None:
            known = ", ".join(self._answers)
            return _encoded(Reply(f"there is {known}\n", HTTPStatus.NOT_FOUND), body=method == "GET")
        try:
            reply = await answer()
        except Exception:
            log.exception("%s failed", path)
            reply = Reply("failed; the log says how\n", HTTPStatus.INTERNAL_SERVER_ERROR)
        return _encoded(reply, body=method == "GET")


def _is_of_a_page(headers: list[str]) -> bool:
    """A script of a web page asks. Browsers add this header, and scripts cannot change it."""
    for header in headers:
        name, _, value = header.partition(":")
        if name.strip().lower() == "sec-fetch-site" and value.strip().lower() != "none":
            return True
    return False


def _encoded(reply: Reply, *, body: bool = True) -> bytes:
    content = reply.body.encode()
    head = (
        f"HTTP/1.1 {reply.status.value} {reply.status.phrase}\r\nContent-Type: {reply.media}\r\n"
        f"Content-Length: {len(content)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (content if body else b"")
