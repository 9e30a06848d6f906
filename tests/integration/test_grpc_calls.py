"""casque.v1.Queue as programs in other languages use it: calls, streams, health, reflection, tokens and TLS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
import trustme
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from casque.clock import SystemClock
from casque.errors import (
    BrokerUnreachableError,
    NoLeaderError,
    NotAllowedError,
    NotAuthenticatedError,
    QueueLedError,
)
from casque.service import ArchivedAttempt, ArchivedJob, Role, Standing
from casque.testing.hosting import FixedHost, Noticing, leading
from casque.testing.service_suite.jobs import a_claim, a_dead_job, a_job
from casque.transport import tokenfile
from casque.transport.access import TokenBook
from casque.transport.border import admit
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.grpc.client import ClientTls
from casque.transport.grpc.server import GrpcServer
from casque.transport.scopes import Scope
from casque.transport.tls import TlsFiles
from casque.types import Ending, JobState
from tests.support.over_grpc import calling, serving


class Stub:
    """What a code generator would make: a method for each of the service's, by its name."""

    def __init__(self, channel: grpc.aio.Channel, token: str | None = None) -> None:
        self._channel = channel
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)

    def __getattr__(self, name: str) -> Any:
        method = pb.DESCRIPTOR.services_by_name["Queue"].methods_by_name[name]
        kind = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
        request, response = getattr(pb, method.input_type.name), getattr(pb, method.output_type.name)
        call = kind(
            f"/casque.v1.Queue/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return lambda timeout=60, **fields: call(request(**fields), timeout=timeout, metadata=self._metadata)


@asynccontextmanager
async def calls_to(server: GrpcServer, token: str | None = None) -> AsyncIterator[Stub]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield Stub(channel, token)


@asynccontextmanager
async def a_queue(name: str, **options: Any) -> AsyncIterator[tuple[FixedHost, Stub]]:
    async with leading(f"memory://calls-{name}") as host, serving(host, **options) as server, calls_to(server) as stub:
        yield host, stub


async def refused(call: Any) -> tuple[str, dict[str, Any]]:
    """The code, and what casque says about it."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    said = dict(raised.value.trailing_metadata() or ()).get("casque-error-bin", b"{}")
    assert isinstance(said, bytes)
    return raised.value.code().name, json.loads(said)


# --- Verbs ---


async def test_a_job_from_the_first_call_to_the_last() -> None:
    async with a_queue("life") as (host, stub):
        added = await stub.Enqueue(
            jobs=[
                pb.NewJob(entrypoint="send", payload=b"\0\xff", headers={"a": "b"}, priority=-5, zone="acme", key="k")
            ]
        )
        claimed = await stub.Dequeue(entrypoints=["send"], worker="w-1", lease_ms=5000)
        [job] = claimed.jobs
        beaten = await stub.Heartbeat(leases=[pb.Lease(job_id=job.id, token=job.token)])
        await stub.Ack(job_id=job.id, token=job.token, result=b"fine")

        assert [one.id for one in added.jobs] == [job.id]
        assert (job.payload, job.priority, job.zone, job.key, dict(job.headers)) == (
            b"\0\xff",
            -5,
            "acme",
            "k",
            {"a": "b"},
        )
        assert (job.state, job.worker, job.lease_ms, job.attempts) == (pb.JOB_STATE_RUNNING, "w-1", 5000, 1)
        assert job.max_attempts == 25
        assert beaten.answers[0].job.id == job.id
        assert not (await stub.Find(job_id=job.id)).HasField("job")
        assert (await stub.Stats()).done == 1
        assert (await host.queue.stats()).totals.done == 1


async def test_what_a_job_does_not_say_is_not_there() -> None:
    async with a_queue("unset") as (host, stub):
        [added] = (await stub.Enqueue(jobs=[pb.NewJob(entrypoint="send", max_attempts=0)])).jobs

        [found] = await host.queue.jobs()

        assert (found.spec.payload, found.spec.max_attempts, found.spec.key, found.spec.headers) == (
            b"",
            None,
            None,
            None,
        )
        assert (found.spec.zone, found.spec.run_at_ms, found.id) == (None, None, added.id)
        for field in ("max_attempts", "key", "zone", "run_at_ms", "worker", "claimed_at_ms", "error"):
            assert not added.HasField(field), field


async def test_a_delay_is_by_the_brokers_clock_and_excludes_a_time() -> None:
    async with a_queue("delay") as (host, stub):
        [later] = (await stub.Enqueue(jobs=[pb.NewJob(entrypoint="e", delay_ms=3_600_000)])).jobs

        both = pb.NewJob(entrypoint="e", delay_ms=1, run_at_ms=1)
        code, said = await refused(stub.Enqueue(jobs=[both]))

        assert later.state == pb.JOB_STATE_DELAYED
        assert later.due_at_ms - later.created_at_ms == pytest.approx(3_600_000, abs=1000)
        assert (code, said["error"]) == ("INVALID_ARGUMENT", "InvalidInputError")
        assert (await refused(stub.Enqueue(jobs=[pb.NewJob(entrypoint="e", delay_ms=-1)])))[0] == "INVALID_ARGUMENT"
        assert len(await host.queue.jobs()) == 1


async def test_an_enqueue_is_repeated_by_its_request_id() -> None:
    async with a_queue("repeat") as (host, stub):
        first = await stub.Enqueue(jobs=[pb.NewJob(entrypoint="e")] * 3, request_id="r-1")
        again = await stub.Enqueue(jobs=[pb.NewJob(entrypoint="e")] * 3, request_id="r-1")

        assert [job.id for job in first.jobs] == [job.id for job in again.jobs]
        assert len(await host.queue.jobs()) == 3


async def test_what_the_border_refuses_is_refused() -> None:
    async with a_queue("border") as (host, stub):
        for call in (
            stub.Enqueue(jobs=[pb.NewJob(entrypoint="")]),
            stub.Enqueue(jobs=[pb.NewJob(entrypoint="new\nline")]),
            stub.Enqueue(jobs=[pb.NewJob(entrypoint="e", max_attempts=-1)]),
            stub.Dequeue(limit=-1),
            stub.Dequeue(limit=1_000_000),
            stub.Dequeue(wait_ms=-1),
            stub.Dequeue(lease_ms=-1),
            stub.Nack(job_id="j", delay_ms=-1),
            stub.Nack(job_id="j", backoff=pb.Backoff(base_ms=2, cap_ms=1)),
            stub.Ack(job_id="j", request_id="x" * 1000),
        ):
            code, said = await refused(call)
            assert (code, said["error"]) == ("INVALID_ARGUMENT", "InvalidInputError")

        assert (await host.queue.stats()).position == 0


async def test_a_long_poll_gets_the_job_that_comes() -> None:
    async with a_queue("poll") as (host, stub):
        host.queue = noticing = Noticing(host.queue)
        waiting = asyncio.create_task(_awaited(stub.Dequeue(entrypoints=["e"], wait_ms=60_000, limit=5)))
        await noticing.came.wait()
        [added] = await host.queue.enqueue([a_job(b"1", entrypoint="e")])

        assert [job.id for job in (await waiting).jobs] == [added.id]


async def test_a_call_whose_deadline_passes_takes_no_job_with_it() -> None:
    async with a_queue("deadline") as (host, stub):
        host.queue = noticing = Noticing(host.queue)
        assert (await refused(stub.Dequeue(wait_ms=60_000, timeout=0.05)))[0] == "DEADLINE_EXCEEDED"
        await noticing.left.wait()
        await host.queue.enqueue([a_job(b"1")])

        [job] = await host.queue.dequeue(entrypoints=None, limit=1)

        assert job.attempts == 1


async def test_a_call_that_is_cancelled_takes_no_job_with_it() -> None:
    async with a_queue("cancelled") as (host, stub):
        host.queue = noticing = Noticing(host.queue)
        call = stub.Dequeue(wait_ms=60_000)
        await noticing.came.wait()
        call.cancel()
        await noticing.left.wait()
        await host.queue.enqueue([a_job(b"1")])

        [job] = await host.queue.dequeue(entrypoints=None, limit=1)

        assert job.attempts == 1


async def test_more_than_a_client_would_take_in_one_message_is_left_for_the_next() -> None:
    async with a_queue("large") as (host, stub):
        await host.queue.enqueue([a_job(bytes(1_500_000)) for _ in range(4)])

        first = await stub.Dequeue(limit=4)
        [whole] = await host.queue.enqueue([a_job(bytes(100_000), entrypoint="alone")])

        assert len(first.jobs) == 2
        others = [await host.queue.dequeue(entrypoints=("task",), limit=1, wait_s=60) for _ in range(2)]
        assert all(job.attempts == 1 for [job] in others)
        assert (await stub.Dequeue(entrypoints=["alone"])).jobs[0].id == whole.id


async def test_many_outcomes_in_one_call() -> None:
    async with a_queue("settling") as (host, stub):
        done, failed, lost = [await a_claim(host.queue) for _ in range(3)]
        outcomes = [
            pb.Outcome(job_id=done.id, token=done.token, result=b"fine"),
            pb.Outcome(job_id=lost.id, token=lost.token + 9),
            pb.Outcome(job_id=failed.id, token=failed.token, error="no", backoff=pb.Backoff(base_ms=9, cap_ms=9)),
            pb.Outcome(job_id="nobody", token=1),
            pb.Outcome(job_id=lost.id, token=0),
        ]
        first = await stub.Settle(outcomes=outcomes, request_id="r-1")
        again = await stub.Settle(outcomes=outcomes, request_id="r-1")

        assert first == again
        assert [(one.name, one.code, list(one.places)) for one in first.refused] == [
            ("LeaseLostError", "FAILED_PRECONDITION", [1, 4]),
            ("JobNotFoundError", "NOT_FOUND", [3]),
        ]
        assert await host.queue.find(done.id) is None
        job = await host.queue.find(failed.id)
        assert job is not None
        assert job.error == "no"
        [code, *_] = await refused(stub.Settle(outcomes=[pb.Outcome(job_id="j", token=1, delay_ms=1)]))
        assert code == "INVALID_ARGUMENT"
        assert not (await stub.Settle()).refused


async def test_failing_dying_retrying_and_purging() -> None:
    async with a_queue("dying") as (host, stub):
        dead = await a_dead_job(host.queue, entrypoint="other")
        job = await a_claim(host.queue, max_attempts=2)
        failed = await stub.Nack(job_id=job.id, token=job.token, error="no", backoff=pb.Backoff(base_ms=20, cap_ms=20))
        [again] = (await stub.Dequeue(wait_ms=60_000)).jobs
        died = await stub.Nack(job_id=again.id, token=again.token)
        revived = await stub.Retry(job_id=job.id)

        assert (failed.job.state, failed.job.error, failed.job.payload) == (pb.JOB_STATE_DELAYED, "no", b"")
        assert died.job.state == pb.JOB_STATE_DEAD
        assert (revived.job.state, revived.job.attempts) == (pb.JOB_STATE_READY, 0)
        [tried] = again.tries
        assert (tried.how, tried.error, tried.token) == (pb.ENDING_FAILED, "no", job.token)
        assert tried.claimed_at_ms == job.claimed_ms <= tried.ended_at_ms <= again.claimed_at_ms
        assert not tried.HasField("worker")
        found = (await stub.Find(job_id=job.id)).job
        assert [one.token for one in found.tries] == [job.token, again.token]
        assert not revived.job.tries, "an answer without a payload is short"
        assert (await stub.Purge(entrypoint="nothing")).purged == 0
        assert (await stub.Purge()).purged == 1
        assert await host.queue.find(dead.id) is None
        await stub.Cancel(job_id=job.id)
        assert (await refused(stub.Cancel(job_id=job.id)))[0] == "NOT_FOUND"


async def test_a_zone_is_leased_worked_off_and_released() -> None:
    async with a_queue("zones") as (_, stub):
        await stub.Enqueue(jobs=[pb.NewJob(entrypoint="mail", zone="acme"), pb.NewJob(entrypoint="mail", zone="zeta")])
        peeked = await stub.PeekZones(entrypoints=["mail"], names=["acme"])
        assert [(zone.zone, zone.due, zone.fifo) for zone in peeked.zones] == [("acme", True, False)]
        lease = (await stub.LeaseZone(zone="acme", lease_ms=30_000, worker="w1")).lease
        assert (lease.zone, lease.lease_ms, lease.worker) == ("acme", 30_000, "w1")
        assert not (await stub.LeaseZone(zone="acme")).HasField("lease")
        assert [job.zone for job in (await stub.Dequeue(limit=10)).jobs] == ["zeta"]
        shown = pb.ZoneLease(zone=lease.zone, token=lease.token)
        assert [job.zone for job in (await stub.Dequeue(limit=10, zone_lease=shown)).jobs] == ["acme"]
        beaten = (await stub.HeartbeatZone(zone="acme", token=lease.token)).lease
        assert beaten.beat_at_ms > lease.beat_at_ms
        [standing] = (await stub.Zones(names=["acme"])).zones
        assert standing.lease.token == lease.token
        await stub.ReleaseZone(zone="acme", token=lease.token)
        code, said = await refused(stub.Dequeue(zone_lease=shown))
        assert (code, said["error"]) == ("FAILED_PRECONDITION", "ZoneLeaseLostError")


async def test_heartbeats_have_an_answer_each() -> None:
    async with a_queue("beats") as (host, stub):
        job = await a_claim(host.queue)

        found = await stub.Heartbeat(
            leases=[pb.Lease(job_id=job.id), pb.Lease(job_id=job.id, token=99), pb.Lease(job_id="nobody")]
        )

        kept, lost, missing = found.answers
        assert (kept.job.id, kept.job.token) == (job.id, job.token)
        assert (lost.error.name, lost.error.code) == ("LeaseLostError", "FAILED_PRECONDITION")
        assert "the lease on job" in lost.error.message
        assert (missing.error.name, missing.error.code) == ("JobNotFoundError", "NOT_FOUND")
        await stub.GiveBack(job_id=job.id, token=job.token)
        assert (await host.queue.stats()).totals.ready == 1


# --- Streams ---


async def test_a_listing_comes_in_messages_that_any_client_takes() -> None:
    async with a_queue("list") as (host, stub):
        dead = await a_dead_job(host.queue)
        added = await host.queue.enqueue([a_job(bytes(1000), entrypoint="many") for _ in range(3000)])

        pieces = [piece async for piece in stub.List(entrypoint="many")]
        some = [piece async for piece in stub.List(limit=2, after=added[0].sequence)]
        dying = [piece async for piece in stub.List(states=[pb.JOB_STATE_DEAD])]

        assert len(pieces) > 1
        assert all(piece.ByteSize() < 4 * 1024 * 1024 for piece in pieces)
        assert [job.id for piece in pieces for job in piece.jobs] == [job.id for job in added]
        assert [job.id for piece in some for job in piece.jobs] == [added[1].id, added[2].id]
        assert [job.id for piece in dying for job in piece.jobs] == [dead.id]
        with pytest.raises(grpc.aio.AioRpcError, match="JOB_STATE_READY"):
            [piece async for piece in stub.List(states=[0])]


async def test_events_are_json_inside() -> None:
    async with a_queue("watch") as (host, stub):
        job = await a_claim(host.queue, b"\xff")
        await host.queue.ack(job.id, token=job.token)

        pieces = [piece async for piece in stub.Watch(from_position=0, until_now=True)]

        events = [event for piece in pieces for event in piece.events]
        assert [event.kind for event in events] == ["added", "claimed", "acked"]
        assert [event.job_id for event in events] == [job.id] * 3
        assert json.loads(events[0].fields)["payload"] == "/w=="
        assert json.loads(events[1].fields)["token"] == job.token
        assert events[0].at_ms == job.created_ms


async def test_a_watch_goes_on_until_it_is_left() -> None:
    async with a_queue("follow") as (host, stub):
        call = stub.Watch(from_position=0)
        for n in range(3):
            [job] = await host.queue.enqueue([a_job(b"%d" % n)])
            piece = await call.read()
            assert [event.job_id for event in piece.events] == [job.id]
        call.cancel()
        await stub.Stats()


class Archiving(FixedHost):
    """A queue with finished jobs in its archive, and a note of what was asked for."""

    def __init__(self, finished: list[ArchivedJob]) -> None:
        super().__init__(self)  # type: ignore[arg-type]
        self.finished = finished
        self.asked: dict[str, Any] = {}

    async def archive(self, **asked: Any) -> AsyncGenerator[ArchivedJob]:
        self.asked = asked
        for job in self.finished:
            yield job


def a_finished_job(n: int, **fields: Any) -> ArchivedJob:
    moment = datetime(2026, 2, 15, 10, 0, n % 60, tzinfo=UTC)
    return ArchivedJob(f"job-{n}", "send", bytes(n), JobState.DONE, 1, moment, moment, moment, n, n, **fields)


async def test_the_archive_is_a_stream_of_finished_jobs() -> None:
    moment = datetime(2026, 2, 15, 10, 30, 0, 250_000, tzinfo=UTC)
    rich = a_finished_job(7, claimed_at=moment, worker="w", error="e", result=b"\xff", headers={"a": "b"}, zone="z")
    tried = ArchivedAttempt(moment, Ending.EXPIRED, moment, "w-0", 5, "late")
    rich = msgspec.structs.replace(rich, tries=(tried, ArchivedAttempt(moment, Ending.FAILED)), waiting=True)
    host = Archiving([a_finished_job(n) for n in range(2500)] + [rich])
    async with serving(host) as server, calls_to(server) as stub, calling(server) as client:
        pieces = [piece async for piece in stub.Archive(since_ms=1000, states=[pb.JOB_STATE_DONE])]
        asked_by_message = host.asked
        found = [
            job
            async for job in client.archive(
                since=moment, until=moment, entrypoint="send", states=frozenset({JobState.DEAD})
            )
        ]

    assert found == host.finished
    assert host.asked == {"since": moment, "until": moment, "entrypoint": "send", "states": frozenset({JobState.DEAD})}
    assert asked_by_message == {
        "since": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "until": None, "entrypoint": None,
        "states": frozenset({JobState.DONE}),
    }  # fmt: skip
    jobs = [job for piece in pieces for job in piece.jobs]
    assert [job.id for job in jobs] == [job.id for job in host.finished]
    last = jobs[-1]
    assert (last.worker, last.error, last.result, dict(last.headers), last.zone) == ("w", "e", b"\xff", {"a": "b"}, "z")
    assert last.claimed_at_ms - last.finished_at_ms == (moment - rich.finished_at).total_seconds() * 1000
    assert not jobs[0].HasField("worker")
    assert not jobs[0].tries
    assert (last.waiting, jobs[0].waiting) == (True, False)
    first, second = last.tries
    assert (first.how, first.worker, first.token, first.error) == (pb.ENDING_EXPIRED, "w-0", 5, "late")
    assert first.claimed_at_ms == first.ended_at_ms == last.claimed_at_ms
    assert (second.how, second.HasField("claimed_at_ms"), second.HasField("error")) == (pb.ENDING_FAILED, False, False)


# --- Who leads ---


async def test_a_broker_that_does_not_lead_says_who_does() -> None:
    async with a_queue("led") as (host, stub):
        host.refusal = QueueLedError("10.0.0.7:7700")
        code, said = await refused(stub.Stats())
        assert (code, said["error"], said["arguments"]) == ("FAILED_PRECONDITION", "QueueLedError", ["10.0.0.7:7700"])

        host.refusal = NoLeaderError("just started")
        code, said = await refused(stub.Stats())
        assert (code, said["error"], said["arguments"]) == ("UNAVAILABLE", "NoLeaderError", ["just started"])

        host.refusal = None
        assert (await stub.Stats()).enqueued == 0


async def test_a_change_of_leaders_is_heard_on_an_open_connection() -> None:
    async with leading("memory://calls-change") as host, serving(host) as server, calling(server) as client:
        await client.stats()
        host.refusal = QueueLedError("10.0.0.7:7700")
        with pytest.raises(QueueLedError) as raised:
            await client.stats()
        assert raised.value.address == "10.0.0.7:7700"
        with pytest.raises(QueueLedError):
            await client.jobs()
        host.refusal = None
        assert (await client.stats()).totals.enqueued == 0


@pytest.mark.parametrize(
    ("standing", "queue", "osqueue"),
    [
        (Standing(Role.LEADER), "SERVING", "SERVING"),
        (Standing(Role.STANDBY, leader="10.0.0.7:7700"), "SERVING", "NOT_SERVING"),
        (Standing(Role.STANDBY), "NOT_SERVING", "NOT_SERVING"),
        (Standing(Role.STARTING), "NOT_SERVING", "NOT_SERVING"),
        (Standing(Role.STOPPING, leader="10.0.0.7:7700"), "NOT_SERVING", "NOT_SERVING"),
    ],
)
async def test_health_is_whether_it_makes_sense_to_call(standing: Standing, queue: str, osqueue: str) -> None:
    async with leading("memory://calls-health") as host, serving(host) as server:
        host.stands = standing
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            health = health_pb2_grpc.HealthStub(channel)

            async def status(service: str) -> str:
                answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
                return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

            assert await status("") == await status("casque.v1.Queue") == queue
            assert await status("osqueue.v1.QueueService") == osqueue
            assert (await refused(health.Check(health_pb2.HealthCheckRequest(service="other"))))[0] == "NOT_FOUND"


async def test_a_watched_health_ends_with_the_server() -> None:
    async with (
        leading("memory://calls-health-watch") as host,
        serving(host) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        await server.stop(5)
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await watching.read()
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_program_can_ask_the_server_for_its_services() -> None:
    def look(port: int) -> tuple[set[str], list[str]]:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            pool = DescriptorPool(database)
            service = pool.FindServiceByName("casque.v1.Queue")
            return set(database.get_services()), [method.name for method in service.methods]

    async with leading("memory://calls-reflection") as host, serving(host) as server:
        services, methods = await asyncio.to_thread(look, server.port)

    assert {"casque.v1.Queue", "osqueue.v1.QueueService", "grpc.health.v1.Health"} <= services
    assert methods == [method.name for method in pb.DESCRIPTOR.services_by_name["Queue"].methods]
    assert {"Enqueue", "Dequeue", "Watch", "Exchange"} <= set(methods)


# --- Who calls ---


async def test_tokens_open_what_they_are_for(tmp_path: Path) -> None:
    now = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)
    path = tmp_path / "tokens.json"
    producer = tokenfile.add(path, name="producer", scopes=[Scope.PRODUCE], created=now)
    worker = tokenfile.add(path, name="worker", scopes=[Scope.WORK], created=now)
    async with (
        leading("memory://calls-tokens") as host,
        serving(host, admit=admit(TokenBook(path))) as server,
        calling(server, token=producer) as produces,
        calling(server, token=worker) as works,
        calling(server) as nobody,
        calling(server, token="casque_" + "0" * 12 + "_" + "0" * 64) as forger,
        calls_to(server) as stub,
        calls_to(server, worker) as working,
    ):
        await produces.enqueue([a_job(b"1"), a_job(b"2")])
        with pytest.raises(NotAllowedError) as raised:
            await produces.dequeue(entrypoints=None, limit=1)
        assert raised.value.scope == "work"
        [job] = await works.dequeue(entrypoints=None, limit=1)
        await works.ack(job.id, token=job.token)
        for client in (nobody, forger):
            with pytest.raises(NotAuthenticatedError):
                await client.stats()
            with pytest.raises(NotAuthenticatedError):
                await client.jobs()
            with pytest.raises(NotAuthenticatedError):
                [event async for event in client.events(from_position=0, follow=False)]
        assert (await refused(stub.Stats()))[0] == "UNAUTHENTICATED"
        assert (await refused(working.Enqueue(jobs=[pb.NewJob(entrypoint="e")])))[0] == "PERMISSION_DENIED"
        assert len((await working.Dequeue()).jobs) == 1


async def test_tls_and_certificates_for_both_sides(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    cert = authority.issue_cert("localhost", "127.0.0.1")
    cert.private_key_pem.write_to_path(tmp_path / "key.pem")
    cert.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    own, stranger = authority.issue_cert("client"), other.issue_cert("stranger")
    roots = authority.cert_pem.bytes()
    files = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    mutual = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem")

    def with_cert(one: trustme.LeafCert) -> ClientTls:
        return ClientTls(roots=roots, key=one.private_key_pem.bytes(), chain=one.cert_chain_pems[0].bytes())

    async with leading("memory://calls-tls") as host:
        async with serving(host, tls=files.load()) as server:
            async with calling(server, tls=ClientTls(roots=roots)) as client:
                await client.enqueue([a_job(b"1")])
                assert len(await client.jobs()) == 1
            for wrong in (ClientTls(roots=other.cert_pem.bytes()), None):
                async with calling(server, tls=wrong) as client:
                    with pytest.raises(BrokerUnreachableError):
                        await client.stats()
                    with pytest.raises(BrokerUnreachableError):
                        await client.jobs()
        async with serving(host, tls=mutual.load()) as server:
            async with calling(server, tls=with_cert(own)) as client:
                assert (await client.stats()).totals.ready == 1
            for uninvited in (with_cert(stranger), ClientTls(roots=roots)):
                async with calling(server, tls=uninvited) as client:
                    with pytest.raises(BrokerUnreachableError):
                        await client.stats()
    assert "key" not in repr(with_cert(own))


async def _awaited(call: Any) -> Any:
    return await call
