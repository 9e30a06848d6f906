"""The edge to the network: a socket that listens, and uvicorn made to live in somebody else's process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from casque.errors import InvalidInputError

BACKLOG = 2048


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
    # The protocol has to be said: asyncio switches Nagle's delay off only for sockets that say TCP.
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
    """Uvicorn's connection, known to the requests that came by it: they can see, at the very moment of an answer,
    whether there is still somebody to hear it. ASGI tells of that only some time later."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app_state = {**self.app_state, "connection": self}

    def is_gone(self) -> bool:
        return self.transport.is_closing()


class QuietServer(uvicorn.Server):
    """Uvicorn without its signal handlers, and without waking up ten times a second to see whether it should stop."""

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
