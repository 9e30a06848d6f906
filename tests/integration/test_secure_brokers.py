"""Tokens and TLS against real servers: who gets in over each wire, and what they may do there."""

from __future__ import annotations

import inspect
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import grpc
import httpx
import pytest
import pytest_asyncio
import trustme

from casque import (
    CasqueError,
    InvalidInputError,
    JobNotFoundError,
    NotAllowedError,
    NotAuthenticatedError,
)
from casque.clock import SystemClock
from casque.service import Host, Lease, Outcome, QueueService
from casque.service.requests import EVERY, verb_of
from casque.testing.clock import ManualClock
from casque.testing.hosting import leading
from casque.transport import tokenfile
from casque.transport.access import TokenBook
from casque.transport.border import Admit, admit
from casque.transport.grpc import osqueue_v1_pb2 as osqueue
from casque.transport.grpc.client import ClientTls, GrpcService
from casque.transport.grpc.server import GrpcServer
from casque.transport.http.client import HttpService
from casque.transport.http.server import HttpServer
from casque.transport.scopes import Scope
from casque.transport.tls import Tls, TlsFiles
from casque.types import Gate, JobSpec, ScheduleSpec, StagedPart, ZoneRules

SERVERS = trustme.CA()
CLIENTS = trustme.CA()
STRANGERS = trustme.CA()
NOW = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)


class Identity(NamedTuple):
    """What a client has to show, and whom it trusts."""

    trusts: trustme.CA | None = None
    cert: trustme.LeafCert | None = None


Client: TypeAlias = Callable[..., AbstractAsyncContextManager[QueueService]]
"""(token, identity) to a client of the server."""


@asynccontextmanager
async def grpc_server(host: Host, door: Admit, tls: Tls | None) -> AsyncIterator[Client]:
    server = GrpcServer(host, listen="127.0.0.1:0", tls=tls, admit=door)
    await server.start()

    @asynccontextmanager
    async def client(token: str | None = None, identity: Identity | None = None) -> AsyncIterator[QueueService]:
        secured = None
        if identity is not None:
            secured = ClientTls(
                roots=None if identity.trusts is None else identity.trusts.cert_pem.bytes(),
                key=None if identity.cert is None else identity.cert.private_key_pem.bytes(),
                chain=None if identity.cert is None else identity.cert.cert_chain_pems[0].bytes(),
            )
        service = GrpcService(f"127.0.0.1:{server.port}", token=token, tls=secured)
        try:
            yield service
        finally:
            await service.close()

    try:
        yield client
    finally:
        await server.stop(grace_s=1)


@asynccontextmanager
async def http_server(host: Host, door: Admit, tls: Tls | None) -> AsyncIterator[Client]:
    server = HttpServer(host, listen="127.0.0.1:0", tls=tls, admit=door)
    await server.start()

    @asynccontextmanager
    async def client(token: str | None = None, identity: Identity | None = None) -> AsyncIterator[QueueService]:
        context = None
        if identity is not None:
            context = ssl.create_default_context()
            if identity.trusts is not None:
                identity.trusts.configure_trust(context)
            if identity.cert is not None:
                identity.cert.configure_cert(context)
        async with HttpService(f"127.0.0.1:{server.port}", token=token, tls=context) as service:
            yield service

    try:
        yield client
    finally:
        await server.stop(1)


WIRES = {"grpc": grpc_server, "http": http_server}
over_every_wire = pytest.mark.parametrize("wire", WIRES)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def new_token(file: Path, name: str, *scopes: Scope, **more: Any) -> str:
    return tokenfile.add(file, name=name, scopes=scopes, created=NOW, **more)


@pytest_asyncio.fixture
async def host() -> AsyncIterator[Host]:
    """A queue with a running and a waiting job of two entrypoints."""
    async with leading("memory://") as led:
        queue = led.service()
        for entrypoint in ("mail", "fax"):
            await queue.enqueue([JobSpec(f"{entrypoint} running", entrypoint, b"")])
            await queue.dequeue(entrypoints=(entrypoint,), limit=1)
            await queue.enqueue([JobSpec(f"{entrypoint} waiting", entrypoint, b"")])
        yield led


KINDS: dict[str, Any] = {verb_of(kind): kind for kind in EVERY if kind.scope is not Scope.PEER}


async def call(service: QueueService, verb: str, **arguments: Any) -> Any:
    friendly = getattr(service, verb, None)
    answer = service.call(KINDS[verb](**arguments)) if friendly is None else friendly(**arguments)
    if inspect.isasyncgen(answer):
        return [one async for one in answer]
    return await answer


CALLS: dict[str, tuple[Scope, dict[str, Any]]] = {
    "enqueue": (Scope.PRODUCE, {"specs": [JobSpec("new", "mail", b"")]}),
    "admit": (
        Scope.PRODUCE,
        {"source": "s", "batch": 1, "parts": [StagedPart("staged/2026-02-15T10/t-" + "0" * 16, "0" * 64, 1, 1)]},
    ),
    "dequeue": (Scope.WORK, {"entrypoints": ("mail",), "limit": 1}),
    "ack": (Scope.WORK, {"job_id": "mail running"}),
    "nack": (Scope.WORK, {"job_id": "mail running"}),
    "settle": (Scope.WORK, {"outcomes": [Outcome("mail running", 1)]}),
    "heartbeat": (Scope.WORK, {"job_id": "mail running"}),
    "heartbeats": (Scope.WORK, {"leases": [Lease("mail running", 1)]}),
    "give_back": (Scope.WORK, {"job_id": "mail running", "token": 1}),
    "cancel": (Scope.ADMIN, {"job_id": "mail waiting"}),
    "retry": (Scope.ADMIN, {"job_id": "nobody's"}),
    "reschedule": (Scope.ADMIN, {"job_id": "mail waiting", "priority": 1}),
    "purge": (Scope.ADMIN, {}),
    "requeue_stale": (Scope.ADMIN, {"older_ms": 3_600_000}),
    "find": (Scope.READ, {"job_id": "mail waiting"}),
    "jobs": (Scope.READ, {}),
    "stats": (Scope.READ, {}),
    "events": (Scope.READ, {"from_position": 0, "follow": False}),
    "archive": (Scope.READ, {}),
    "set_gate": (Scope.ADMIN, {"gate": Gate.PAUSED}),
    "set_zone": (Scope.ADMIN, {"zone": "acme", "rules": ZoneRules(paused=True)}),
    "zones": (Scope.READ, {}),
    "peek_zones": (Scope.WORK, {}),
    "lease_zone": (Scope.WORK, {"zone": "acme"}),
    "heartbeat_zone": (Scope.WORK, {"zone": "acme", "token": 1}),
    "release_zone": (Scope.WORK, {"zone": "acme", "token": 1}),
    "set_schedule": (Scope.PRODUCE, {"spec": ScheduleSpec("nightly", "@daily", JobSpec("", "mail", b""))}),
    "schedules": (Scope.READ, {}),
    "pause_schedule": (Scope.ADMIN, {"name": "nightly", "paused": True}),
    "drop_schedule": (Scope.ADMIN, {"name": "nightly"}),
}


@over_every_wire
async def test_two_tenants_who_give_a_request_the_same_id_are_both_served(wire: str, host: Host, file: Path) -> None:
    shops = {name: new_token(file, name, Scope.PRODUCE, zones=[name]) for name in ("acme", "zeta")}
    async with WIRES[wire](host, admit(TokenBook(file)), None) as client:
        for _ in range(2):
            for name, token in shops.items():
                async with client(token) as service:
                    [job] = await service.enqueue([JobSpec(name, "mail", b"", zone=name)], request_id="order-17")
                    assert job.id == f"{name}::{name}"
        async with client(shops["acme"]) as service:
            with pytest.raises(InvalidInputError, match="request_id 'order-17' was used before"):
                await service.enqueue([JobSpec("other", "mail", b"other", zone="acme")], request_id="order-17")
    ids = ("acme::acme", "zeta::zeta", "acme::other")
    assert [await host.service().find(job_id) is not None for job_id in ids] == [True, True, False]


def test_the_table_has_every_verb() -> None:
    assert CALLS.keys() == KINDS.keys() | {"events", "archive"}


@over_every_wire
@pytest.mark.parametrize("scope", Scope)
async def test_every_verb_over_every_wire_needs_its_scope(wire: str, scope: Scope, host: Host, file: Path) -> None:
    token = new_token(file, "t", scope)
    before = (await host.service().stats()).position
    async with WIRES[wire](host, admit(TokenBook(file)), None) as client, client(token) as service:
        for verb, (needed, arguments) in CALLS.items():
            if scope in (needed, Scope.ADMIN):
                continue
            with pytest.raises(NotAllowedError, match=f"needs the scope '{needed.value}'") as refused:
                await call(service, verb, **arguments)
            assert refused.value.scope == needed.value
        assert (await host.service().stats()).position == before, "what was refused has changed nothing"
        for verb, (needed, arguments) in CALLS.items():
            if scope in (needed, Scope.ADMIN):
                try:
                    await call(service, verb, **arguments)
                except (NotAllowedError, NotAuthenticatedError):
                    raise
                except CasqueError:
                    pass  # it got as far as the queue


@over_every_wire
@pytest.mark.parametrize("sent", ["none", "wrong", "unknown", "garbage", "expired"])
async def test_nobody_gets_in_without_a_token_that_counts(wire: str, sent: str, host: Host, file: Path) -> None:
    good = new_token(file, "good", Scope.ADMIN)
    expired = new_token(file, "late", Scope.ADMIN, expires=NOW - timedelta(seconds=1))
    token = {
        "none": None,
        "wrong": good[:-64] + "0" * 64,
        "unknown": f"casque_{'0' * 12}_{'0' * 64}",
        "garbage": "hunter2",
        "expired": expired,
    }[sent]
    before = (await host.service().stats()).position
    async with WIRES[wire](host, admit(TokenBook(file)), None) as client:
        async with client(token) as service:
            for verb, (_, arguments) in CALLS.items():
                with pytest.raises(NotAuthenticatedError) as refused:
                    await call(service, verb, **arguments)
                assert "0" * 64 not in str(refused.value)
                assert "hunter2" not in str(refused.value)
        assert (await host.service().stats()).position == before
        async with client(good) as service:
            assert (await service.stats()).position == before


@over_every_wire
async def test_a_token_of_another_entrypoint_does_not_reach_these_jobs(wire: str, host: Host, file: Path) -> None:
    token = new_token(file, "fax", Scope.ADMIN, entrypoints=("fax",))
    async with WIRES[wire](host, admit(TokenBook(file)), None) as client, client(token) as service:
        for verb in ("ack", "nack", "heartbeat", "cancel"):
            with pytest.raises(JobNotFoundError):
                await call(service, verb, **CALLS[verb][1])
        await call(service, "give_back", **CALLS["give_back"][1])  # does nothing, as for a job that is not there
        for verb, arguments in {
            "enqueue": CALLS["enqueue"][1],
            "dequeue": CALLS["dequeue"][1],
            "purge": {"entrypoint": "mail"},
            "requeue_stale": {"older_ms": 3_600_000, "entrypoint": "mail"},
            "jobs": {"entrypoint": "mail"},
            "archive": {"entrypoint": "mail"},
        }.items():
            with pytest.raises(NotAllowedError, match="for the entrypoint 'mail'") as refused:
                await call(service, verb, **arguments)
            assert refused.value.reach == "the entrypoint 'mail'"
        with pytest.raises(NotAllowedError, match="for every entrypoint and every zone"):
            await call(service, "admit", **CALLS["admit"][1])
        assert await service.find("mail waiting") is None
        assert [job.id for job in await service.jobs()] == ["fax running", "fax waiting"]
        assert (await service.stats()).totals.enqueued == 2
        events = await call(service, "events", from_position=0, follow=False)
        assert [event.job_id for event in events] == ["fax running", "fax running", "fax waiting"]
        [beat] = await service.heartbeats([Lease("mail running", 1)])
        assert isinstance(beat, JobNotFoundError)
        assert [job.id for job in await service.dequeue(entrypoints=None, limit=10)] == ["fax waiting"]


@over_every_wire
async def test_a_token_that_is_revoked_ends_a_session_that_is_open(wire: str, host: Host, file: Path) -> None:
    clock = ManualClock()
    token = new_token(file, "t", Scope.READ)
    door = admit(TokenBook(file, clock=clock))
    async with WIRES[wire](host, door, None) as client, client(token) as service:
        await service.stats()
        tokenfile.revoke(file, "t")
        await clock.advance(1)
        with pytest.raises(NotAuthenticatedError):
            await service.stats()


@over_every_wire
async def test_what_is_wrong_with_an_argument_comes_back_by_name(wire: str, host: Host, file: Path) -> None:
    async with WIRES[wire](host, admit(None), None) as client, client() as service:
        wrong: list[tuple[str, dict[str, Any], str]] = [
            ("enqueue", {"specs": [JobSpec("x", "", b"")]}, "entrypoint"),
            ("dequeue", {"entrypoints": ("mail",), "limit": 0}, "limit"),
            ("ack", {"job_id": "x" * 1025}, "job_id"),
            ("nack", {"job_id": "mail running", "delay_ms": -1}, "delay"),
        ]
        for verb, arguments, says in wrong:
            with pytest.raises(InvalidInputError, match=says):
                await call(service, verb, **arguments)


# --- Clients that know nothing of casque ---


@pytest.mark.parametrize(
    ("method", "request_", "needed"),
    [
        ("Push", osqueue.PushRequest(data=b"x"), {Scope.PRODUCE}),
        ("Claim", osqueue.ClaimRequest(worker_id="w"), {Scope.WORK}),
        ("Heartbeat", osqueue.HeartbeatRequest(job_id="none", worker_id="w"), {Scope.WORK}),
        ("Complete", osqueue.CompleteRequest(job_id="none", worker_id="w"), {Scope.WORK}),
    ],
)
async def test_osqueue_s_clients_need_tokens_too(
    method: str, request_: Any, needed: set[Scope], host: Host, file: Path
) -> None:
    good, poor = new_token(file, "good", *needed), new_token(file, "poor", *({*Scope} - needed - {Scope.ADMIN}))
    server = GrpcServer(host, listen="127.0.0.1:0", admit=admit(TokenBook(file)))
    await server.start()
    codes = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        ask = channel.unary_unary(
            f"/osqueue.v1.QueueService/{method}", request_serializer=lambda message: message.SerializeToString()
        )
        for token in (None, poor, good):
            call_ = ask(request_, metadata=() if token is None else (("authorization", f"Bearer {token}"),))
            codes.append(await call_.code())
    await server.stop(1)
    assert codes[:2] == [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED]
    assert codes[2] in (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND)


async def test_http_tells_401_from_403_and_health_needs_no_token(host: Host, file: Path) -> None:
    token = new_token(file, "reader", Scope.READ)
    server = HttpServer(host, listen="127.0.0.1:0", admit=admit(TokenBook(file)))
    await server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        nobody = await client.get("/v1/stats")
        reader = {"Authorization": f"Bearer {token}"}
        may, may_not = (
            await client.get("/v1/stats", headers=reader),
            await client.post("/v1/purge", headers=reader, json={}),
        )
        healthy = await client.get("/healthz")
    await server.stop(1)
    assert (nobody.status_code, may.status_code, may_not.status_code, healthy.status_code) == (401, 200, 403, 200)
    assert nobody.headers["www-authenticate"].startswith("Bearer")
    assert may_not.json()["error"] == "NotAllowedError"


# --- TLS ---


def tls(directory: Path, *, mutual: bool) -> Tls:
    cert = SERVERS.issue_cert("127.0.0.1")
    cert.private_key_pem.write_to_path(directory / "key.pem")
    cert.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    CLIENTS.cert_pem.write_to_path(directory / "clients.pem")
    return TlsFiles(directory / "cert.pem", directory / "key.pem", directory / "clients.pem" if mutual else None).load()


@over_every_wire
async def test_tls_and_a_token_get_in(wire: str, host: Host, file: Path, tmp_path: Path) -> None:
    token = new_token(file, "t", Scope.READ)
    async with (
        WIRES[wire](host, admit(TokenBook(file)), tls(tmp_path, mutual=False)) as client,
        client(token, Identity(SERVERS)) as service,
    ):
        assert len(await service.jobs()) == 4


@over_every_wire
async def test_mutual_tls_and_a_token_get_in(wire: str, host: Host, file: Path, tmp_path: Path) -> None:
    token = new_token(file, "t", Scope.READ)
    identity = Identity(SERVERS, CLIENTS.issue_cert("worker-1"))
    async with WIRES[wire](host, admit(TokenBook(file)), tls(tmp_path, mutual=True)) as client:
        async with client(token, identity) as service:
            assert len(await service.jobs()) == 4
        async with client(None, identity) as service:
            with pytest.raises(NotAuthenticatedError):
                await service.jobs()


@over_every_wire
@pytest.mark.parametrize(
    ("mutual", "identity"),
    [
        (False, None),
        (False, Identity(STRANGERS)),
        (True, Identity(SERVERS)),
        (True, Identity(SERVERS, STRANGERS.issue_cert("worker-1"))),
        (True, Identity(SERVERS, SERVERS.issue_cert("worker-1"))),
    ],
    ids=["no TLS", "another authority", "no certificate", "a stranger's certificate", "one of the wrong authority"],
)
async def test_who_does_not_fit_the_tls_does_not_get_as_far_as_a_token(
    wire: str, mutual: bool, identity: Identity | None, host: Host, file: Path, tmp_path: Path
) -> None:
    token = new_token(file, "t", Scope.ADMIN)
    before = (await host.service().stats()).position
    async with (
        WIRES[wire](host, admit(TokenBook(file)), tls(tmp_path, mutual=mutual)) as client,
        client(token, identity) as service,
    ):
        with pytest.raises(CasqueError) as refused:
            await service.enqueue([JobSpec("new", "mail", b"")])
        assert not isinstance(refused.value, NotAuthenticatedError | NotAllowedError)
    assert (await host.service().stats()).position == before
