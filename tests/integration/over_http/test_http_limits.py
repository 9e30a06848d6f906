"""Hostile and slow callers meet bounds, and hear which one it was; everybody else is served meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from casque.engine.held_commits import HELD_BYTES
from casque.errors import InvalidInputError, LimitReachedError
from casque.service import QueueService
from casque.transport.http import bulk
from casque.transport.http.budget import Budget
from casque.transport.http.limits import HttpLimits
from casque.transport.http.network import TURN_BYTES
from casque.transport.http.server import HttpServer
from casque.types import JobSpec
from tests.integration.over_http.hosts import Leading, ask, embedded, serving

JSON = b"Content-Type: application/json\r\n"
GET = b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" + JSON
SHORT_S = 0.05


@pytest.fixture
async def queue() -> AsyncIterator[QueueService]:
    async with embedded() as service:
        yield service


async def exchange(server: HttpServer, sent: bytes) -> bytes:
    """All that the server says until it hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent)
    said = await reader.read()
    writer.close()
    return said


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", b" 408 "),
        (b"GET /v1/stats HTTP/1.1\r\nHost: loc", b" 408 "),
        (POST + b"Content-Length: 100\r\n\r\n{", b" 408 "),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b" 408 "),
        (GET + b"GET /v1/stats HTTP/1.1\r\n", b" 200 "),
        (b"GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n", b" 404 "),
        (GET, b" 200 "),
    ],
    ids=["silence", "headers", "body", "chunks", "second request", "unread body", "idle"],
)
async def test_a_caller_that_takes_too_long_is_hung_up_on(queue: QueueService, sent: bytes, said: bytes) -> None:
    limits = HttpLimits(header_s=SHORT_S, body_s=SHORT_S, idle_s=SHORT_S, stall_s=SHORT_S, rate_min=10**9)
    async with serving(Leading(queue), limits=limits) as server:
        assert said in (await exchange(server, sent)).partition(b"\r\n")[0]
        assert (await ask(server, "GET", "/healthz")).status == 200
    assert (await queue.stats()).position == 0


async def test_tiny_chunks_are_parsed_in_turns_with_other_connections(
    queue: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of them fit into one read, and each takes as long as a large one."""
    turns: list[int] = []
    parse = H11Protocol.data_received

    def counted(self: H11Protocol, data: bytes) -> None:
        turns.append(len(data))
        parse(self, data)

    monkeypatch.setattr(H11Protocol, "data_received", counted)
    body = b'{"entrypoint": "a", "payload_text": "' + b"x" * 30_000 + b'"}'
    tiny = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    async with serving(Leading(queue)) as server:
        headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        assert (await ask(server, "POST", "/v1/jobs", tiny, headers)).status == 200
        assert max(turns) <= TURN_BYTES
        assert sum(turns) > len(tiny)

        turns.clear()
        many = [{"entrypoint": "a", "payload_text": "y" * 200_000}]
        assert (await ask(server, "POST", "/v1/jobs", many)).status == 200
        assert len(turns) <= 2 * 200_000 / TURN_BYTES  # what needs no parsing is not cut up

        pipelined = (GET * 400)[:-2] + b"Connection: close\r\n\r\n"
        assert (await exchange(server, pipelined)).count(b" 200 OK") == 400
    assert [len(job.spec.payload) for job in await queue.jobs()] == [30_000, 200_000]


async def test_a_reader_of_the_feed_that_does_not_read_hears_why_it_ended(queue: QueueService) -> None:
    for n in range(40):
        await queue.enqueue([JobSpec(f"{n}-{m}", "a", bytes(200_000)) for m in range(5)])
    # The reader has this long, too, for what is left to be read: a busy machine needs some of it.
    async with serving(Leading(queue), limits=HttpLimits(stall_s=10 * SHORT_S, rate_min=10**9)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(b"GET /v1/events?from_position=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        streams = server._streams
        while not streams._taken:
            await asyncio.sleep(0)  # noqa: TID251
        while streams._taken:
            await queue.stats()
        said = await reader.read()
        writer.close()

    last = said.rpartition(b"event: failure\ndata: ")[2].partition(b"\n")[0]
    assert json.loads(last)["error"] == "LimitReachedError"
    assert said.endswith(b"0\r\n\r\n")
    assert len(said) < 40 * 5 * 200_000


async def test_streams_and_connections_are_bounded_by_peer_and_in_all(queue: QueueService) -> None:
    feed = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with serving(Leading(queue), limits=HttpLimits(streams_per_peer=1, connections_per_peer=3)) as server:
        first, keeping = await asyncio.open_connection("127.0.0.1", server.port)
        keeping.write(feed)
        await first.readuntil(b"id: ")
        refused = await ask(server, "GET", "/v1/events")
        assert (refused.status, refused.json["error"]) == (429, "LimitReachedError")
        assert "Retry-After" in refused.headers

        others = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        assert b" 429 " in await exchange(server, b"")
        for _, writer in [*others, (first, keeping)]:
            writer.close()
            await writer.wait_closed()
        while server._streams._taken:
            await queue.stats()
        assert (await ask(server, "GET", "/v1/events?follow=false")).status == 200


async def test_a_body_waits_for_room_and_is_refused_if_none_comes(queue: QueueService) -> None:
    large = {"entrypoint": "a", "payload_text": "x" * 100_000}
    body = json.dumps(large).encode()
    limits = HttpLimits(body_bytes=150_000, bodies_bytes=150_000, bodies_bytes_per_peer=150_000, body_s=SHORT_S)
    async with serving(Leading(queue), limits=limits) as server:
        taken = asyncio.create_task(server._bodies.take("127.0.0.1", 100_000, patience_s=1))
        await taken
        for headers in ({}, {"Transfer-Encoding": "chunked"}):
            sent = body if not headers else b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
            reply = await ask(server, "POST", "/v1/jobs", sent, {"Content-Type": "application/json", **headers})
            assert (reply.status, reply.json["error"]) == (429, "LimitReachedError")
        assert (await queue.stats()).position == 0

        server._bodies.give_back("127.0.0.1", 100_000)
        assert (await ask(server, "POST", "/v1/jobs", large)).status == 200
        assert server._bodies._taken == 0


async def test_shares_are_given_in_order_and_one_peer_does_not_keep_another_waiting() -> None:
    budget = Budget("bytes", 10, 6)
    await budget.take("a", 6, patience_s=1)
    waiting = asyncio.create_task(budget.take("a", 1, patience_s=1))
    await asyncio.sleep(0)  # noqa: TID251
    await budget.take("b", 4, patience_s=1)
    assert not waiting.done()

    budget.give_back("a", 6)
    await waiting
    with pytest.raises(LimitReachedError, match="bytes"):
        await budget.take("c", 9, patience_s=0.01)
    left = asyncio.create_task(budget.take("c", 9, patience_s=1))
    await asyncio.sleep(0)  # noqa: TID251
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    budget.give_back("a", 1)
    budget.give_back("b", 4)
    assert (budget._taken, budget._by_peer, len(budget._waiting)) == (0, {}, 0)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[" + b",".join([b'{"entrypoint":"a"}'] * 200_000) + b"]", "at most length"),
        (b'{"entrypoint":"a","headers":{' + b",".join(b'"%d":""' % n for n in range(200_000)) + b"}}", "headers"),
        (b'{"entrypoint":"' + b"a" * 2_000_000 + b'"}', "entrypoint"),
        (b'{"entrypoint":"a","payload_json":' + b"[" * 700_000 + b"]" * 700_000 + b"}", "nested"),
        (b'{"entrypoint":"a","payload_json":' + b"[" * 70_000 + b"]" * 70_000 + b"}", "nested"),
        (b'{"entrypoint":"a","nothing":' + b"[" * 700_000 + b"]" * 700_000 + b"}", "nothing"),
        (b" " * 2_000_000, "body"),
    ],
    ids=["many jobs", "many headers", "long name", "deep", "less deep", "deep and unknown", "blank"],
)
async def test_a_large_body_that_will_be_refused_is_refused_before_the_work(
    queue: QueueService, body: bytes, said: str
) -> None:
    async with serving(Leading(queue)) as server:
        reply = await ask(server, "POST", "/v1/jobs", body, {"Content-Type": "application/json"})
    assert (reply.status, reply.json["error"]) == (400, "InvalidInputError")
    assert said in reply.json["message"]
    assert (await queue.stats()).position == 0


async def test_large_bodies_mean_what_small_ones_mean(queue: QueueService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "LARGE", 1)
    monkeypatch.setattr(bulk, "SMALL_FIELD", 20)
    jobs = [{"entrypoint": "a", "id": f"{n}", "payload_json": {"n": [n] * 50}} for n in range(3)]
    async with serving(Leading(queue)) as server:
        assert (await ask(server, "POST", "/v1/jobs", jobs)).status == 200
        assert (await ask(server, "POST", "/v1/jobs", {"entrypoint": "a", "id": "x"})).status == 200
        claimed = (await ask(server, "POST", "/v1/jobs/claim", {"limit": 9})).json["jobs"]
        outcomes = [{"job_id": job["id"], "token": job["token"]} for job in claimed]
        settled = await ask(server, "POST", "/v1/settle", {"outcomes": outcomes})
        assert settled.json == {"settled": 4, "refused": []}
        wrong: list[Any] = [{}, {"outcomes": [], "more": 1}, {"outcomes": 7}, []]
        for bad in wrong:
            assert (await ask(server, "POST", "/v1/settle", bad)).status == 400


async def test_bodies_without_payloads_are_small(queue: QueueService) -> None:
    async with serving(Leading(queue)) as server:
        body = json.dumps({"zones": ["a" * 250] * 30_000}).encode()
        reply = await ask(server, "POST", "/v1/jobs/claim", body, {"Content-Type": "application/json"})
    assert reply.status == 413


@pytest.mark.parametrize(
    "given",
    ["streams", "streams=", "streams=x", "streams=0", "sreams=1", "body_s=nan", "body_bytes=1e99"],
)
def test_a_limit_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(InvalidInputError):
        HttpLimits.parse([given])
    assert HttpLimits.parse(["streams=7", "body_s=0.5"]) == HttpLimits(streams=7, body_s=0.5)


async def test_readers_that_never_read_hold_a_bounded_share_and_others_are_served(queue: QueueService) -> None:
    for n in range(12):
        await queue.enqueue([JobSpec(f"{n}-{m}", "a", bytes(200_000)) for m in range(5)])
    limits = HttpLimits(unsent_bytes_per_principal=1_000_000, unsent_bytes=1_000_000)
    async with serving(Leading(queue), limits=limits) as server:
        held = server._unsent.counts
        connections = [await asyncio.open_connection("127.0.0.1", server.port, limit=1024) for _ in range(12)]
        for _, writer in connections:
            writer.write(b"GET /v1/events?from_position=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while held.total < limits.unsent_bytes:
            await queue.stats()
        for _ in range(200):
            await queue.stats()

        assert held.total <= limits.unsent_bytes + len(connections) * 300_000
        assert queue._history._held.bytes <= HELD_BYTES  # type: ignore[attr-defined]
        assert (await ask(server, "GET", "/v1/stats")).status == 200
        for _, writer in connections:
            writer.close()
        while held.total:
            await queue.stats()
        read = await ask(server, "GET", "/v1/events?from_position=0&follow=false")
        assert read.body.count(b'"kind":"added"') == 60
