"""The endpoint of processes that serve nothing else: a few paths, and nothing that a stranger could wear out."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import pytest

from casque.errors import InvalidInputError
from casque.telemetry import endpoint as module
from casque.telemetry.endpoint import Endpoint, Reply


async def alive() -> Reply:
    return Reply("ok\n")


async def broken() -> Reply:
    raise ZeroDivisionError


PATHS = {"/healthz": alive, "/broken": broken}


async def sent(endpoint: Endpoint, request: bytes) -> tuple[int, str]:
    """The status and the body of the answer; (0, "") if there was none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    writer.write(request)
    try:
        answer = (await reader.read()).decode()
    except ConnectionResetError:
        answer = ""  # closed before it was read
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return (int(head.split(" ")[1]), body) if head else (0, "")


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 200, "ok\n"),
        (b"GET /healthz?verbose=1 HTTP/1.0\r\n\r\n", 200, "ok\n"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", 200, ""),
        (b"POST /healthz HTTP/1.1\r\n\r\n", 405, "GET or HEAD\n"),
        (b"GET /else HTTP/1.1\r\n\r\n", 404, "there is /healthz, /broken\n"),
        (b"nonsense\r\n\r\n", 400, "this is HTTP/1.1\n"),
        (b"GET /healthz HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\n\r\n", 403, "not for web pages\n"),
        (b"GET /healthz HTTP/1.1\r\nSec-Fetch-Site: same-origin\r\n\r\n", 403, "not for web pages\n"),
        (b"GET /healthz HTTP/1.1\r\nSec-Fetch-Site: none\r\n\r\n", 200, "ok\n"),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500, "failed; the log says how\n"),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 9_000 + b"\r\n\r\n", 431, "the request is too long\n"),
    ],
)
async def test_a_request_gets_the_answer_that_it_deserves(request_: bytes, status: int, body: str) -> None:
    async with Endpoint("127.0.0.1", 0, PATHS) as endpoint:
        assert await sent(endpoint, request_) == (status, body)
        assert await sent(endpoint, b"GET /healthz HTTP/1.1\r\n\r\n") == (200, "ok\n")


async def test_a_client_that_sends_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_S", 0.01)
    async with Endpoint("127.0.0.1", 0, PATHS) as endpoint:
        assert await sent(endpoint, b"GET /hea") == (0, "")


async def test_too_many_connections_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 1)
    began = asyncio.Event()

    async def waits() -> Reply:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with Endpoint("127.0.0.1", 0, {"/waits": waits, **PATHS}) as endpoint:
        waiting = asyncio.create_task(sent(endpoint, b"GET /waits HTTP/1.1\r\n\r\n"))
        await began.wait()
        assert await sent(endpoint, b"GET /healthz HTTP/1.1\r\n\r\n") == (0, "")
    assert await waiting == (0, ""), "closing it ends what is under way"


async def test_an_address_that_is_taken_is_refused() -> None:
    async with Endpoint("127.0.0.1", 0, PATHS) as first:
        with pytest.raises(InvalidInputError, match=f"cannot listen on 127.0.0.1:{first.port}: .*in use"):
            await Endpoint("127.0.0.1", first.port, PATHS).__aenter__()


def test_a_reply_is_text_unless_it_says_otherwise() -> None:
    assert Reply("ok") == ("ok", HTTPStatus.OK, "text/plain; charset=utf-8")
