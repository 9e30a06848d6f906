"""SIGTERM to a broker that has calls of every kind open: its callers, plain gRPC clients, hear UNAVAILABLE.

CANCELLED would be what a caller itself has done: no client goes to the next broker for it.
"""

from __future__ import annotations

import asyncio
import fcntl
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from casque import Queue
from casque.clock import SystemClock
from casque.errors import NoLeaderError, QueueClosedError, UnknownOutcomeError
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.grpc import osqueue_v1_pb2, packets
from casque.transport.grpc.client import GrpcService
from casque.transport.grpc.refusals import typed
from casque.types import JobSpec
from simulation.chaos.fleet import BrokerMember, Fleet, serve_arguments

QUEUE = "/casque.v1.Queue"
OSQUEUE = "/osqueue.v1.QueueService"
HEALTH = "/grpc.health.v1.Health"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
CLIENTS = 40


@asynccontextmanager
async def a_broker(folder: Path, *, layout: str, drain_s: float) -> AsyncIterator[BrokerMember]:
    """`casque serve` in a process of its own, which leads. It ends with 0."""
    url = (folder / "queue").as_uri()
    arguments = [*serve_arguments(url, {}, heartbeat_s=0.5, lease_s=4, layout=layout), "--drain", str(drain_s)]
    member = BrokerMember("broker", folder, arguments)
    with Fleet([member]).running():
        member.start()
        await member.ready()
        async with grpc.aio.insecure_channel(member.address) as channel:
            while await unary(channel, f"{QUEUE}/Stats", pb.StatsRequest()).code() is not grpc.StatusCode.OK:
                await SystemClock().sleep(0.02)
        yield member
        assert await member.ended(within_s=40) == 0, member.last_words()


@contextmanager
def writes_that_hang(queue: Path) -> Iterator[None]:
    """Hold all locks of the local files, as a process that is stopped within a write does."""
    with ExitStack() as held:
        for number in range(64):
            lock = held.enter_context((queue / ".casque" / "locks" / f"{number:02d}").open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def unary(channel: grpc.aio.Channel, method: str, request: Message) -> Any:
    return channel.unary_unary(method, request_serializer=_bytes_of)(request)


def streamed(channel: grpc.aio.Channel, method: str, request: Message) -> Any:
    return channel.unary_stream(method, request_serializer=_bytes_of)(request)


def unsent(channel: grpc.aio.Channel, method: str) -> Any:
    """A call that has begun, and whose request does not come."""
    return channel.stream_stream(method)()


async def all_begun(channel: grpc.aio.Channel) -> None:
    """Until the broker has all calls of this connection: they arrive in order."""
    await unary(channel, f"{HEALTH}/Check", health_pb2.HealthCheckRequest())


async def error_of(call: Any) -> grpc.aio.AioRpcError:
    """The status that ended a call, whatever came before it."""
    try:
        if isinstance(call, grpc.aio.UnaryUnaryCall):
            await call
        else:
            while await call.read() is not grpc.aio.EOF:
                pass
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError(f"{call} ended as {await call.code()}")


async def test_calls_under_way_end_as_unavailable_and_none_is_acknowledged_that_was_not_written(tmp_path: Path) -> None:
    async with (
        a_broker(tmp_path, layout="document", drain_s=1.5) as broker,
        grpc.aio.insecure_channel(broker.address) as channel,
        # Its own connection: the broker ends that of a reader which takes nothing.
        grpc.aio.insecure_channel(broker.address, options=[("grpc.use_local_subchannel_pool", 1)]) as slow,
    ):
        large = pb.EnqueueRequest(jobs=[pb.NewJob(entrypoint="large", payload=bytes(200_000)) for _ in range(30)])
        await unary(channel, f"{QUEUE}/Enqueue", large)
        waiting = unary(channel, f"{QUEUE}/Dequeue", pb.DequeueRequest(entrypoints=["none"], wait_ms=300_000))
        reading = streamed(slow, f"{QUEUE}/List", pb.ListRequest())
        await all_begun(slow)
        with writes_that_hang(tmp_path / "queue"):
            calls = {
                "Enqueue": unary(channel, f"{QUEUE}/Enqueue", _new(b"Enqueue")),
                "Dequeue": unary(channel, f"{QUEUE}/Dequeue", pb.DequeueRequest()),
                "Push": unary(channel, f"{OSQUEUE}/Push", osqueue_v1_pb2.PushRequest(data=b"Push")),
                "Claim": unary(channel, f"{OSQUEUE}/Claim", osqueue_v1_pb2.ClaimRequest(worker_id="w")),
                "Watch": streamed(channel, f"{HEALTH}/Watch", health_pb2.HealthCheckRequest()),
                "Exchange": unsent(channel, f"{QUEUE}/Exchange"),
                "Reflection": unsent(channel, REFLECTION),
                "unsent Check": unsent(channel, f"{HEALTH}/Check"),
                "unsent Enqueue": unsent(channel, f"{QUEUE}/Enqueue"),
                "unsent Push": unsent(channel, f"{OSQUEUE}/Push"),
            }
            await all_begun(channel)
            broker.signal(signal.SIGTERM)
            assert list(pb.DequeueResponse.FromString(await waiting).jobs) == []
            errors = {name: await error_of(call) for name, call in calls.items()}
        await broker.ended(within_s=40)
        errors["List"] = await error_of(reading)  # which has taken nothing until now

    assert {name: error.code().name for name, error in errors.items()} == dict.fromkeys(errors, "UNAVAILABLE")
    async with Queue.open((tmp_path / "queue").as_uri()) as queue:
        there = {job.payload for job in await queue.jobs()}
    said = {name: typed(errors[name]) for name in ("Enqueue", "Push")}
    for name, error in said.items():
        assert isinstance(error, UnknownOutcomeError | QueueClosedError | NoLeaderError)
        # In doubt it may be there; refused, it may not.
        assert isinstance(error, UnknownOutcomeError) or name.encode() not in there


async def test_a_call_on_an_exchange_that_cannot_be_written_is_answered_as_unknown(tmp_path: Path) -> None:
    async with a_broker(tmp_path, layout="document", drain_s=0.5) as broker:
        service = GrpcService(broker.address)
        await service.stats()
        with writes_that_hang(tmp_path / "queue"):
            adding = asyncio.create_task(service.enqueue([JobSpec("1", "send", b"")]))
            async with grpc.aio.insecure_channel(broker.address) as channel:
                stream = unsent(channel, f"{QUEUE}/Exchange")
                assert packets.HELLO in list(await stream.initial_metadata())
                broker.signal(signal.SIGTERM)
                assert (await error_of(stream)).code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(UnknownOutcomeError):
                await adding
        await service.close()


async def test_readers_of_the_history_hear_that_the_broker_is_unavailable(tmp_path: Path) -> None:
    async with (
        a_broker(tmp_path, layout="log", drain_s=10) as broker,
        grpc.aio.insecure_channel(broker.address) as channel,
    ):
        await unary(channel, f"{QUEUE}/Enqueue", _new(b"1"))
        calls = {
            "Watch": streamed(channel, f"{QUEUE}/Watch", pb.WatchRequest(from_position=0)),
            "unsent Watch": unsent(channel, f"{QUEUE}/Watch"),
            "unsent Archive": unsent(channel, f"{QUEUE}/Archive"),
            "unsent List": unsent(channel, f"{QUEUE}/List"),
        }
        await all_begun(channel)
        assert await calls["Watch"].read() is not grpc.aio.EOF
        broker.signal(signal.SIGTERM)
        codes = {name: (await error_of(call)).code().name for name, call in calls.items()}
    assert codes == dict.fromkeys(calls, "UNAVAILABLE")


async def test_callers_that_never_stop_calling_hear_unavailable_only(tmp_path: Path) -> None:
    """The moment at which gRPC itself refuses calls: those that it had taken and not handed over were cancelled."""
    heard: Counter[str] = Counter()
    pushed: set[str] = set()
    warm = asyncio.Semaphore(0)
    methods = {
        f"{QUEUE}/Stats": pb.StatsRequest(),
        f"{HEALTH}/Check": health_pb2.HealthCheckRequest(),
        f"{OSQUEUE}/Push": osqueue_v1_pb2.PushRequest(data=b"1"),
        f"{QUEUE}/Enqueue": _new(b"2"),
    }

    async def call_for_ever(number: int, address: str) -> None:
        """Until there is no connection any more."""
        method, request = list(methods.items())[number % len(methods)]
        own = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(address, options=own) as channel:
            while True:
                try:
                    answer = await unary(channel, method, request)
                    warm.release()
                    if method.endswith("Push"):
                        pushed.add(osqueue_v1_pb2.PushResponse.FromString(answer).job_id)
                except grpc.aio.AioRpcError as error:
                    heard[error.code().name] += 1
                    if typed(error) is None:
                        return

    async with a_broker(tmp_path, layout="log", drain_s=10) as broker:
        callers = [asyncio.create_task(call_for_ever(number, broker.address)) for number in range(CLIENTS)]
        for _ in range(3 * CLIENTS):
            await warm.acquire()
        broker.signal(signal.SIGTERM)
        await asyncio.gather(*callers)

    assert heard.keys() == {"UNAVAILABLE"}
    async with Queue.open((tmp_path / "queue").as_uri()) as queue:
        assert pushed <= {job.id for job in await queue.jobs()}


async def test_a_reflection_that_is_asked_before_the_stop_is_answered(tmp_path: Path) -> None:
    async with (
        a_broker(tmp_path, layout="log", drain_s=10) as broker,
        grpc.aio.insecure_channel(broker.address) as channel,
    ):
        call = channel.stream_stream(
            REFLECTION,
            request_serializer=_bytes_of,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        services = {one.name for one in (await call.read()).list_services_response.service}
        broker.signal(signal.SIGTERM)
        assert (await error_of(call)).code() is grpc.StatusCode.UNAVAILABLE
    assert services >= {"casque.v1.Queue", "osqueue.v1.QueueService", "grpc.health.v1.Health"}


def _new(payload: bytes) -> pb.EnqueueRequest:
    return pb.EnqueueRequest(jobs=[pb.NewJob(entrypoint="send", payload=payload)])


def _bytes_of(message: Message) -> bytes:
    return message.SerializeToString()
