"""Turn results and errors into HTTP responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from casque.errors import (
    CasqueError,
    LeadershipLostError,
    NotAuthenticatedError,
    QueueLedError,
    UnknownOutcomeError,
)
from casque.transport.errors import http_status, to_wire
from casque.transport.http.reading import GoneError
from casque.transport.http.route import JSON
from casque.transport.http.simple_verbs import DONE

T = TypeVar("T")

RETRY_AFTER_S = 1
_encoder = msgspec.json.Encoder()


def answer(message: Any) -> Response:
    """204 only for a verb that returns `Done`: a missing message is a bug, not an answer."""
    assert message is not None, "a verb without an answer"
    return Response(status_code=204) if message is DONE else Response(_encoder.encode(message), media_type=JSON)


class ClaimResponse(Response):
    """A response whose loss matters: `unheard` is called if the client is no longer connected."""

    def __init__(self, message: Any, is_gone: Callable[[], bool], unheard: Callable[[], Awaitable[None]]) -> None:
        super().__init__(_encoder.encode(message), media_type=JSON)
        self._is_gone = is_gone
        self._unheard = unheard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = self._is_gone()
        await super().__call__(scope, receive, send)  # writes before any other task runs
        if gone:
            await self._unheard()


class Streamed(StreamingResponse):
    """A long response that counts against a budget: `ended` is called when it ends, for whatever reason."""

    def __init__(
        self, pieces: AsyncIterator[bytes], media: str, headers: dict[str, str], *, ended: Callable[[], None]
    ) -> None:
        super().__init__(pieces, media_type=media, headers=headers)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def refusal(
    error: CasqueError, *, path: str, status: int | None = None, headers: dict[str, str] | None = None
) -> Response:
    status = status or http_status(error)
    all_headers = dict(headers or {})
    if isinstance(error, NotAuthenticatedError):
        all_headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        all_headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, QueueLedError | LeadershipLostError) and (there := _elsewhere(error.address, path)):
        all_headers["Location"] = there
    return Response(_encoder.encode(to_wire(error)), status, all_headers, media_type=JSON)


def _elsewhere(address: str | None, path: str) -> str | None:
    """The same URL at the leader, if it advertises an HTTP address. Most advertise their gRPC port."""
    if address is None or not address.startswith(("http://", "https://")) or not address.isascii():
        return None
    return address.rstrip("/") + path


async def unless_gone(request: Request, call: Coroutine[Any, Any, T]) -> T:
    """The result of a call, which is cancelled if the client disconnects first.

    Raises:
        GoneError: the client disconnected.
        UnknownOutcomeError: the call was cancelled for another reason.
    """
    calling = asyncio.create_task(call)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({calling, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not calling.done():
            raise GoneError
        if calling.cancelled():
            raise UnknownOutcomeError("the call was cut off before its answer was known; it may have been carried out")
        return calling.result()
    finally:
        gone.cancel()
        calling.cancel()
        await asyncio.gather(calling, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
