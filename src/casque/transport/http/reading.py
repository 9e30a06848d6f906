"""From an HTTP request to a `Call`: the token first, then the service, then the body, each refused in its own way."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.requests import ClientDisconnect, Request

from casque import checks
from casque.errors import CasqueError, InvalidInputError
from casque.transport.http.routes import Route


class RefusedError(Exception):
    """A refusal that HTTP has a status of its own for."""

    def __init__(self, status: int, error: CasqueError, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, error)
        self.status = status
        self.error = error
        self.headers = headers or {}


class GoneError(Exception):
    """The client has left; nobody waits for an answer."""


async def read_body(request: Request, route: Route, limit: int) -> Any:
    if route.decoder is None:
        return None
    if (kind := _media_type(request)) != "application/json":
        # Also of an empty body: browsers send this type to another site only after asking, and any other unasked.
        raise RefusedError(
            415,
            InvalidInputError(
                f"send JSON, with the header Content-Type: application/json, not {kind or 'none'}; curl --json '{{}}' "
                "sends an empty object with it"
            ),
        )
    raw = await _read(request, limit)
    if not raw and route.body_optional:
        raw = b"{}"
    try:
        return route.decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"the body does not fit: {error}") from error


async def _read(request: Request, limit: int) -> bytes:
    """The body, as long as it is not too large. More is read on, up to a point, and thrown away: a client that is
    still sending when the connection closes would never see why. One that asked first is told at once."""
    declared = request.headers.get("content-length", "")
    too_large = declared.isascii() and declared.isdecimal() and int(declared) > limit
    if too_large and "expect" in request.headers:
        raise _too_large(limit)
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > limit:
                too_large = True
            if too_large:
                pieces.clear()
            else:
                pieces.append(piece)
            if size > 2 * limit:
                break
    except ClientDisconnect as error:
        raise GoneError from error
    if too_large:
        raise _too_large(limit)
    return b"".join(pieces)


def _too_large(limit: int) -> RefusedError:
    return RefusedError(
        413,
        InvalidInputError(f"the body is larger than the {limit} bytes that are read; send fewer jobs at a time"),
        # The rest of it is on its way: this connection is of no use any more.
        {"Connection": "close"},
    )


def read_query(request: Request, route: Route) -> Any:
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
    """Routes are matched on the path as it was sent, so that an id may have any character, a slash too."""
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
    """Headers are ASCII; anything else is percent-encoded in them, as in a path."""
    try:
        if value.isascii():
            return unquote(value, errors="strict")
    except UnicodeDecodeError:
        pass
    raise InvalidInputError("Idempotency-Key must be ASCII; write other characters as percent-encoded UTF-8")


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
