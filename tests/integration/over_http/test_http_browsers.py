"""What a web page makes a browser send is refused, whatever it asks for; programs, and pages that may, are served."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from casque.errors import InvalidInputError
from casque.service import QueueService
from casque.transport.http.browsers import BrowserRules
from casque.transport.http.routes import ROUTES
from casque.transport.http.server import HttpServer
from casque.types import JobSpec
from tests.integration.over_http.hosts import Leading, ask, embedded, serving

JSON = {"Content-Type": "application/json"}
CHANGES = [route for route in ROUTES if route.method == "POST"]
PATHS = ["/", "/readyz", "/metrics", "/openapi.json", "/v1/stats", "/v1/nothing"]


@pytest.fixture
async def queue() -> AsyncIterator[QueueService]:
    async with embedded() as service:
        await service.enqueue([JobSpec("a", "send", b"")])
        yield service


@pytest.fixture
async def server(queue: QueueService) -> AsyncIterator[HttpServer]:
    async with serving(
        Leading(queue), hosts=["Broker-1", "queue.internal."], origins=["https://Admin.example.com:443"]
    ) as server:
        yield server


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:7701"},
        {"Host": "127.0.0.1.evil.example:7701"},
        {"Host": "localhost.evil.example"},
        {"Host": "127.1"},
        {"Host": "broker-1@evil.example"},
        {"Host": "broker-1 evil.example"},
        {"Host": "[::1"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Origin": "http://admin.example.com"},
        {"Origin": "https://admin.example.com.evil.example"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
async def test_a_request_that_a_web_page_made_is_refused_and_changes_nothing(
    server: HttpServer, queue: QueueService, headers: dict[str, str]
) -> None:
    before = (await queue.stats()).position

    for route in CHANGES:
        reply = await ask(server, "POST", route.path.replace("{id}", "a"), {}, headers)
        assert (reply.status, reply.json["error"]) == (403, "InvalidInputError"), route.path
    for path in PATHS:
        assert (await ask(server, "GET", path, headers=headers)).status == 403

    assert (await queue.stats()).position == before


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_every_change_needs_a_content_type_that_pages_cannot_send_unasked(
    server: HttpServer, queue: QueueService, kind: str | None
) -> None:
    before = (await queue.stats()).position

    for route in CHANGES:
        for body in (b"", b"{}"):
            path = route.path.replace("{id}", "a")
            reply = await ask(server, "POST", path, body, {} if kind is None else {"Content-Type": kind})
            assert reply.status == 415, route.path
            assert "Content-Type: application/json" in reply.json["message"]

    assert (await queue.stats()).position == before


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:1", "localhost", "LOCALHOST:80", "localhost.", "dev.localhost", "[::1]:7701", "10.1.2.3", "broker-1",
     "broker-1:7701", "queue.internal"],
)  # fmt: skip
async def test_a_broker_answers_to_its_names_and_to_addresses(server: HttpServer, host: str) -> None:
    assert (await ask(server, "GET", "/v1/stats", headers={"Host": host})).status == 200


async def test_a_load_balancer_may_ask_for_health_under_any_name(server: HttpServer) -> None:
    assert (await ask(server, "GET", "/healthz", headers={"Host": "evil.example"})).status == 200


async def test_any_name_will_do_if_that_is_asked_for(queue: QueueService) -> None:
    async with serving(Leading(queue), hosts=["*"]) as server:
        assert (await ask(server, "GET", "/v1/stats", headers={"Host": "what.ever"})).status == 200
        assert (await ask(server, "GET", "/v1/stats", headers={"Host": "what ever"})).status == 403


async def test_a_page_of_the_broker_itself_and_a_link_to_it_are_served(server: HttpServer) -> None:
    own = f"127.0.0.1:{server.port}"
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}

    assert (await ask(server, "POST", "/v1/purge", {}, {"Origin": f"http://{own}"})).status == 200
    assert (await ask(server, "GET", "/", headers=followed)).status == 200
    assert (await ask(server, "POST", "/v1/purge", {}, followed)).status == 403
    assert (await ask(server, "GET", "/v1/stats", headers={"Sec-Fetch-Site": "same-origin"})).status == 200


async def test_a_page_that_may_call_is_answered_as_browsers_ask_for_it(server: HttpServer) -> None:
    site = {"Origin": "https://admin.example.com", "Sec-Fetch-Site": "cross-site"}

    asked = await ask(server, "OPTIONS", "/v1/purge", headers=site | {"Access-Control-Request-Method": "POST"})
    done = await ask(server, "POST", "/v1/purge", {}, site)
    refused = await ask(server, "POST", "/v1/purge", b"", site)

    assert asked.status == 204
    assert "content-type" in asked.headers["Access-Control-Allow-Headers"]
    assert (done.status, refused.status) == (200, 415)
    for reply in (asked, done, refused):
        assert reply.headers["Access-Control-Allow-Origin"] == "https://admin.example.com"
        assert reply.headers["Vary"] == "Origin"
    plain = await ask(server, "POST", "/v1/purge", {})
    assert "Access-Control-Allow-Origin" not in plain.headers


@pytest.mark.parametrize("host", ["", "a:1", "http://a", "a b", "-", ".a"])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(InvalidInputError, match="--allow-host"):
        BrowserRules([host], [], tls=False)


@pytest.mark.parametrize("origin", ["", "*", "admin.example.com", "https://a/", "ftp://a", "https://a b", "null"])
def test_an_origin_that_is_none_is_refused(origin: str) -> None:
    with pytest.raises(InvalidInputError, match="--allow-origin"):
        BrowserRules([], [origin], tls=False)


def test_under_tls_the_certificate_decides_about_names_and_the_origin_is_still_checked() -> None:
    rules = BrowserRules([], [], tls=True)
    host, origin = (b"host", b"queue.example.com"), (b"origin", b"https://evil.example")
    asked = {"raw_path": b"/v1/stats", "method": "GET"}

    assert rules.problem_with({**asked, "headers": [host]}) is None
    assert rules.problem_with({**asked, "headers": [host, origin]}) is not None
