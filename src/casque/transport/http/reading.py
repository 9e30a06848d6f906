"""Turn an HTTP request into a `Call`: check the token, then the service, then the body, each with its own refusal."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect, Request

from casque import checks
from casque.errors import CasqueError, InvalidInputError
from casque.transport.http import bulk
from casque.transport.http.budget import Budget
from casque.transport.http.limits import HttpLimits
from casque.transport.http.route import JSON, Route

SMALL = 64 * 1024
"""Bodies up to this size are in memory before they can be checked."""


class RefusedError(Exception):
    """A refusal with its own HTTP status."""

    def __init__(self, status: int, error: CasqueError, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, error)
        self.status = status
        self.error = error
        self.headers = headers or {}


class GoneError(Exception):
    """The client disconnected; no answer is needed."""


async def read_body(request: Request, route: Route, limits: HttpLimits, room: Room) -> Any:
    if route.decoder is None:
        return None
    if (kind := _media_type(request)) != JSON:
        # Required for an empty body, too: browsers send this type to another site only after a preflight, and other
        # types without one.
        raise RefusedError(
            415,
            InvalidInputError(
                f"send JSON, with the header Content-Type: application/json, not {kind or 'none'}; curl --json '{{}}' "
                "sends an empty object with it"
            ),
        )
    raw = await _read(request, min(limits.body_bytes, route.body_max or limits.body_bytes), limits, room)
    if not raw and route.body_optional:
        raw = b"{}"
    try:
        return await _decoded_body(route, raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"the body does not fit: {error}") from error
    except RecursionError as error:
        raise InvalidInputError("the body does not fit: it is nested too deeply") from error


async def _decoded_body(route: Route, raw: bytes) -> Any:
    assert route.decoder is not None
    if len(raw) > bulk.LARGE and route.verb == "enqueue":
        return await bulk.decode_jobs(raw)
    if len(raw) > bulk.LARGE and route.verb == "settle":
        return await bulk.decode_outcomes(raw)
    return route.decoder.decode(raw)


class Room:
    """The part of a server's body budget that one request holds until it is answered."""

    def __init__(self, budget: Budget, peer: str) -> None:
        self._budget = budget
        self._peer = peer
        self._taken = 0

    async def take(self, size: int, *, patience_s: float) -> None:
        """Raises LimitReachedError if there is no room in time."""
        await self._budget.take(self._peer, size, patience_s=patience_s)
        self._taken += size

    def give_back(self) -> None:
        if self._taken:
            self._budget.give_back(self._peer, self._taken)
            self._taken = 0


async def _read(request: Request, most: int, limits: HttpLimits, room: Room) -> bytes:
    """Read the body within the limit. A longer one is read on, up to a point, and discarded: a client that is still
    sending when the connection closes would never see why. A client that sent `Expect` is refused at once.

    Raises:
        LimitReachedError: other bodies hold the whole budget, and did not release it in time.
    """
    text = request.headers.get("content-length", "")
    declared = int(text) if text.isascii() and text.isdecimal() else None
    too_large = declared is not None and declared > most
    if too_large and "expect" in request.headers:
        raise _too_large(most)
    if declared is not None and SMALL < declared <= most:
        await room.take(declared, patience_s=limits.body_s)
    pieces: list[bytes] = []
    size = 0
    now = asyncio.get_running_loop().time
    begun = now()
    try:
        async with asyncio.timeout(limits.body_s) as limit:
            async for piece in request.stream():
                size += len(piece)
                too_large = too_large or size > most
                if too_large:
                    pieces.clear()
                else:
                    if declared is None:
                        # Stop the clock: the lack of room is not the sender's fault.
                        limit.reschedule(None)
                        waits = now()
                        await room.take(len(piece), patience_s=limits.body_s)
                        begun += now() - waits
                    pieces.append(piece)
                if size > 2 * most:
                    break
                limit.reschedule(begun + limits.body_s + size / limits.rate_min)
    except ClientDisconnect as error:
        raise GoneError from error
    except TimeoutError as error:
        raise RefusedError(
            408,
            InvalidInputError(f"the body did not come in time: {size} bytes in {limits.body_s:g} s; send it faster"),
            {"Connection": "close"},
        ) from error
    if too_large:
        raise _too_large(most)
    return b"".join(pieces)


def _too_large(limit: int) -> RefusedError:
    return RefusedError(
        413,
        InvalidInputError(f"the body is larger than the {limit} bytes that are read; send fewer jobs at a time"),
        # The rest of the body is on its way, so the connection cannot be reused.
        {"Connection": "close"},
    )


def read_query(request: Request, route: Route) -> Any:
    try:
        unquote_to_bytes(request.scope["query_string"]).decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError("the query must be percent-encoded UTF-8") from error
    values: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in route.query_lists:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidInputError(f"{name} is given twice in the query")
        else:
            values[name] = value
    if route.query is None:
        if values:
            raise InvalidInputError(f"this takes no query, but there is {', '.join(values)}")
        return None
    try:
        return msgspec.convert(values, route.query, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"the query does not fit: {error}") from error


def read_job_id(request: Request) -> str:
    """Decode the job id. Routes match the raw path, so that an id may contain any character, even a slash."""
    try:
        return unquote(request.path_params.get("id", ""), errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidInputError("the job id in the path must be percent-encoded UTF-8") from error


def read_request_id(request: Request) -> str | None:
    values = request.headers.getlist("idempotency-key")
    if len(values) > 1:
        raise InvalidInputError("Idempotency-Key is given twice")
    return checks.name("Idempotency-Key", _decoded(values[0]), checks.NAME_MAX) if values else None


def _decoded(value: str) -> str:
    """Headers are ASCII; other characters are percent-encoded, as in a path."""
    try:
        if value.isascii():
            return unquote(value, errors="strict")
    except UnicodeDecodeError:
        pass
    raise InvalidInputError("Idempotency-Key must be ASCII; write other characters as percent-encoded UTF-8")


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
