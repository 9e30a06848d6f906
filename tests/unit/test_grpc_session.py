"""The server's side of a stream, where it depends on the very moment at which the stream breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from casque.clock import SystemClock, system_random
from casque.testing.hosting import FixedHost, leading
from casque.testing.service_suite import a_job
from casque.transport.border import admit
from casque.transport.grpc import packets
from casque.transport.grpc.casque_v1_pb2 import Packet
from casque.transport.grpc.door import Door, GrpcLimits
from casque.transport.grpc.session import Session


class BrokenPipe:
    """gRPC's context of a stream that takes one packet and loses every answer."""

    def __init__(self, *calls: packets.Call) -> None:
        self._calls = [Packet(body=packets.encode(calls))]

    async def send_initial_metadata(self, _metadata: Any) -> None:
        pass

    async def read(self) -> Packet:
        if self._calls:
            return self._calls.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def write(self, _packet: Packet) -> None:
        raise ConnectionResetError


async def run(host: FixedHost, *calls: packets.Call) -> None:
    door = Door(host, admit(None), GrpcLimits(), clock=SystemClock(), rng=system_random())
    with pytest.raises(ConnectionResetError):
        await Session(door, admit(None)(None), BrokenPipe(*calls)).run()
    await door.settled()


async def test_claims_whose_answer_could_not_be_sent_go_back_at_once() -> None:
    async with leading("memory://session-unsent") as host:
        await host.queue.enqueue([a_job(b"%d" % n) for n in range(3)])

        await run(host, packets.DequeueCall(1, None, 3))

        again = await host.queue.dequeue(entrypoints=None, limit=3)
        assert [job.attempts for job in again] == [1, 1, 1]


async def test_claims_that_can_be_asked_for_again_stay() -> None:
    async with leading("memory://session-repeat") as host:
        await host.queue.enqueue([a_job(b"1")])

        await run(host, packets.DequeueCall(1, None, 1, request_id="r-1"))

        assert (await host.queue.stats()).totals.running == 1
        [job] = await host.queue.dequeue(entrypoints=None, limit=1, request_id="r-1")
        assert job.attempts == 1


def test_a_large_answer_goes_in_parts_and_comes_back_whole() -> None:
    from casque.types import JobRecord, JobState

    jobs = [JobRecord(a_job(bytes(400)), n, 0, JobState.READY, 0) for n in range(10)]

    parts = packets.parts(packets.Jobs(7, jobs), 2000)

    assert [len(part.jobs) for part in parts] == [2, 2, 2, 2, 2]
    assert [part.more for part in parts] == [True, True, True, True, False]
    assert [job for part in parts for job in part.jobs] == jobs
    assert packets.parts(packets.Jobs(7, []), 2000) == [packets.Jobs(7, [])]
    assert len(packets.parts(packets.Jobs(7, jobs), 1)) == 10
