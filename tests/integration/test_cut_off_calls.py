"""A call that is cancelled under its caller: no wire makes a success of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, cast

import grpc
import pytest

from casque.client.loop_thread import LoopThread, result_of
from casque.client.queue import DEFAULTS
from casque.client.remote import RemoteQueue, RemoteService
from casque.clock import SystemClock, system_random, yield_once
from casque.codec.staged import staged_key
from casque.environment import Environment
from casque.errors import CasqueError, NoLeaderError, QueueClosedError, UnknownOutcomeError
from casque.service import Lease, Outcome, QueueService
from casque.service.requests import Ack, Dequeue
from casque.storage.memory import MemoryStore
from casque.testing.gated import GatedStore
from casque.testing.hosting import FixedHost, leading
from casque.testing.service_suite.jobs import a_job
from casque.transport.border import admit
from casque.transport.errors import to_wire
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.grpc import packets
from casque.transport.grpc.casque_v1_pb2 import Packet
from casque.transport.grpc.door import Door, GrpcLimits
from casque.transport.grpc.session import Session
from casque.transport.http.client import HttpService
from casque.transport.http.server import HttpServer
from casque.types import Gate, JobSpec, ScheduleSpec, ZoneRules
from tests.support.over_grpc import over_grpc, serving

VERBS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "enqueue": (([a_job(b"1")],), {}),
    "dequeue": ((), {"entrypoints": None, "limit": 1}),
    "ack": (("job",), {"token": 1}),
    "nack": (("job",), {"token": 1}),
    "settle": (([Outcome("job", 1)],), {}),
    "heartbeat": (("job",), {"token": 1}),
    "heartbeats": (([Lease("job", 1)],), {}),
    "give_back": (("job",), {"token": 1}),
    "cancel": (("job",), {}),
    "retry": (("job",), {}),
    "purge": ((), {}),
    "requeue_stale": ((60_000,), {}),
    "set_gate": ((Gate.PAUSED,), {}),
    "set_zone": (("zone", ZoneRules()), {}),
    "zones": ((), {}),
    "peek_zones": ((), {}),
    "lease_zone": (("zone",), {}),
    "heartbeat_zone": (("zone",), {"token": 1}),
    "release_zone": (("zone",), {"token": 1}),
    "find": (("job",), {}),
    "jobs": ((), {}),
    "stats": ((), {}),
    "set_schedule": ((ScheduleSpec("nightly", "0 3 * * *", JobSpec("", "send", b"")),), {}),
    "schedules": ((), {}),
    "pause_schedule": (("nightly",), {"paused": True}),
    "drop_schedule": (("nightly",), {}),
}


PART = staged_key("txn", 0, system_random())
REQUESTS: dict[str, dict[str, Any]] = {
    "Enqueue": {"jobs": [{"entrypoint": "send"}]},
    "Admit": {"source": "shop", "batch": 1, "parts": [{"key": PART, "sha256": "0" * 64, "jobs": 1, "bytes": 1}]},
    "Settle": {"outcomes": [{"job_id": "job", "token": 1}]},
    "RequeueStale": {"older_ms": 60_000},
    "Heartbeat": {"leases": [{"job_id": "job"}]},
    "SetGate": {"gate": "GATE_PAUSED"},
    "SetSchedule": {"schedule": {"name": "nightly", "cron": "0 3 * * *", "job": {"entrypoint": "send"}}},
    **{name: {"name": "nightly"} for name in ("PauseSchedule", "DropSchedule")},
    **{name: {"zone": "zone", "token": 1} for name in ("HeartbeatZone", "ReleaseZone")},
    **{name: {"zone": "zone"} for name in ("LeaseZone", "SetZone")},
    **{name: {"job_id": "job"} for name in ("Ack", "Nack", "Cancel", "Retry", "Find")},
    "GiveBack": {"job_id": "job", "token": 1},
    "Reschedule": {"job_id": "job", "priority": 1},
}
"""Fields that a request needs to reach the queue."""


class CalledOff:
    """A queue in which whatever a call waits for is cancelled."""

    def __getattr__(self, name: str) -> Any:
        async def called_off(*_: Any, **__: Any) -> Any:
            waiting = asyncio.get_running_loop().create_future()
            waiting.cancel()
            return await waiting

        return called_off

    async def events(self, **_: Any) -> AsyncGenerator[Any]:
        yield await self.stats()

    archive = events


def a_host() -> FixedHost:
    queue: Any = CalledOff()
    return FixedHost(queue)


@asynccontextmanager
async def over_http(host: FixedHost) -> AsyncIterator[HttpService]:
    server = HttpServer(host, listen="127.0.0.1:0")
    await server.start()
    client = HttpService(f"http://127.0.0.1:{server.port}")
    try:
        yield client
    finally:
        await client.close()
        await server.stop(1)


@pytest.mark.parametrize("reach", [over_grpc, over_http])
async def test_every_verb_that_is_cancelled_under_its_caller_has_an_unknown_outcome(reach: Any) -> None:
    async with reach(a_host()) as client:
        for verb, (given, named) in VERBS.items():
            with pytest.raises(UnknownOutcomeError):
                async with asyncio.timeout(20):
                    print(verb, await getattr(client, verb)(*given, **named))


@pytest.mark.parametrize("reach", [over_grpc, over_http])
async def test_a_stream_that_is_cancelled_under_its_reader_does_not_end_as_if_it_were_whole(reach: Any) -> None:
    async with reach(a_host()) as client:
        for stream in (
            client.events(from_position=0, follow=False),
            client.archive(since=datetime(2026, 1, 1, tzinfo=UTC)),
        ):
            with pytest.raises(CasqueError):
                async with asyncio.timeout(20):
                    print([value async for value in stream])


async def test_a_unary_call_that_is_cancelled_under_its_caller_is_not_ok() -> None:
    async with serving(a_host()) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        for method in pb.DESCRIPTOR.services_by_name["Queue"].methods:
            if method.server_streaming:
                continue
            call = channel.unary_unary(
                f"/casque.v1.Queue/{method.name}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=getattr(pb, method.output_type.name).FromString,
            )
            request = getattr(pb, method.input_type.name)(**REQUESTS.get(method.name, {}))
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call(request, timeout=20)
            assert raised.value.code().name == "UNKNOWN", (method.name, raised.value.details())


class Nowhere:
    """Finds no leader, ever."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def find(self) -> str:
        self.asked.set()
        raise NoLeaderError("the brokers are electing one")

    async def close(self) -> None:
        pass


async def test_closing_a_remote_queue_answers_those_who_wait_for_its_leader() -> None:
    finder = Nowhere()

    def connect(address: str) -> Any:
        raise AssertionError(address)

    queue = RemoteQueue(finder, connect, Environment(DEFAULTS))
    calls = [asyncio.create_task(queue.ack("job", token=1)) for _ in range(3)]
    await finder.asked.wait()
    await yield_once()

    await queue.close()

    async with asyncio.timeout(10):
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [QueueClosedError] * 3
    assert not any(call.cancelled() for call in calls)


def test_a_blocking_call_whose_loop_ends_has_an_unknown_outcome() -> None:
    thread = LoopThread("ends")
    begun = threading.Event()

    async def never() -> None:
        begun.set()
        await asyncio.Event().wait()

    call = thread.begin(never())
    begun.wait()

    thread.end()

    with pytest.raises(UnknownOutcomeError):
        result_of(call)


# --- A stop at every step of a session ---


class Script:
    """gRPC's context of a stream: one packet comes in, and what goes out is kept."""

    def __init__(self, *calls: packets.Call) -> None:
        self._calls = [Packet(body=packets.encode(calls))]
        self.answers: list[packets.Answer] = []

    async def send_initial_metadata(self, _metadata: Any) -> None:
        pass

    async def read(self) -> Any:
        if self._calls:
            return self._calls.pop()
        return await asyncio.Event().wait()

    async def write(self, packet: Packet) -> None:
        await yield_once()
        self.answers += packets.decode_answers(packet.body)


HOW = ("door closes", "queue stops", "both", "handler is cancelled", "leader is gone")


class Here:
    """A queue at an address, until its leader is gone; then the finder finds nobody."""

    address = "here"

    def __init__(self, service: QueueService) -> None:
        self._service = service
        self.gone = False

    def __getattr__(self, name: str) -> Any:
        if self.gone:
            raise NoLeaderError("this broker is stopping")
        return getattr(self._service, name)

    async def find(self) -> str:
        await yield_once()
        if self.gone:
            raise NoLeaderError("the brokers are electing one")
        return self.address

    async def close(self) -> None:
        pass


async def stopped_after(steps: int, how: str) -> bool:
    """An ack, a claim and a waiting claim on one stream, and a stop that comes so many steps of the loop later. Whether
    the session was still at work then."""
    store = GatedStore(MemoryStore())
    async with leading(store) as host:
        await host.queue.enqueue([a_job(b"1"), a_job(b"2")])
        [job] = await host.queue.dequeue(entrypoints=None, limit=1)
        group = host.queue._executor  # type: ignore[attr-defined]
        here = Here(host.queue)
        through = RemoteQueue(
            here,
            lambda _address: cast(RemoteService, here),
            Environment(DEFAULTS),
        )
        if how == "leader is gone":
            host.queue = through
        door = Door(host, admit(None), GrpcLimits(), clock=SystemClock(), rng=system_random())
        script = Script(
            packets.Call(1, Ack(job.id, job.token, request_id="r-1")),
            packets.Call(2, Dequeue(None, 1, request_id="r-2")),
            packets.Call(3, Dequeue(("other",), 1, wait_s=60.0, request_id="r-3")),
        )
        session = asyncio.create_task(Session(door, admit(None)(None), script).run())
        for _ in range(steps):
            await yield_once()
        at_work = len(script.answers) < 2
        match how:
            case "door closes":
                door.close()
            case "queue stops":
                await group.stop()
                door.close()
            case "both":
                stopping = asyncio.create_task(group.stop())
                door.close()
                await stopping
            case "handler is cancelled":
                session.cancel()
            case "leader is gone":  # as when the brokers of a ring stop one after the other
                here.gone = True
                for _ in range(5):
                    await yield_once()
                await through.close()
                door.close()
        async with asyncio.timeout(20):
            await asyncio.gather(session, return_exceptions=True)
        await door.settled()
    async with leading(store) as after:
        jobs = {one.id: one.state.value for one in await after.queue.jobs()}
    answers = {answer.number: answer for answer in script.answers}
    acked, claim = answers.get(1), answers.get(2)
    if isinstance(acked, packets.Done):
        assert job.id not in jobs, (steps, how, "acknowledged, and still running")
    elif isinstance(acked, packets.Failed) and acked.error.error != "UnknownOutcomeError":
        assert jobs.get(job.id) == "running", (steps, how, acked)
    if isinstance(claim, packets.Jobs):
        claimed = {one.id for one in claim.jobs}
        assert claimed <= jobs.keys(), (steps, how, claim)
        assert all(jobs[one] == "running" for one in claimed), (steps, how, claim)
        assert claimed or "ready" in jobs.values(), (steps, how, "told that there is none, and has one")
    return at_work


async def stop_at_every_step(how: str) -> int:
    steps = 0
    while await stopped_after(steps, how):
        steps += 1
    return steps


@pytest.mark.parametrize("how", HOW)
async def test_a_stop_at_any_step_of_a_session_leaves_only_true_answers(how: str) -> None:
    assert await stop_at_every_step(how) > 5


async def test_a_session_that_takes_every_cancellation_for_a_caller_that_left_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mistake put back: a search for a leader that is cancelled becomes the answer of an ack."""

    async def serve(self: Session, service: QueueService, call: Any) -> None:
        answer: packets.Answer
        try:
            asked = call.request
            carried_out = self._claim if type(asked) is Dequeue else self._carry_out
            answer = await carried_out(service, call.number, asked)
        except asyncio.CancelledError:
            if self._over:
                raise
            answer = packets.Done(call.number)
        except CasqueError as error:
            answer = packets.Failed(call.number, to_wire(error))
        del self._running[call.number]
        self._say(answer)

    async def shared(task: asyncio.Task[Any], _ended: Exception) -> Any:
        return await asyncio.shield(task)

    monkeypatch.setattr(Session, "_serve", serve)
    monkeypatch.setattr("casque.client.remote.joined", shared)

    with pytest.raises(AssertionError, match="acknowledged, and still running"):
        await stop_at_every_step("leader is gone")
