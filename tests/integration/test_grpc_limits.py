"""Shares of a broker: who may have how much of it, and that nothing is read of those who may not come in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from casque import InvalidInputError, LimitReachedError
from casque.clock import SystemClock, yield_once
from casque.storage.memory import MemoryStore
from casque.testing.gated import GatedStore
from casque.testing.hosting import FixedHost, leading
from casque.testing.service_suite.jobs import a_job
from casque.transport import tokenfile
from casque.transport.access import TokenBook
from casque.transport.border import admit
from casque.transport.grpc.door import Door, GrpcLimits
from casque.transport.grpc.server import GrpcServer
from casque.transport.http.client import HttpService
from casque.transport.http.server import HttpServer
from casque.transport.limits import Limits, changed, split
from casque.transport.scopes import Scope
from tests.integration.shell import casque
from tests.integration.test_grpc_calls import Stub, calls_to, refused
from tests.support.over_grpc import calling, serving

NOW = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)
MIB = 1024 * 1024


class Relay:
    """Counts the bytes that a client sends to a server."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.sent = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Relay]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        pumps = self._pump(reader, back, count=True), self._pump(there, writer, count=False)
        try:
            await asyncio.gather(*pumps)
        except (asyncio.CancelledError, OSError):
            pass
        finally:
            back.close()
            writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, count: bool) -> None:
        while chunk := await source.read(64 * 1024):
            self.sent += len(chunk) if count else 0
            sink.write(chunk)
            await sink.drain()


def door_of(server: GrpcServer) -> Door:
    assert server._door is not None
    return server._door


async def until_nothing_is_under_way(server: GrpcServer) -> None:
    quotas = door_of(server).quotas
    async with asyncio.timeout(20):
        while True:
            places = quotas._peers, quotas._principals, quotas._health, quotas._reflections
            total = sum(one.counts.total for one in places) + quotas.bytes.counts.total
            if not total and not quotas._connections._calls:
                return
            await yield_once()


def two_tokens(folder: Path) -> tuple[TokenBook, str, str]:
    file = folder / "tokens.json"
    first = tokenfile.add(file, name="first", scopes=[Scope.ADMIN], created=NOW)
    second = tokenfile.add(file, name="second", scopes=[Scope.ADMIN], created=NOW)
    return TokenBook(file), first, second


# --- Before the body ---


@pytest.mark.parametrize("method", ["Enqueue", "Ack", "List", "Settle"])
async def test_nothing_is_read_of_a_request_without_a_token(tmp_path: Path, method: str) -> None:
    book, _, _ = two_tokens(tmp_path)
    async with leading("memory://limits-body") as host, serving(host, admit=admit(book)) as server:
        async with Relay(server.port).running() as relay:
            options = [("grpc.max_send_message_length", -1)]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{relay.port}", options) as channel:
                call = channel.unary_unary(f"/casque.v1.Queue/{method}")

                assert (await refused(call(bytes(60 * MIB), timeout=30)))[0] == "UNAUTHENTICATED"

            assert relay.sent < 10 * MIB, "more than a window of HTTP/2"
        await until_nothing_is_under_way(server)


async def test_a_large_health_check_is_refused() -> None:
    async with leading("memory://limits-health-body") as host, serving(host) as server, calls_to(server) as stub:
        check = stub._channel.unary_unary("/grpc.health.v1.Health/Check")
        large = health_pb2.HealthCheckRequest(service="s" * MIB).SerializeToString()
        assert (await refused(check(large)))[0] == "INVALID_ARGUMENT"


# --- Health and reflection apart ---


def watching(stub: Stub) -> Any:
    watch = stub._channel.unary_stream(
        "/grpc.health.v1.Health/Watch", response_deserializer=health_pb2.HealthCheckResponse.FromString
    )
    return watch(b"")


async def test_watchers_of_health_take_no_place_of_others_and_are_few() -> None:
    limits = GrpcLimits(rpcs=2, health_checks=5, health_checks_per_peer=3)
    async with leading("memory://limits-health") as host, serving(host, limits=limits) as server:
        async with calls_to(server) as stub:
            watches = [watching(stub) for _ in range(3)]
            for one in watches:
                await one.read()

            code, said = await refused(watching(stub).read())

            assert (code, said["error"]) == ("RESOURCE_EXHAUSTED", "LimitReachedError")
            assert "health checks from one address" in said["message"]
            await stub.Stats()
            watches[0].cancel()
            while door_of(server).quotas._health.counts.total > 2:
                await yield_once()
            assert (await watching(stub).read()).status == 1
        await until_nothing_is_under_way(server)


async def test_reflection_has_few_places() -> None:
    limits = GrpcLimits(reflections_per_peer=1)
    async with leading("memory://limits-reflection") as host, serving(host, limits=limits) as server:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            info = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
            first = info()
            await first.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            assert (await first.read()).list_services_response.service

            assert (await refused(info().read()))[0] == "RESOURCE_EXHAUSTED"
        await until_nothing_is_under_way(server)


async def test_reflection_is_for_short_questions() -> None:
    limits = GrpcLimits(reflection_s=0.05)
    async with leading("memory://limits-reflected") as host, serving(host, limits=limits) as server:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            silent = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()

            assert (await refused(silent.read()))[0] == "DEADLINE_EXCEEDED"
        await until_nothing_is_under_way(server)


# --- Shares ---


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        (GrpcLimits(rpcs=2), "of all callers"),
        (GrpcLimits(rpcs_per_peer=2), "from one address"),
        (GrpcLimits(rpcs_per_principal=2), "of one token"),
    ],
)
async def test_a_call_beyond_the_share_of_its_caller_is_refused_and_the_next_is_not(
    limits: GrpcLimits, what: str
) -> None:
    async with leading("memory://limits-rpcs") as host, serving(host, limits=limits) as server:
        async with calls_to(server) as stub:
            streams = [stub.Watch(timeout=60) for _ in range(2)]
            for one in streams:
                await one.initial_metadata()

            code, said = await refused(stub.Stats())

            assert (code, said["error"]) == ("RESOURCE_EXHAUSTED", "LimitReachedError")
            assert what in said["message"]
            streams[0].cancel()
            while door_of(server).quotas._peers.counts.total > 1:
                await yield_once()
            await stub.Stats()
        await until_nothing_is_under_way(server)


async def test_connections_from_one_address_are_counted() -> None:
    limits = GrpcLimits(connections_per_peer=1)
    async with leading("memory://limits-connections") as host, serving(host, limits=limits) as server:
        async with calling(server) as first, calling(server) as second:
            await first.stats()
            with pytest.raises(LimitReachedError, match="connections from one address"):
                await second.stats()
            await first.stats()
        async with calling(server) as third:
            await until_nothing_is_under_way(server)
            await third.stats()


async def test_a_token_that_has_used_its_share_leaves_that_of_others(tmp_path: Path) -> None:
    book, one, other = two_tokens(tmp_path)
    limits = GrpcLimits(rpcs_per_principal=1)
    async with leading("memory://limits-tokens") as host, serving(host, admit=admit(book), limits=limits) as server:
        async with calling(server, token=one) as first, calls_to(server, one) as again, calls_to(server, other) as stub:
            await first.stats()

            assert (await refused(again.Stats()))[0] == "RESOURCE_EXHAUSTED"

            await stub.Stats()
            await first.stats()
        await until_nothing_is_under_way(server)


async def test_calls_in_a_second_are_counted_by_token(tmp_path: Path) -> None:
    book, one, other = two_tokens(tmp_path)
    limits = GrpcLimits(calls_per_second=1)
    async with (
        leading("memory://limits-rate") as host,
        serving(host, admit=admit(book), limits=limits) as server,
        calls_to(server, one) as first,
        calls_to(server, other) as second,
    ):
        answers = await asyncio.gather(*(first.Stats() for _ in range(8)), return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
        assert failed
        assert {error.code().name for error in failed} == {"RESOURCE_EXHAUSTED"}
        await second.Stats()


# --- Bytes ---


async def test_a_stream_that_sends_much_is_read_later_and_loses_nothing() -> None:
    limits = GrpcLimits(bytes_per_principal=MIB)
    async with leading("memory://limits-bytes", payload_max=4 * MIB) as host, serving(host, limits=limits) as server:
        async with calling(server) as client:
            added = await asyncio.gather(*(client.enqueue([a_job(bytes(MIB))]) for _ in range(12)))

            assert len(added) == 12
            assert (await client.stats()).totals.ready == 12
        await until_nothing_is_under_way(server)


async def test_unary_calls_are_refused_unread_while_too_much_is_under_way() -> None:
    store = GatedStore(MemoryStore())
    limits = GrpcLimits(bytes_under_way=MIB)
    async with leading(store, payload_max=4 * MIB) as host, serving(host, limits=limits) as server:
        async with calls_to(server) as stub:
            await stub.Stats()
            store.shut()
            adding = asyncio.ensure_future(stub.Enqueue(jobs=[{"entrypoint": "send", "payload": bytes(2 * MIB)}]))
            await store.arrived.wait()

            code, said = await refused(stub.Stats())

            assert (code, said["error"]) == ("RESOURCE_EXHAUSTED", "LimitReachedError")
            store.open()
            assert len((await adding).jobs) == 1
            await stub.Stats()
        await until_nothing_is_under_way(server)


# --- Those who wait ---


@asynccontextmanager
async def over_both(host: FixedHost, book: TokenBook, limits: Limits, token: str) -> AsyncIterator[tuple[Any, Any]]:
    door = admit(book, limits)
    http = HttpServer(host, listen="127.0.0.1:0", admit=door)
    await http.start()
    by_http = HttpService(f"http://127.0.0.1:{http.port}", token=token)
    try:
        async with serving(host, admit=door) as server, calling(server, token=token) as by_grpc:
            yield by_grpc, by_http
    finally:
        await by_http.close()
        await http.stop(1)


async def test_callers_that_wait_are_counted_by_token_over_all_wires(tmp_path: Path) -> None:
    book, one, _other = two_tokens(tmp_path)
    limits = Limits(waits=2)
    async with leading("memory://limits-waits") as host, over_both(host, book, limits, one) as (by_grpc, by_http):
        engine = host.queue._executor  # type: ignore[attr-defined]
        waiting = [
            asyncio.create_task(service.dequeue(entrypoints=("none",), limit=1, wait_s=60))
            for service in (by_grpc, by_http)
        ]
        async with asyncio.timeout(20):
            while len(engine._parked) < 2:
                await yield_once()
        for service in (by_grpc, by_http):
            with pytest.raises(LimitReachedError, match="dequeues that wait"):
                await service.dequeue(entrypoints=("none",), limit=1, wait_s=60)
            assert await service.dequeue(entrypoints=("none",), limit=1) == []

        waiting[0].cancel()
        async with asyncio.timeout(20):
            while len(engine._parked) == 2:
                await yield_once()
        again = asyncio.create_task(by_http.dequeue(entrypoints=("none",), limit=1, wait_s=60))
        async with asyncio.timeout(20):
            while len(engine._parked) < 2:
                await yield_once()
        for call in (*waiting, again):
            call.cancel()
        await asyncio.gather(*waiting, again, return_exceptions=True)


async def test_readers_of_events_are_counted_by_token(tmp_path: Path) -> None:
    book, one, _ = two_tokens(tmp_path)
    async with leading("memory://limits-followers", layout="log") as host:
        await host.queue.enqueue([a_job(b"1")])
        async with over_both(host, book, Limits(followers=1), one) as (by_grpc, by_http):
            first = by_grpc.events(from_position=0)
            await anext(first)
            with pytest.raises(LimitReachedError, match="readers that follow"):
                async for _ in by_http.events(from_position=1):
                    pass
            assert [event async for event in by_http.events(from_position=0, follow=False)]
            await first.aclose()


# --- By name ---


def test_limits_are_set_by_name_and_mistakes_are_named() -> None:
    calls, server = changed(
        split(["waits=7", "health-checks=9", "idle_s=1.5", "calls_per_second=100"]), Limits(), GrpcLimits()
    )
    assert calls == Limits(waits=7)
    assert server == GrpcLimits(health_checks=9, idle_s=1.5, calls_per_second=100)
    for wrong in ("waits", "wait=3", "waits=many", "waits=0", "idle_s=-1", "rpcs=1.5"):
        with pytest.raises(InvalidInputError, match="--limit"):
            changed(split([wrong]), Limits(), GrpcLimits())


def test_a_broker_with_an_unknown_limit_does_not_start(tmp_path: Path) -> None:
    done = casque("serve", (tmp_path / "queue").as_uri(), "--limit", "rpc=3", ends=2)
    assert "did you mean 'rpcs'?" in done.output


def test_every_limit_is_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "limits.md").read_text()
    for limits in (Limits(), GrpcLimits()):
        for name in limits.__struct_fields__:
            assert f"`{name}`" in page, name
