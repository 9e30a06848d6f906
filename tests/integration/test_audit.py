"""Who changed what, and who was refused, is in the log: over gRPC and over HTTP, with names and never with secrets."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from casque import JobNotFoundError, NotAllowedError, NotAuthenticatedError, Queue
from casque.app import BrokerServer, Peers, ServeOptions
from casque.cli.main import app
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.errors import CasqueError
from casque.service import Scope
from casque.service.requests import EVERY, verb_of
from casque.testing.clock import ManualClock
from casque.transport import audit
from casque.transport.access import TokenBook
from casque.transport.grpc import casque_v1_pb2
from casque.transport.grpc.peer import GrpcShard
from casque.transport.http.routes import ROUTES
from casque.transport.listening import Address
from casque.types import Gate, JobSpec, Reach, ScheduleSpec, ZoneRules

BOTH = pytest.mark.parametrize("wire", ["gRPC", "HTTP"])


class Broker:
    def __init__(self, server: BrokerServer, tokens: dict[str, str]) -> None:
        self._server = server
        self.tokens = tokens

    def open(self, wire: str, token: str) -> Queue[bytes]:
        if wire == "gRPC":
            return Queue.open(f"grpc://{self._server.address}", token=token)
        return Queue.open(f"http://127.0.0.1:{self._server.http_port}", token=token)


@pytest.fixture
async def broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Broker]:
    file = str(tmp_path / "tokens.json")
    tokens = {}
    for scope in ("admin", "read"):
        made = CliRunner().invoke(app, ["token", "new", "--file", file, "--name", f"the {scope}", "--scope", scope])
        tokens[scope] = made.stdout.strip()
    listen = Address.parse("127.0.0.1:0")
    server = BrokerServer(ServeOptions(url="memory://", listen=listen, http=listen, tokens=TokenBook(file)))
    await server.start()
    caplog.set_level(logging.INFO, "casque.audit")
    audit._flood._seen = 0
    yield Broker(server, tokens)
    await server.stop()
    for token in tokens.values():
        assert token.rpartition("_")[2] not in caplog.text


def written(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "casque.audit"]


@BOTH
async def test_every_administrative_call_says_who_made_it(
    broker: Broker, caplog: pytest.LogCaptureFixture, wire: str
) -> None:
    async with broker.open(wire, broker.tokens["admin"]) as queue:
        await queue.pause("send")
        await queue.resume("send")
        await queue.set_zone("acme", weight=2.0)
        job = await queue.enqueue("send", b"", zone="acme")
        await queue.cancel(job.id)
        with pytest.raises(JobNotFoundError):
            await queue.retry("a\x1b[2J\nFORGED")
        await queue.purge()
        await queue.set_schedule("nightly", "@daily", ("send", b""))
        await queue.pause_schedule("nightly")
        await queue.drop_schedule("nightly")
        await queue.enqueue("send", b"", zone="acme")
        lease = await queue.lease_zone("acme")
        assert lease is not None
        await queue.release_zone(lease)

    lines = written(caplog)
    verbs = [line.partition("(")[0] for line in lines]
    assert verbs == [
        "set_gate", "set_gate", "set_zone", "cancel", "retry", "purge", "set_schedule", "pause_schedule",
        "drop_schedule", "release_zone",
    ]  # fmt: skip
    for line in lines:
        assert "by 'the admin' (token " in line
        assert "127.0.0.1" in line
        assert f"over {wire}: " in line
        assert line.isprintable()
    assert "gate='paused', entrypoint='send'" in lines[0]
    assert lines[3].startswith(f"cancel(job_id={job.id!r}) ")
    assert lines[3].endswith(": done")
    assert "refused, job " in lines[4]


@BOTH
async def test_a_refusal_says_who_was_refused(broker: Broker, caplog: pytest.LogCaptureFixture, wire: str) -> None:
    async with broker.open(wire, broker.tokens["read"]) as queue:
        with pytest.raises(NotAllowedError):
            await queue.purge()
        with pytest.raises(NotAllowedError):
            await queue.enqueue("send", b"")
    wrong = broker.tokens["admin"][:-1] + ("0" if broker.tokens["admin"][-1] != "0" else "1")
    async with broker.open(wire, wrong) as queue:
        with pytest.raises(NotAuthenticatedError):
            await queue.stats()

    lines = written(caplog)
    assert [line.partition(" by ")[0] for line in lines[:2]] == ["purge", "enqueue"]
    assert all("'the read' (token " in line and ": refused, " in line for line in lines[:2])
    assert all(line.startswith("a call by unknown from ") and "127.0.0.1" in line for line in lines[2:])
    assert len(lines) > 2


async def test_one_who_is_refused_without_end_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock: Any = ManualClock()
    monkeypatch.setattr(audit, "_flood", audit.Flood(clock))
    for _ in range(1_000):
        audit.refused("a call", NotAuthenticatedError("no"))
    assert len(written(caplog)) == audit.FEW
    await clock.advance(60)
    audit.refused("a call", NotAuthenticatedError("no"))
    assert written(caplog)[-2] == f"{1_000 - audit.FEW} more refusals were not written down"


ACTS: dict[str, dict[str, Any]] = {
    "cancel": {"job_id": "x"},
    "retry": {"job_id": "x"},
    "reschedule": {"job_id": "x", "priority": 1},
    "purge": {},
    "requeue_stale": {"older_ms": 1000},
    "set_gate": {"gate": Gate.OPEN},
    "set_zone": {"zone": "acme", "rules": ZoneRules(2.0)},
    "release_zone": {"zone": "acme", "token": 1},
    "set_schedule": {"spec": ScheduleSpec("nightly", "@daily", JobSpec("", "send", b""))},
    "pause_schedule": {"name": "nightly", "paused": True},
    "drop_schedule": {"name": "nightly"},
    "adopt": {"generation": 1, "size": 2},
    "copy_gate": {"gate": Gate.OPEN, "entrypoint": "send", "since": 0},
    "copy_zone": {"zone": "acme", "rules": ZoneRules(2.0), "since": 0},
}
KINDS: dict[str, Any] = {verb_of(kind): kind for kind in EVERY}
NOT_ADMINISTRATIVE = {
    "enqueue", "admit", "dequeue", "ack", "nack", "settle", "heartbeat", "heartbeats", "give_back", "peek_zones",
    "lease_zone", "heartbeat_zone",  # these work
    "find", "jobs", "stats", "zones", "schedules", "events", "archive", "known", "has_due",  # these look
}  # fmt: skip


def test_every_verb_is_administrative_or_named_as_one_that_is_not() -> None:
    """A new verb of a queue, of a shard, of gRPC or of HTTP has to be put into one of the two."""
    verbs = {verb_of(kind) for kind in EVERY} | {"events", "archive"}
    assert {verb_of(kind) for kind in EVERY if kind.audited} == verbs - NOT_ADMINISTRATIVE == set(ACTS)
    by_http = {HTTP_NAMES.get(route.verb, route.verb) for route in ROUTES}
    assert by_http <= verbs
    described = casque_v1_pb2.DESCRIPTOR.services_by_name["Queue"].methods
    by_grpc = {re.sub("(?<!^)([A-Z])", r"_\1", method.name).lower() for method in described}
    assert {GRPC_NAMES.get(name, name) for name in by_grpc} - {"exchange"} <= verbs


HTTP_NAMES = {"claim": "dequeue", "job": "find", "resume_schedule": "pause_schedule"}
GRPC_NAMES = {"list": "jobs", "watch": "events"}


@BOTH
async def test_every_administrative_verb_leaves_a_line(
    broker: Broker, caplog: pytest.LogCaptureFixture, wire: str
) -> None:
    async with broker.open(wire, broker.tokens["admin"]) as queue:
        for verb in sorted(verb_of(kind) for kind in EVERY if kind.audited and kind.scope is not Scope.PEER):
            caplog.clear()
            with suppress(CasqueError):
                await queue._service.call(KINDS[verb](**ACTS[verb]))

            [line] = written(caplog)
            assert line.startswith(f"{verb}(")
            assert "by 'the admin' (token " in line


@pytest.mark.parametrize("limited", [False, True])
async def test_every_administrative_verb_of_another_broker_leaves_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limited: bool
) -> None:
    file, place = tmp_path / "tokens.json", (tmp_path / "ring").as_uri()
    store = as_store(place)
    assert await Parts(store, DEFAULTS).builder().create(1)
    await store.close()
    made = CliRunner().invoke(app, ["token", "new", "--file", str(file), "--name", "the brokers", "--scope", "peer"])
    token = made.stdout.strip()
    server = BrokerServer(
        ServeOptions(url=place, listen=Address.parse("127.0.0.1:0"), tokens=TokenBook(file), peers=Peers(token=token))
    )
    await server.start()
    caplog.set_level(logging.INFO, "casque.audit")
    shard = GrpcShard(server.address, 0, token=token)
    try:
        while not server.standing().led:
            await server.changed()
        asked = shard.within(Reach(zones=frozenset({"acme"}))) if limited else shard
        named = {"cancel", "retry", "reschedule", "set_schedule", "pause_schedule", "drop_schedule"}
        for verb in sorted(named if limited else ACTS):
            caplog.clear()
            with suppress(CasqueError):
                await asked.call(KINDS[verb](**ACTS[verb]))

            [line] = [line for line in written(caplog) if line.startswith(f"{verb}(")]
            assert "by 'the brokers' (token " in line
            assert "over gRPC" in line
    finally:
        await shard.close()
        await server.stop()
