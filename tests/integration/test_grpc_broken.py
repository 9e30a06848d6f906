"""Connections that break, servers that stop or lie, limits and deadlines: what a caller hears and may believe."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import msgspec
import pytest

from casque.errors import (
    BrokerUnreachableError,
    CasqueError,
    InvalidInputError,
    NoLeaderError,
    QueueClosedError,
    UnknownOutcomeError,
)
from casque.service.requests import Ack, Dequeue, Find
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock, settle
from casque.testing.gated import GatedStore
from casque.testing.hosting import FixedHost, Instead, Noticing, leading
from casque.testing.service_suite.jobs import a_claim, a_job
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.grpc import packets
from casque.transport.grpc.casque_v1_pb2 import Packet
from casque.transport.grpc.client import GrpcService
from casque.transport.grpc.door import GrpcLimits
from casque.transport.grpc.server import GrpcServer
from casque.types import JobRecord
from tests.support.over_grpc import calling, serving

BROKER = """
import asyncio
from casque.testing.hosting import leading
from casque.transport.grpc.server import GrpcServer
from casque.types import JobRecord

async def main():
    async with leading("memory://") as host:
        server = GrpcServer(host, listen="127.0.0.1:0")
        await server.start()
        print(server.port, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def a_process() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", BROKER, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield process, f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


# --- Brokers that go ---


async def test_a_broker_that_is_killed_leaves_unknown_what_was_under_way_and_sends_nothing_after() -> None:
    async with a_process() as (process, address):
        client = GrpcService(address)
        await client.enqueue([a_job(b"1", entrypoint="other")])
        under_way = [
            asyncio.create_task(client.dequeue(entrypoints=("e",), limit=1, wait_s=60, request_id=f"r{n}"))
            for n in range(3)
        ]
        events = client.events(from_position=0)
        await anext(events)
        await client.stats()

        process.send_signal(signal.SIGKILL)
        outcomes = await asyncio.gather(*under_way, return_exceptions=True)

        assert [type(outcome) for outcome in outcomes] == [UnknownOutcomeError] * 3
        with pytest.raises(BrokerUnreachableError):
            await anext(events)
        for call in (client.stats, client.jobs, lambda: client.enqueue([a_job(b"2")])):
            with pytest.raises(BrokerUnreachableError) as raised:
                await call()
            assert raised.value.address == address
            assert raised.value.why
        await client.close()


async def test_a_broker_that_stands_still_is_noticed() -> None:
    async with a_process() as (process, address):
        client = GrpcService(address, silence_s=1.5, connect_s=0.5)
        await client.stats()
        process.send_signal(signal.SIGSTOP)

        with pytest.raises(UnknownOutcomeError):
            await client.stats()
        with pytest.raises(BrokerUnreachableError):
            await client.stats()

        process.send_signal(signal.SIGCONT)
        client._connect_s = 30
        assert (await client.stats()).totals.enqueued == 0
        await client.close()


async def test_nobody_at_the_address_is_unreachable_and_a_broker_that_comes_is_found() -> None:
    async with leading("memory://broken-late") as host:
        async with serving(host) as server:
            address = f"127.0.0.1:{server.port}"
        client = GrpcService(address)
        for _ in range(3):
            with pytest.raises(BrokerUnreachableError):
                await client.stats()

        later = GrpcServer(host, listen=address)
        await later.start()
        try:
            assert (await client.stats()).totals.enqueued == 0
            assert await client.jobs() == []
        finally:
            await client.close()
            await later.stop(1)


async def test_a_client_connects_again_after_its_broker_was_restarted() -> None:
    async with leading("memory://broken-again") as host:
        async with serving(host) as server:
            address = f"127.0.0.1:{server.port}"
            client = GrpcService(address)
            await client.enqueue([a_job(b"1")])
            assert len(await client.jobs()) == 1
        with pytest.raises(BrokerUnreachableError):
            await client.stats()
        with pytest.raises(BrokerUnreachableError):
            await client.jobs()
        again = GrpcServer(host, listen=address)
        await again.start()
        try:
            assert (await client.stats()).totals.ready == 1
            assert len(await client.jobs()) == 1
        finally:
            await client.close()
            await again.stop(1)


async def test_an_address_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = GrpcService(f"127.0.0.1:{silent.getsockname()[1]}", connect_s=0.05)
        with pytest.raises(BrokerUnreachableError, match="no answer within"):
            await client.stats()
        with pytest.raises(BrokerUnreachableError):
            await client.jobs()
        await client.close()


async def test_a_server_that_speaks_something_else_is_unreachable() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = GrpcService(f"127.0.0.1:{port}")
    with pytest.raises(BrokerUnreachableError, match="no casque broker"):
        await client.stats()
    await client.close()
    await server.stop(None)


async def test_a_closed_client_refuses_calls_and_ends_those_under_way() -> None:
    async with leading("memory://broken-closed") as host, serving(host) as server:
        host.queue = noticing = Noticing(host.queue)
        client = GrpcService(f"127.0.0.1:{server.port}")
        waiting = asyncio.create_task(client.dequeue(entrypoints=None, limit=1, wait_s=60))
        await client.stats()

        await client.close()

        with pytest.raises(UnknownOutcomeError):
            await waiting
        for call in (client.stats, client.jobs):
            with pytest.raises(QueueClosedError):
                await call()
        await noticing.left.wait()
        await host.queue.enqueue([a_job(b"1")])
        [job] = await host.queue.dequeue(entrypoints=None, limit=1)
        assert job.attempts == 1


def test_an_address_is_a_host_and_a_port() -> None:
    for wrong in ("", "grpc://host:7700"):
        with pytest.raises(InvalidInputError, match="host:port"):
            GrpcService(wrong)


# --- An orderly end ---


async def test_a_server_that_stops_lets_calls_end_and_tells_those_who_wait_that_there_is_nothing() -> None:
    store = GatedStore(MemoryStore())
    async with leading(store) as host, serving(host) as server, calling(server) as client:
        await client.enqueue([a_job(b"0")])
        waiting = [
            asyncio.create_task(client.dequeue(entrypoints=("e",), limit=1, wait_s=60, request_id=request_id))
            for request_id in (None, "r-1")
        ]
        events = client.events(from_position=0)
        await anext(events)
        await client.stats()
        store.shut()
        adding = asyncio.create_task(client.enqueue([a_job(b"1")]))
        await store.arrived.wait()

        stopping = asyncio.create_task(server.stop(30))
        # Whoever waits hears at once; one that could be repeated is asked of the queue once more, after this write.
        assert await waiting[0] == []
        assert not stopping.done()
        store.open()
        await stopping

        assert await waiting[1] == []
        [added] = await adding
        assert await host.queue.find(added.id) == added
        with pytest.raises(NoLeaderError):
            await anext(events)
        with pytest.raises(BrokerUnreachableError):
            await client.stats()


async def test_unary_callers_who_wait_are_answered_when_the_server_stops() -> None:
    async with (
        leading("memory://broken-stop-unary") as host,
        serving(host) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        host.queue = noticing = Noticing(host.queue)
        call = channel.unary_unary(
            "/casque.v1.Queue/Dequeue",
            request_serializer=pb.DequeueRequest.SerializeToString,
            response_deserializer=pb.DequeueResponse.FromString,
        )(pb.DequeueRequest(wait_ms=300_000))
        await noticing.came.wait()

        await server.stop(30)

        assert list((await call).jobs) == []


async def test_a_call_that_outlasts_the_grace_is_cut_off() -> None:
    store = GatedStore(MemoryStore())
    async with leading(store) as host, serving(host) as server, calling(server) as client:
        await client.stats()
        store.shut()
        adding = asyncio.create_task(client.enqueue([a_job(b"1")]))
        await store.arrived.wait()

        await server.stop(0.01)

        with pytest.raises(UnknownOutcomeError):
            await adding
        store.open()


async def test_a_port_that_is_taken_is_refused_in_plain_words() -> None:
    async with leading("memory://broken-port") as host, serving(host) as server:
        second = GrpcServer(host, listen=f"127.0.0.1:{server.port}")
        with pytest.raises(InvalidInputError, match="cannot listen"):
            await second.start()


# --- Deadlines ---


async def test_a_call_without_an_answer_ends_as_unknown_when_its_time_is_over() -> None:
    clock = ManualClock()
    store = GatedStore(MemoryStore())
    async with leading(store) as host, serving(host) as server, calling(server, clock=clock, call_s=10) as client:
        await client.stats()
        store.shut()
        adding = asyncio.create_task(client.enqueue([a_job(b"1")]))
        claiming = asyncio.create_task(client.dequeue(entrypoints=None, limit=1))
        waiting = asyncio.create_task(client.dequeue(entrypoints=("e",), limit=1, wait_s=20))
        await store.arrived.wait()

        await clock.advance(9)
        assert not adding.done()
        await clock.advance(3)
        for late in (adding, claiming):
            with pytest.raises(UnknownOutcomeError, match="did not answer in time"):
                await late
        assert not waiting.done()
        await clock.advance(20)
        with pytest.raises(UnknownOutcomeError, match="did not answer in time"):
            await waiting

        # The line still works, and what was claimed for a caller who had given up went back.
        store.open()
        [job] = await client.dequeue(entrypoints=None, limit=1, wait_s=5)
        assert job.attempts == 1


# --- Limits ---


async def test_a_call_that_is_too_large_is_refused_here_and_harms_no_other() -> None:
    async with (
        leading("memory://broken-large") as host,
        serving(host) as server,
        calling(server, message_bytes=100_000) as client,
    ):
        large = client.enqueue([a_job(bytes(200_000))])
        small = [client.enqueue([a_job(b"%d" % n)]) for n in range(20)]

        refused, *added = await asyncio.gather(large, *small, return_exceptions=True)

        assert isinstance(refused, InvalidInputError)
        assert "send fewer jobs at a time" in str(refused)
        assert not any(isinstance(one, BaseException) for one in added)
        assert (await client.stats()).totals.ready == 20


async def test_what_no_packet_can_hold_is_refused_here_and_harms_no_other() -> None:
    async with leading("memory://broken-values") as host, serving(host) as server, calling(server) as client:
        job = await a_claim(client)
        wrong = [client.ack(job.id, token=2**70), client.ack("half a character \ud800"), client.ack(object())]  # type: ignore[arg-type]
        right = [client.enqueue([a_job(b"%d" % n)]) for n in range(10)]

        outcomes = await asyncio.gather(*wrong, *right, return_exceptions=True)

        assert [type(outcome) for outcome in outcomes[:3]] == [InvalidInputError] * 3
        assert not any(isinstance(outcome, BaseException) for outcome in outcomes[3:])
        with pytest.raises(InvalidInputError):
            await client.heartbeat(job.id, token=-(2**70))
        assert (await client.stats()).totals.ready == 10


async def test_a_message_that_the_server_finds_too_large_ends_the_stream_and_no_more() -> None:
    limits = GrpcLimits(message_bytes=50_000)
    async with (
        leading("memory://broken-larger") as host,
        serving(host, limits=limits) as server,
        calling(server) as client,
    ):
        with pytest.raises(UnknownOutcomeError):
            await client.enqueue([a_job(bytes(200_000))])
        await client.enqueue([a_job(b"1")])
        assert (await client.stats()).totals.enqueued == 1


async def test_more_calls_than_a_stream_may_have_wait_for_their_turn() -> None:
    limits = GrpcLimits(calls_per_stream=3)
    async with (
        leading("memory://broken-many") as host,
        serving(host, limits=limits) as server,
        calling(server) as client,
    ):
        waiting = [asyncio.create_task(client.dequeue(entrypoints=("e",), limit=1, wait_s=60)) for _ in range(10)]
        await asyncio.gather(*(client.enqueue([a_job(b"%d" % n)]) for n in range(200)))
        await client.enqueue([a_job(b"%d" % n, entrypoint="e") for n in range(10)])
        assert len(await asyncio.gather(*waiting)) == 10
        assert (await client.stats()).totals.ready == 200


async def test_more_waiting_callers_than_a_stream_may_have_are_refused() -> None:
    limits = GrpcLimits(waiting_per_stream=2)
    async with (
        leading("memory://broken-waiting") as host,
        serving(host, limits=limits) as server,
        calling(server) as client,
    ):
        waiting = [asyncio.create_task(client.dequeue(entrypoints=None, limit=1, wait_s=60)) for _ in range(2)]
        await client.stats()
        with pytest.raises(InvalidInputError, match="2 dequeues wait on this connection"):
            await client.dequeue(entrypoints=None, limit=1, wait_s=60)
        await client.enqueue([a_job(b"1"), a_job(b"2")])
        await asyncio.gather(*waiting)
        await client.enqueue([a_job(b"3")])
        assert len(await client.dequeue(entrypoints=None, limit=1, wait_s=60)) == 1


class Counting(Instead):
    """A queue that counts how often it is asked for a job by name."""

    finds = 0

    async def find(self, job_id: str) -> JobRecord | None:
        self.finds += 1
        return await self._service.find(job_id)


async def test_calls_are_carried_out_no_faster_than_their_answers_are_taken() -> None:
    limits = GrpcLimits(calls_per_stream=10)
    async with leading("memory://broken-deaf") as host, serving(host, limits=limits) as server:
        [job] = await host.queue.enqueue([a_job(bytes(200_000))])
        host.queue = counting = Counting(host.queue)
        async with raw_stream(server) as stream:

            async def ask() -> None:
                for first in range(1, 401, 10):
                    calls = [packets.Call(number, Find(job.id)) for number in range(first, first + 10)]
                    await stream.write(Packet(body=packets.encode(calls)))

            asking = asyncio.create_task(ask())
            answered, ahead = 0, 0
            while answered < 400:
                packet = await stream.read()
                answered += len(packets.decode_answers(packet.body))
                ahead = max(ahead, counting.finds - answered)
            await asking

        assert counting.finds == 400
        assert ahead < 150  # what fits into the buffers of a connection, and not all that was asked for


# --- Bad bytes ---


@asynccontextmanager
async def raw_stream(server: GrpcServer) -> AsyncIterator[Any]:
    """`Exchange` for somebody who decides about every byte."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel.stream_stream(
            "/casque.v1.Queue/Exchange",
            request_serializer=lambda one: one if isinstance(one, bytes) else one.SerializeToString(),
            response_deserializer=Packet.FromString,
        )()


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\xff\xff",
        Packet(body=b""),
        Packet(body=b"\xc1\xc1"),
        Packet(body=msgspec.msgpack.encode({"a": 1})),
        Packet(body=msgspec.msgpack.encode([1, 2])),
        Packet(body=msgspec.msgpack.encode([["ack"]])),
        Packet(body=msgspec.msgpack.encode([["ack", 1, "job"]])[:-1]),
        Packet(body=b"\x91" * 100_000 + b"\x90"),
        Packet(body=packets.encode([packets.Call(1, Dequeue(None, 1, wait_s=60.0))] * 2)),
    ],
    ids=[
        "no protobuf",
        "empty",
        "no msgpack",
        "no list",
        "no entries",
        "no number",
        "cut short",
        "deep",
        "a number twice",
    ],
)
async def test_bytes_that_are_no_packet_end_the_stream_and_nothing_else(message: Any) -> None:
    async with leading("memory://broken-bytes") as host, serving(host) as server, calling(server) as client:
        await client.stats()
        async with raw_stream(server) as stream:
            await stream.write(message)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await _all_of(stream)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await client.stats()).totals.enqueued == 0


async def test_bytes_that_are_no_request_are_refused() -> None:
    async with (
        leading("memory://broken-request") as host,
        serving(host) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        for method in ("Enqueue", "Dequeue"):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary(f"/casque.v1.Queue/{method}")(b"\xff\xff")
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            [_ async for _ in channel.unary_stream("/casque.v1.Queue/List")(b"\xff\xff")]
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_entry_that_is_not_understood_is_refused_by_itself() -> None:
    async with leading("memory://broken-entry") as host, serving(host) as server, raw_stream(server) as stream:
        entries = [
            [1, ["stats"]],
            [2, ["dance", "tango"]],  # of a later release
            [3, ["ack", 17]],  # no job id
            [4, ["stats", "a field of a later release"]],
            [5, ["find", "nobody"]],
        ]
        await stream.write(Packet(body=msgspec.msgpack.encode(entries)))
        answers: dict[int, packets.Answer] = {}
        while len(answers) < 5:
            packet = await stream.read()
            answers |= {answer.number: answer for answer in packets.decode_answers(packet.body)}

        assert [type(answers[n]).__name__ for n in range(1, 6)] == ["Counted", "Failed", "Failed", "Counted", "Job"]
        for n in (2, 3):
            refused = answers[n]
            assert isinstance(refused, packets.Failed)
            assert refused.error.error == "InvalidInputError"
            assert "does not understand" in refused.error.message


async def test_a_caller_that_leaves_in_the_packet_of_its_call_is_answered_all_the_same() -> None:
    async with leading("memory://broken-leave") as host, serving(host) as server, raw_stream(server) as stream:
        calls: list[packets.Call] = [
            packets.Call(1, Dequeue(None, 1, wait_s=60.0)),
            packets.Call(1, packets.Leave()),
            packets.Call(77, packets.Leave()),
        ]
        await stream.write(Packet(body=packets.encode(calls)))

        packet = await stream.read()

        [answer] = packets.decode_answers(packet.body)
        assert isinstance(answer, packets.Failed)
        assert (answer.number, answer.error.error) == (1, "UnknownOutcomeError")
        await host.queue.enqueue([a_job(b"1")])
        assert len(await host.queue.dequeue(entrypoints=None, limit=1)) == 1


async def test_a_claim_that_is_being_written_when_its_caller_goes_is_given_back() -> None:
    store = GatedStore(MemoryStore())
    async with leading(store) as host, serving(host) as server:
        host.queue = noticing = Noticing(host.queue)
        await host.queue.enqueue([a_job(b"1")])
        async with raw_stream(server) as stream:
            store.shut()
            await stream.write(Packet(body=packets.encode([packets.Call(1, Dequeue(None, 1))])))
            await store.arrived.wait()
            stream.cancel()
            await noticing.left.wait()
        store.open()

        [job] = await host.queue.dequeue(entrypoints=None, limit=1, wait_s=60)

        assert job.attempts == 1


# --- Brokers that lie ---


@asynccontextmanager
async def a_liar(script: Callable[[Any], Any], hello: tuple[str, str] = packets.HELLO) -> AsyncIterator[GrpcService]:
    """A server that does on `Exchange` what a test says."""

    async def exchange(_requests: Any, context: Any) -> None:
        await context.send_initial_metadata((hello,))
        await script(context)

    handler = grpc.stream_stream_rpc_method_handler(exchange, Packet.FromString, Packet.SerializeToString)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("casque.v1.Queue", {"Exchange": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = GrpcService(f"127.0.0.1:{port}")
    try:
        yield client
    finally:
        await client.close()
        await server.stop(None)


async def test_answers_that_are_no_answers_are_an_unknown_outcome() -> None:
    async def babble(context: Any) -> None:
        await context.read()
        await context.write(Packet(body=b"\xc1 blah"))
        await context.read()

    async with a_liar(babble) as client:
        with pytest.raises(UnknownOutcomeError, match="no answers"):
            await client.stats()


async def test_a_broker_of_another_release_is_recognised_before_anything_is_sent() -> None:
    async with a_liar(lambda context: context.read(), ("casque-exchange", "2")) as client:
        with pytest.raises(
            BrokerUnreachableError, match=r"another release of casque \(Exchange 2, and this client speaks 3\)"
        ):
            await client.ack("job-1")


async def test_what_a_farewell_says_nobody_looked_at_was_not_done() -> None:
    async def leave_early(context: Any) -> None:
        packet = await context.read()
        first = packets.decode_calls(packet.body)[0]
        assert not isinstance(first, packets.Unreadable)
        await context.write(Packet(body=packets.encode([packets.Done(first.number), packets.Farewell(first.number)])))

    async with a_liar(leave_early) as client:
        outcomes = await asyncio.gather(*(client.ack(f"job-{n}") for n in range(3)), return_exceptions=True)

    assert outcomes[0] is None
    assert [type(outcome) for outcome in outcomes[1:]] == [BrokerUnreachableError] * 2
    assert "stopping" in str(outcomes[1])


async def test_a_stream_that_ends_without_a_word_leaves_calls_unknown() -> None:
    async def hang_up(context: Any) -> None:
        await context.read()

    async with a_liar(hang_up) as client:
        with pytest.raises(UnknownOutcomeError):
            await client.ack("job-1")
        with pytest.raises(CasqueError):
            await client.ack("job-2")


async def test_a_call_that_was_sent_beside_somebody_who_left_may_have_been_done() -> None:
    looked_at: list[object] = []

    async def hang_up_after_two(context: Any) -> None:
        await context.read()
        await context.write(Packet(body=packets.encode([packets.Done(999)])))
        packet = await context.read()
        looked_at.extend(packets.decode_calls(packet.body))

    async with a_liar(hang_up_after_two) as client:
        leaver = asyncio.create_task(client.dequeue(entrypoints=None, limit=1, wait_s=60))
        while client._exchange is None or not client._exchange._sent:
            await settle()
        acking = asyncio.create_task(client.ack("job-1"))
        leaver.cancel()

        with pytest.raises(UnknownOutcomeError):
            await acking

    assert looked_at == [packets.Call(2, Ack("job-1")), packets.Call(1, packets.Leave())]


async def test_answers_to_nobody_are_passed_over() -> None:
    async def talk_too_much(context: Any) -> None:
        packet = await context.read()
        [call] = packets.decode_calls(packet.body)
        assert not isinstance(call, packets.Unreadable)
        more = [packets.Done(999), packets.Done(call.number), packets.Done(call.number)]
        await context.write(Packet(body=packets.encode(more)))
        await context.read()

    async with a_liar(talk_too_much) as client:
        await client.ack("job-1")


async def test_a_service_may_be_left_to_itself_with_a_lease_in_hand() -> None:
    async with leading("memory://broken-lease") as host:
        async with serving(host) as server, calling(server) as client:
            job = await a_claim(client)
        assert isinstance(host, FixedHost)
        assert await host.queue.find(job.id) == job


async def _all_of(source: Any) -> list[Any]:
    return [one async for one in source]
