"""The server's side of a stream, where it depends on the very moment at which the stream breaks."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import pytest

from casque.clock import SystemClock, system_random
from casque.errors import JobNotFoundError, UnknownOutcomeError
from casque.service import Lease
from casque.service.requests import Dequeue
from casque.testing.clock import settle
from casque.testing.hosting import FixedHost, leading
from casque.testing.service_suite.jobs import a_job
from casque.transport.border import admit
from casque.transport.grpc import packets
from casque.transport.grpc.casque_v1_pb2 import Packet
from casque.transport.grpc.door import Door, GrpcLimits
from casque.transport.grpc.refusals import as_refusal
from casque.transport.grpc.session import Session
from casque.types import JobRecord, JobState
from tests.support.over_grpc import over_grpc


class Jammed:
    """gRPC's context of a stream that takes one packet, and breaks while its first answer is being written."""

    def __init__(self, host: FixedHost, *calls: packets.Call) -> None:
        self._host = host
        self._calls = [Packet(body=packets.encode(calls))]

    async def send_initial_metadata(self, _metadata: Any) -> None:
        pass

    async def read(self) -> Packet:
        if self._calls:
            return self._calls.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def write(self, _packet: Packet) -> None:
        while not (await self._host.queue.stats()).totals.running:
            await settle()
        await settle()
        raise ConnectionResetError


async def run(host: FixedHost, *calls: packets.Call) -> None:
    door = Door(host, admit(None), GrpcLimits(), clock=SystemClock(), rng=system_random())
    with pytest.raises(ConnectionResetError):
        await Session(door, admit(None)(None), Jammed(host, *calls)).run()
    await door.settled()


def an_unknown_call(number: int) -> packets.Call:
    """One that is answered before any other."""
    return cast("packets.Call", (number, packets.Done(number)))


async def test_claims_that_nobody_can_have_heard_of_go_back_at_once() -> None:
    async with leading("memory://session-unsent") as host:
        await host.queue.enqueue([a_job(b"%d" % n) for n in range(3)])

        await run(host, an_unknown_call(1), packets.Call(2, Dequeue(None, 3)))

        again = await host.queue.dequeue(entrypoints=None, limit=3)
        assert [job.attempts for job in again] == [1, 1, 1]


async def test_claims_that_were_being_sent_are_left_to_whoever_may_have_them() -> None:
    async with leading("memory://session-sent") as host:
        await host.queue.enqueue([a_job(b"1")])

        await run(host, packets.Call(1, Dequeue(None, 1)))

        assert (await host.queue.stats()).totals.running == 1


async def test_claims_that_can_be_asked_for_again_stay() -> None:
    async with leading("memory://session-repeat") as host:
        await host.queue.enqueue([a_job(b"1")])

        await run(host, an_unknown_call(1), packets.Call(2, Dequeue(None, 1, request_id="r-1")))

        assert (await host.queue.stats()).totals.running == 1
        [job] = await host.queue.dequeue(entrypoints=None, limit=1, request_id="r-1")
        assert job.attempts == 1


def test_a_large_answer_goes_in_parts_and_comes_back_whole() -> None:
    jobs = [JobRecord(a_job(bytes(400)), n, 0, JobState.READY, 0) for n in range(10)]

    parts = packets.parts(packets.Jobs(7, jobs), 2000)

    assert all(isinstance(part, packets.Jobs) for part in parts)
    whole = [part for part in parts if isinstance(part, packets.Jobs)]
    assert [len(part.jobs) for part in whole] == [2, 2, 2, 2, 2]
    assert [part.more for part in whole] == [True, True, True, True, False]
    assert [job for part in whole for job in part.jobs] == jobs
    assert packets.parts(packets.Jobs(7, []), 2000) == [packets.Jobs(7, [])]
    assert len(packets.parts(packets.Jobs(7, jobs), 1)) == 10
    assert packets.parts(packets.Done(7), 1) == (packets.Done(7),)


def test_the_answer_to_an_enqueue_is_as_short_as_it_can_be() -> None:
    specs = [a_job(b"1"), a_job(b"2"), a_job(b"3")]
    alike = [JobRecord(spec, n, 100, JobState.READY, 100) for n, spec in enumerate(specs, 7)]
    mixed = [*alike[:2], JobRecord(specs[2], 9, 100, JobState.DELAYED, 500)]
    repeated = [*alike[:2], JobRecord(specs[2], 9, 50, JobState.READY, 100)]
    others = [*alike[:2], JobRecord(a_job(b"4"), 2, 50, JobState.READY, 50)]
    claimed = [*alike[:2], JobRecord(specs[2], 9, 100, JobState.RUNNING, 100, token=1)]

    assert packets.added(1, specs, alike) == packets.AddedRun(1, 7, 100, JobState.READY, 100)
    for jobs in (mixed, repeated):
        fresh = [packets.Fresh(job.sequence, job.created_ms, job.state, job.due_ms) for job in jobs]
        assert packets.added(1, specs, jobs) == packets.Added(1, fresh)
    for jobs in (others, claimed):
        assert packets.added(1, specs, jobs) == packets.Jobs(1, jobs)


@pytest.mark.parametrize("limit", [1, 5_000, 100_000, 10_000_000])
async def test_answers_of_any_size_come_back_through_packets_of_any_size(limit: int) -> None:
    limits = GrpcLimits(packet_bytes=limit)
    async with leading(f"memory://session-{limit}") as host, over_grpc(host, limits=limits) as client:
        added = await client.enqueue([a_job(bytes(10_000)) for _ in range(30)])
        claimed = await client.dequeue(entrypoints=None, limit=30)
        leases = [Lease(job.id, job.token) for job in claimed] + [Lease("nobody")]
        found, beaten = await asyncio.gather(
            asyncio.gather(*(client.find(job.id) for job in added)), client.heartbeats(leases)
        )

        assert [job.spec for job in claimed] == [job.spec for job in added]
        assert [job.id for job in found if job is not None] == [job.id for job in added]
        assert [job.id for job in beaten if isinstance(job, JobRecord)] == [job.id for job in added]
        assert isinstance(beaten[-1], JobNotFoundError)
        assert len(await client.jobs()) == 30


def test_a_connection_that_breaks_while_it_is_answered_is_no_failure_of_the_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO"):
        refusal = as_refusal(grpc.aio.InternalError('Failed "execute_batch"'))

    assert isinstance(refusal, UnknownOutcomeError)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert isinstance(as_refusal(RuntimeError("a bug")), UnknownOutcomeError)
    assert caplog.records[-1].levelname == "ERROR"
