"""HTTP/1.1 connections to one address, one per concurrent caller.

h11 handles the protocol; this module adds what a queue's client needs: idle connections are reused, a cancelled caller
closes its connection (which is how the server notices), and errors distinguish whether anything can have been sent.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import h11

from casque.errors import BrokerUnreachableError, CasqueError, InvalidInputError, UnknownOutcomeError
from casque.tasks import Background

CONNECT_S = 5.0
CLOSE_S = 1.0
LAST_WORDS_S = 0.05
IDLE_S = 30.0
"""How long an idle connection is kept; servers keep theirs longer, so that none is closed just as it is reused."""
IDLE_MAX = 200
_PIECE = 256 * 1024

Headers = list[tuple[bytes, bytes]]
Unheard: TypeAlias = Callable[[int, bytes], Awaitable[None]]


class Connections:
    """A pool of connections to one address. `url` has a scheme, a host and perhaps a port and a path."""

    def __init__(
        self, url: str, tls: ssl.SSLContext | None, headers: Headers, *, server_name: str | None = None
    ) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise InvalidInputError(f"address must have a port from 1 to 65535: {url!r}") from error
        assert parts.hostname is not None
        self._url = url
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._server_name = (server_name or parts.hostname) if self._tls is not None else None
        self._headers = [(b"Host", parts.netloc.rpartition("@")[2].encode()), *headers]
        self._idle: list[tuple[float, _Line]] = []
        self._listening = Background()
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        await self._listening.ended()
        idle, self._idle = self._idle, []
        await asyncio.gather(*(line.end() for _, line in idle))

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: bytes,
        *,
        patience_s: float,
        unheard: Unheard | None = None,
    ) -> AsyncIterator[Answer]:
        """Send a request and yield its answer, with the body still to be read. Each step may take `patience_s`.

        A cancelled caller leaves at once. If its answer was on the way already, `unheard` gets it.

        Raises:
            BrokerUnreachableError: nothing was sent.
            UnknownOutcomeError: the connection broke, or the answer did not come.
        """
        line = await self._line()
        request = h11.Request(
            method=method,
            target=self._prefix + target,
            headers=[*self._headers, *headers, (b"Content-Length", b"%d" % len(body))],
        )
        kept = False
        try:
            with self._translated():
                answer = await line.ask(request, body, patience_s)
                yield answer
            kept = line.is_free()
        except asyncio.CancelledError:
            if unheard is not None and line.is_owed_an_answer():
                self._listening.start(line.last_words(unheard))
            raise
        finally:
            if line.is_left():
                pass  # `last_words` closes it after reading a late answer
            elif kept and not self._closed and len(self._idle) < IDLE_MAX:
                self._idle.append((asyncio.get_running_loop().time(), line))
            else:
                line.close()

    async def _line(self) -> _Line:
        now = asyncio.get_running_loop().time()
        while self._idle:
            since, line = self._idle.pop()
            if now - since < IDLE_S and not line.is_broken():
                return line
            line.close()
        try:
            async with asyncio.timeout(CONNECT_S):
                streams = await asyncio.open_connection(
                    self._host, self._port, ssl=self._tls, server_hostname=self._server_name
                )
        except TimeoutError as error:
            raise BrokerUnreachableError(self._url, f"no connection within {CONNECT_S:g} seconds") from error
        except OSError as error:  # includes TLS errors
            raise BrokerUnreachableError(self._url, error.strerror or str(error)) from error
        return _Line(*streams)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (OSError, h11.ProtocolError) as error:
            problem = "the answer did not come in time" if isinstance(error, TimeoutError) else str(error)
            raise UnknownOutcomeError(
                f"the connection to {self._url} broke before the whole answer was there "
                f"({problem or type(error).__name__}); the call may have been carried out: repeat it with the same "
                "request_id, or look first"
            ) from error


class Answer:
    """A status, and a body that arrives in pieces."""

    def __init__(self, line: _Line, response: h11.Response, patience_s: float) -> None:
        self._line = line
        self._patience_s = patience_s
        self._read: list[bytes] = []
        self.status = response.status_code

    async def pieces(self) -> AsyncIterator[bytes]:
        while not isinstance(event := await self._line.next_event(self._patience_s), h11.EndOfMessage):
            assert isinstance(event, h11.Data)
            yield bytes(event.data)

    async def whole(self) -> bytes:
        """Read the whole body. A call after a cancelled one continues where that stopped."""
        async for piece in self.pieces():
            self._read.append(piece)
        return b"".join(self._read)


class _Line:
    """One connection, with one exchange at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = h11.Connection(h11.CLIENT)
        self._answer: Answer | None = None
        self._left = False

    async def ask(self, request: h11.Request, body: bytes, patience_s: float) -> Answer:
        pieces = [self._protocol.send(request), self._protocol.send(h11.Data(data=body))]
        pieces.append(self._protocol.send(h11.EndOfMessage()))
        self._writer.writelines([piece for piece in pieces if piece])
        try:
            async with asyncio.timeout(patience_s):
                await self._writer.drain()
        except ConnectionError:
            pass  # the server may have refused the rest and said why
        return await self._hear_answer(patience_s)

    async def _hear_answer(self, patience_s: float) -> Answer:
        while not isinstance(event := await self.next_event(patience_s), h11.Response):
            assert isinstance(event, h11.InformationalResponse)
        self._answer = Answer(self, event, patience_s)
        return self._answer

    async def next_event(self, patience_s: float) -> object:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(patience_s):
                self._protocol.receive_data(await self._reader.read(_PIECE))
        if isinstance(event, h11.ConnectionClosed):
            raise ConnectionResetError("it was closed")
        return event

    def is_owed_an_answer(self) -> bool:
        return self._protocol.our_state is h11.DONE and self._protocol.their_state is not h11.DONE

    def is_left(self) -> bool:
        return self._left

    def last_words(self, unheard: Unheard) -> Coroutine[Any, Any, None]:
        """Close the connection, but pass on an answer that was already on its way.

        A server that sees the end of the request stream has either answered before, or never will. TLS cannot close one
        direction alone: there, only an answer that has practically arrived is read before closing.
        """
        self._left = True
        patience_s = CLOSE_S
        if self._writer.can_write_eof():
            self._writer.write_eof()
        else:
            patience_s = LAST_WORDS_S
        return self._hear(unheard, patience_s)

    async def _hear(self, unheard: Unheard, patience_s: float) -> None:
        try:
            answer = self._answer or await self._hear_answer(patience_s)
            await unheard(answer.status, await answer.whole())
        except (OSError, h11.ProtocolError, CasqueError):
            pass  # there was none
        finally:
            await self.end()

    def is_free(self) -> bool:
        """True if the exchange has ended and the connection can be reused."""
        if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
            self._protocol.start_next_cycle()
            self._answer = None
        return self._protocol.states == {h11.CLIENT: h11.IDLE, h11.SERVER: h11.IDLE}

    def is_broken(self) -> bool:
        return self._reader.at_eof() or self._reader.exception() is not None or self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()

    async def end(self) -> None:
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):  # TLS sends a closing message that not every peer answers
                await self._writer.wait_closed()
