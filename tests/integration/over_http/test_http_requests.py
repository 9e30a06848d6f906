"""The server as any program meets it: plain requests, good and bad."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from casque.errors import CasqueError, InvalidInputError, NoLeaderError, NotAuthenticatedError, QueueLedError
from casque.service import QueueService, Role, Standing
from casque.transport.border import Wrapper, admit
from casque.transport.errors import TABLE, WireError, from_wire, http_status
from casque.transport.http.limits import HttpLimits
from casque.transport.http.server import HttpServer
from casque.transport.measured import Numbers
from casque.types import JobSpec
from tests.integration.over_http.hosts import Leading, Refusing, ask, embedded, serving
from tests.unit.test_errors import EXAMPLES

NESTED = b"[" * 100_000 + b"]" * 100_000
DEEP = b'{"entrypoint":"a","payload_json":' + NESTED + b"}"
DEEP_RESULT = b'{"result_json":' + NESTED + b"}"
DEEP_SCHEDULE = b'{"name":"a","cron":"@daily","entrypoint":"a","payload_json":' + NESTED + b"}"


@pytest.fixture
async def queue() -> AsyncIterator[QueueService]:
    async with embedded() as service:
        yield service


@pytest.fixture
async def server(queue: QueueService) -> AsyncIterator[HttpServer]:
    async with serving(Leading(queue)) as server:
        yield server


async def test_a_job_goes_in_and_comes_out(server: HttpServer) -> None:
    added = await ask(server, "POST", "/v1/jobs", {"entrypoint": "send", "payload_text": "hällo"})
    claimed = await ask(server, "POST", "/v1/jobs/claim", {"entrypoints": ["send"], "wait": 5, "worker": "w1"})
    [job] = claimed.json["jobs"]
    done = await ask(server, "POST", f"/v1/jobs/{job['id']}/ack", {"token": job["token"]})

    assert added.status == claimed.status == 200
    assert base64.b64decode(job["payload"]).decode() == "hällo"
    assert (job["state"], job["worker"], job["attempts"], job["max_attempts"]) == ("running", "w1", 1, 25)
    assert (done.status, done.body) == (204, b"")
    assert (await ask(server, "GET", "/v1/stats")).json["totals"]["done"] == 1


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({}, b""),
        ({"payload": "/wA="}, b"\xff\x00"),
        ({"payload_text": "ä"}, "ä".encode()),
        ({"payload_json": {"a": [1.0, None, 10**30]}}, b'{"a":[1.0,null,' + b"1" + b"0" * 30 + b"]}"),
        ({"payload_json": None}, b"null"),
    ],
)
async def test_a_payload_is_given_in_one_of_three_ways(
    server: HttpServer, queue: QueueService, given: dict[str, Any], stored: bytes
) -> None:
    reply = await ask(server, "POST", "/v1/jobs", {"entrypoint": "send", "id": "a", **given})

    assert reply.status == 200
    job = await queue.find("a")
    assert job is not None
    assert job.spec.payload == stored


async def test_a_payload_that_was_given_as_json_is_answered_as_json(server: HttpServer) -> None:
    sent = {"to": "ada", "copies": [1, None]}
    added = await ask(server, "POST", "/v1/jobs", {"entrypoint": "send", "payload_json": sent})
    claimed = await ask(server, "POST", "/v1/jobs/claim", {})
    shown = await ask(server, "GET", f"/v1/jobs/{claimed.json['jobs'][0]['id']}")

    for job in (added.json["jobs"][0], claimed.json["jobs"][0], shown.json):
        assert job["payload_json"] == sent
        assert json.loads(base64.b64decode(job["payload"])) == sent
        assert job["headers"] == {"content-type": "application/json"}


@pytest.mark.parametrize(
    "given",
    [
        {"payload_text": '{"to": "ada"}'},
        {"payload_text": "{broken", "headers": {"content-type": "application/json"}},
        {"payload_json": 7, "headers": {"Content-Type": "text/plain"}},
    ],
)
async def test_a_payload_that_was_not_given_as_json_is_answered_as_bytes(
    server: HttpServer, given: dict[str, Any]
) -> None:
    added = await ask(server, "POST", "/v1/jobs", {"entrypoint": "send", **given})

    [job] = added.json["jobs"]
    assert "payload_json" not in job
    assert job.get("headers") == given.get("headers")


async def test_several_jobs_are_added_all_or_none(server: HttpServer, queue: QueueService) -> None:
    good = await ask(server, "POST", "/v1/jobs", [{"entrypoint": "a"}, {"entrypoint": "b", "delay": 60}])
    bad = await ask(server, "POST", "/v1/jobs", [{"entrypoint": "a"}, {"entrypoint": "a", "delay": 1, "run_at": NOON}])

    assert [job["state"] for job in good.json["jobs"]] == ["ready", "delayed"]
    assert (bad.status, bad.json["error"]) == (400, "InvalidInputError")
    assert (await queue.stats()).totals.enqueued == 2


NOON = "2026-02-15T12:00:00Z"


async def test_what_is_left_out_is_filled_in_from_the_brokers_settings(server: HttpServer) -> None:
    await ask(server, "POST", "/v1/jobs", [{"entrypoint": "a"}, {"entrypoint": "b", "max_attempts": None}])
    claimed = await ask(server, "POST", "/v1/jobs/claim", {"limit": 2})
    first, second = claimed.json["jobs"]

    failed = await ask(server, "POST", f"/v1/jobs/{first['id']}/nack", {"token": first["token"], "error": "no"})

    assert (first["max_attempts"], second.get("max_attempts")) == (25, None)
    assert failed.json["job"]["state"] == "delayed"  # the back-off
    assert failed.json["job"]["error"] == "no"


async def test_bodies_may_be_left_out_where_nothing_has_to_be_said(server: HttpServer) -> None:
    await ask(server, "POST", "/v1/jobs", {"entrypoint": "a", "id": "a"})

    says = {"Content-Type": "application/json"}
    assert (await ask(server, "POST", "/v1/jobs/claim", headers=says)).json["jobs"][0]["id"] == "a"
    assert (await ask(server, "POST", "/v1/jobs/a/heartbeat", headers=says)).json["id"] == "a"
    assert (await ask(server, "POST", "/v1/jobs/a/ack", headers=says)).status == 204
    assert (await ask(server, "POST", "/v1/purge", headers=says)).json == {"purged": 0}


async def test_a_listing_goes_page_by_page(server: HttpServer) -> None:
    await ask(server, "POST", "/v1/jobs", [{"entrypoint": "a", "id": f"{number}"} for number in range(5)])

    first = await ask(server, "GET", "/v1/jobs?limit=3&state=ready&state=running")
    second = await ask(server, "GET", f"/v1/jobs?limit=3&after={first.json['next']}")

    assert [job["id"] for job in first.json["jobs"]] == ["0", "1", "2"]
    assert [job["id"] for job in second.json["jobs"]] == ["3", "4"]
    assert second.json["next"] is None


async def test_an_idempotency_key_makes_a_request_safe_to_repeat(server: HttpServer, queue: QueueService) -> None:
    key = {"Idempotency-Key": "order%207"}
    first = await ask(server, "POST", "/v1/jobs", {"entrypoint": "send"}, key)
    again = await ask(server, "POST", "/v1/jobs", {"entrypoint": "send"}, key)

    assert first.json["jobs"][0]["id"] == again.json["jobs"][0]["id"]
    assert (await queue.stats()).totals.enqueued == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "said"),
    [
        ("POST", "/v1/jobs", b"{", {"Content-Type": "application/json"}, 400, "truncated"),
        ("POST", "/v1/jobs", b'"\xff"', {"Content-Type": "application/json"}, 400, "body"),
        ("POST", "/v1/jobs", {"entrypoint": 7}, {}, 400, "entrypoint"),
        ("POST", "/v1/jobs", {"entrypoint": "a", "prioritty": 1}, {}, 400, "prioritty"),
        ("POST", "/v1/jobs", {"entrypoint": ""}, {}, 400, "entrypoint"),
        ("POST", "/v1/jobs", {"entrypoint": "a\n"}, {}, 400, "printable"),
        ("POST", "/v1/jobs", {"payload": ""}, {}, 400, "entrypoint"),
        ("POST", "/v1/jobs", {"entrypoint": "a", "payload": "%"}, {}, 400, "payload"),
        ("POST", "/v1/jobs", {"entrypoint": "a", "payload": "", "payload_text": ""}, {}, 400, "payload_text"),
        ("POST", "/v1/jobs", {"entrypoint": "a", "run_at": "2026-02-15T12:00:00"}, {}, 400, "run_at"),
        ("POST", "/v1/jobs", {"entrypoint": "a", "headers": {str(n): "" for n in range(65)}}, {}, 400, "headers"),
        ("POST", "/v1/jobs", b"entrypoint=a", {"Content-Type": "text/plain"}, 415, "Content-Type"),
        ("POST", "/v1/jobs", b"{}", {}, 415, "Content-Type"),
        ("POST", "/v1/jobs", {"entrypoint": "a"}, {"Idempotency-Key": "\xe9"}, 400, "Idempotency-Key"),
        ("POST", "/v1/jobs", {"entrypoint": "a"}, {"Idempotency-Key": "k" * 257}, 400, "Idempotency-Key"),
        ("POST", "/v1/jobs/claim", {"limit": 0}, {}, 400, "limit"),
        ("POST", "/v1/jobs/claim", {"limit": "1"}, {}, 400, "limit"),
        ("POST", "/v1/jobs/claim", {"wait": -1}, {}, 400, "wait"),
        ("POST", "/v1/jobs/claim", {"entrypoints": []}, {}, 400, "entrypoints"),
        ("POST", "/v1/jobs/a/give-back", {}, {}, 400, "token"),
        ("POST", "/v1/jobs/%ff/ack", {}, {}, 400, "job id"),
        ("GET", "/v1/jobs?limit=1001", None, {}, 400, "limit"),
        ("GET", "/v1/jobs?limit=1&limit=2", None, {}, 400, "twice"),
        ("GET", "/v1/jobs?state=sleepy", None, {}, 400, "state"),
        ("GET", "/v1/jobs?sate=ready", None, {}, 400, "sate"),
        ("GET", "/v1/stats?verbose=1", None, {}, 400, "verbose"),
        ("GET", "/v1/archive?since=yesterday", None, {}, 400, "since"),
        ("GET", "/v1/archive?since=0001-01-01T00:00:00%2B14:00", None, {}, 400, "since"),
        ("GET", "/v1/archive?until=9999-12-31T23:59:59-14:00", None, {}, 400, "until"),
        ("POST", "/v1/jobs", {"entrypoint": "a", "run_at": "9999-12-31T23:59:59-14:00"}, {}, 400, "run_at"),
        ("POST", "/v1/jobs", DEEP, {"Content-Type": "application/json"}, 400, "deep"),
        ("POST", "/v1/jobs/a/ack", DEEP_RESULT, {"Content-Type": "application/json"}, 400, "deep"),
        ("POST", "/v1/schedules", DEEP_SCHEDULE, {"Content-Type": "application/json"}, 400, "deep"),
        ("GET", "/v1/jobs?entrypoint=%ff", None, {}, 400, "UTF-8"),
        ("GET", "/v1/jobs?entrypoint=%00", None, {}, 400, "entrypoint"),
        ("GET", "/v1/jobs?%ff=1", None, {}, 400, "UTF-8"),
        ("GET", "/v1/events", None, {"Last-Event-ID": "seven"}, 400, "Last-Event-ID"),
        ("GET", "/v1/nothing", None, {}, 404, "openapi.json"),
        ("GET", "/v1/jobs/", None, {}, 404, "openapi.json"),
        ("PUT", "/v1/jobs", None, {}, 405, "openapi.json"),
        ("GET", "/v1/jobs/nobody", None, {}, 404, "nobody"),
        ("POST", "/v1/jobs/nobody/ack", {}, {}, 404, "nobody"),
    ],
)
async def test_a_bad_request_is_refused_with_a_reason_and_changes_nothing(
    server: HttpServer,
    queue: QueueService,
    method: str,
    path: str,
    body: Any,
    headers: dict[str, str],
    status: int,
    said: str,
) -> None:
    reply = await ask(server, method, path, body, headers)

    assert reply.status == status
    assert reply.headers["Content-Type"] == "application/json"
    assert said in reply.json["message"]
    assert isinstance(from_wire(WireError(**reply.json)), CasqueError)
    assert (await queue.stats()).position == 0


def every_error() -> list[CasqueError]:
    return [next((one for one in EXAMPLES if type(one) is kind), None) or kind("so it is") for kind in TABLE]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
async def test_every_error_has_its_status_and_arrives_as_it_was(error: CasqueError) -> None:
    async with serving(Refusing(error)) as server:
        reply = await ask(server, "GET", "/v1/stats")

    assert reply.status == http_status(error)
    arrived = from_wire(WireError(**reply.json))
    assert type(arrived) is type(error)
    assert arrived.args == error.args
    assert ("Retry-After" in reply.headers) == (reply.status in (429, 503))
    assert ("WWW-Authenticate" in reply.headers) == (reply.status == 401)


async def test_a_broker_that_does_not_lead_says_who_does() -> None:
    async with serving(Refusing(QueueLedError("10.0.0.7:7700"))) as server:
        reply = await ask(server, "GET", "/v1/jobs/a%2Fb")
    assert (reply.status, reply.json["arguments"]) == (421, ["10.0.0.7:7700"])
    assert "Location" not in reply.headers  # that is the address of a gRPC port

    async with serving(Refusing(QueueLedError("https://broker-2:7701/"))) as server:
        reply = await ask(server, "GET", "/v1/jobs/a%2Fb")
    assert reply.headers["Location"] == "https://broker-2:7701/v1/jobs/a%2Fb"


async def test_an_error_that_nobody_foresaw_is_an_unknown_outcome(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Leading):
        def service(self) -> QueueService:
            raise ZeroDivisionError("oops")

    async with serving(Broken(None)) as server:  # type: ignore[arg-type]
        reply = await ask(server, "GET", "/v1/stats")

    assert (reply.status, reply.json["error"]) == (500, "UnknownOutcomeError")
    assert "oops" not in reply.body.decode()
    assert "oops" in caplog.text


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_refused(queue: QueueService, chunked: bool) -> None:
    async with serving(Leading(queue), limits=HttpLimits(body_bytes=1000)) as server:
        job = json.dumps({"entrypoint": "a", "payload_text": "x" * 1500}).encode()
        headers = {"Content-Type": "application/json"}
        if chunked:
            headers["Transfer-Encoding"] = "chunked"
            job = b"%x\r\n%s\r\n0\r\n\r\n" % (len(job), job)
        reply = await ask(server, "POST", "/v1/jobs", job, headers)

        assert (reply.status, reply.json["error"]) == (413, "InvalidInputError")
        assert (await ask(server, "POST", "/v1/jobs", {"entrypoint": "a"})).status == 200
    assert (await queue.stats()).totals.enqueued == 1


async def test_a_body_that_is_announced_as_too_large_is_not_even_sent(queue: QueueService) -> None:
    async with serving(Leading(queue), limits=HttpLimits(body_bytes=1000)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n"
            b"Content-Type: application/json\r\n\r\n"
        )
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()

    assert line.startswith(b"HTTP/1.1 413 ")


async def test_a_client_that_hangs_up_does_not_keep_the_job(server: HttpServer, queue: QueueService) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = b'{"wait": 600}'
    writer.write(
        b"POST /v1/jobs/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    waiting = Numbers(server.metrics).waiting
    while not waiting.value:
        await queue.stats()
    writer.close()
    await writer.wait_closed()
    while waiting.value:
        await queue.stats()

    await queue.enqueue([JobSpec("a", "send", b"")])

    [job] = await queue.dequeue(entrypoints=None, limit=1)
    assert (job.id, job.attempts) == ("a", 1)
    assert Numbers(server.metrics).calls.of("dequeue", "cancelled").value == 1


async def test_without_the_token_nothing_of_the_queue_is_told(queue: QueueService) -> None:
    def only_with_the_token(authorization: str | None) -> Wrapper:
        if authorization != "Bearer right":
            raise NotAuthenticatedError("no")
        return admit(None)(None)

    right = {"Authorization": "Bearer right"}
    async with serving(Leading(queue), admit=only_with_the_token) as server:
        for path in ("/v1/stats", "/v1/jobs", "/v1/jobs/a", "/v1/events", "/v1/archive"):
            assert (await ask(server, "GET", path)).status == 401
        assert (await ask(server, "POST", "/v1/jobs", b"{")).status == 401  # not even whether the body is good
        assert (await ask(server, "GET", "/v1/stats", headers=right)).status == 200
        for path in ("/", "/healthz", "/readyz", "/metrics", "/openapi.json"):
            assert (await ask(server, "GET", path)).status == 200
        assert (await ask(server, "GET", "/openapi.json")).json["security"] == [{"bearer": []}]

    async with serving(Leading(queue), admit=only_with_the_token, guarded=True) as server:
        for path in ("/readyz", "/metrics"):
            assert (await ask(server, "GET", path)).status == 401
            assert (await ask(server, "GET", path, headers=right)).status == 200
        assert (await ask(server, "GET", "/healthz")).status == 200


async def test_a_port_that_is_taken_is_named(server: HttpServer, queue: QueueService) -> None:
    listen = f"127.0.0.1:{server.port}"
    with pytest.raises(InvalidInputError, match=listen):
        await HttpServer(Leading(queue), listen=listen).start()


@pytest.mark.parametrize("listen", ["", "localhost", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"])
async def test_an_address_that_is_none_is_refused(listen: str, queue: QueueService) -> None:
    with pytest.raises(InvalidInputError, match="listen"):
        await HttpServer(Leading(queue), listen=listen).start()


async def test_a_server_that_never_started_can_be_stopped(queue: QueueService) -> None:
    await HttpServer(Leading(queue), listen="127.0.0.1:0").stop()


async def test_the_page_for_people_points_to_the_description(server: HttpServer) -> None:
    page = await ask(server, "GET", "/")

    assert page.headers["Content-Type"].startswith("text/html")
    assert b'href="openapi.json"' in page.body
    assert b"/v1/jobs/claim" in page.body


async def test_a_load_balancer_may_ask_with_head(server: HttpServer) -> None:
    assert (await ask(server, "HEAD", "/healthz")).status == 200


async def test_a_standby_is_ready_once_it_knows_the_leader() -> None:
    def broker(standing: Standing) -> Refusing:
        return Refusing(NoLeaderError(), standing)

    known = Standing(Role.STANDBY, epoch=3, leader="10.0.0.7:7700", position=12)
    async with serving(broker(known)) as server:
        reply = await ask(server, "GET", "/readyz")
    assert reply.status == 200
    assert reply.json == {
        "role": "standby",
        "epoch": 3,
        "leader": "10.0.0.7:7700",
        "position": 12,
        "problem": None,
    }
    for standing in (
        Standing(Role.STANDBY),
        Standing(Role.STARTING, leader="a:1"),
        Standing(Role.STOPPING, leader="a:1"),
        Standing(Role.LEADER, problem="the storage does not answer"),
    ):
        async with serving(broker(standing)) as server:
            reply = await ask(server, "GET", "/readyz")
            assert (await ask(server, "GET", "/healthz")).status == 200
        assert reply.status == 503
        assert reply.json["problem"] == standing.problem


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"not both"),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}", b"not both"),
        (b"content-length : 2\r\nTRANSFER-ENCODING:chunked\r\n\r\n{}", b"not both"),
        (b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", b"twice"),
        (b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", b"twice"),
        (b"Content-Length: 2, 2\r\n\r\n{}", b"twice"),
        (b"Content-Length: -2\r\n\r\n{}", b"not an HTTP/1.1 request"),
        (b"Content-Length: +2\r\n\r\n{}", b"not an HTTP/1.1 request"),
        (b"Content-Length: 0x2\r\n\r\n{}", b"not an HTTP/1.1 request"),
        (b"Content-Length: " + b"9" * 30 + b"\r\n\r\n{}", b"not an HTTP/1.1 request"),
        (b"Content-Length:\r\n\r\n{}", b"not an HTTP/1.1 request"),
        (b"Transfer-Encoding: gzip\r\n\r\n{}", b"not an HTTP/1.1 request"),
        (b"Transfer-Encoding: chunked, identity\r\n\r\n{}", b"not an HTTP/1.1 request"),
        (b"Transfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\n0\r\n\r\n", b"not an HTTP/1.1 request"),
        (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", b"not an HTTP/1.1 request"),
        (b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n{}\r\n", b"not an HTTP/1.1 request"),
        (b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n", b"not an HTTP/1.1 request"),
        (b"X-Folded: a\r\n b\r\nContent-Length: 2\r\n\r\n{}", b"one line"),
        (b"Content-Length: 2\r\n Transfer-Encoding: chunked\r\n\r\n{}", b"one line"),
        (b"X-Nul: a\x00b\r\nContent-Length: 2\r\n\r\n{}", b"not an HTTP/1.1 request"),
        (b"X-Return: a\rb\r\nContent-Length: 2\r\n\r\n{}", b"not an HTTP/1.1 request"),
        (b"Host: localhost\r\nContent-Length: 2\r\n\r\n{}", b"not an HTTP/1.1 request"),
    ],
)
async def test_a_request_that_two_readers_could_read_differently_is_refused(
    server: HttpServer, queue: QueueService, caplog: pytest.LogCaptureFixture, head: bytes, said: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    begin = b"POST /v1/purge HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    # What a smuggler hides behind it is never served.
    writer.write(begin + head + b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = await reader.read()
    writer.close()

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert said in answer
    assert len(re.findall(rb"HTTP/1.1 \d", answer)) == 1
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
    assert (await queue.stats()).position == 0
