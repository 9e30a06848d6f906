"""Callers who come and go at random while their broker is restarted: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from casque.clock import Random
from casque.errors import BrokerUnreachableError, NoLeaderError, UnknownOutcomeError
from casque.testing.clock import settle
from casque.testing.hosting import FixedHost, leading
from casque.testing.service_suite.jobs import a_job
from casque.transport.grpc.client import GrpcService
from casque.transport.grpc.server import GrpcServer
from tests.support.over_grpc import calling, serving

T = TypeVar("T")

JOBS = 150
CALLERS = 12


class Storm:
    """One queue, a server that is restarted in front of it, and callers that are interrupted."""

    def __init__(self, host: FixedHost, seed: int) -> None:
        self.host = host
        self.rng = Random(seed)
        self.added: set[str] = set()
        self.done: set[str] = set()
        self.address = ""
        self.interrupted = 0
        self.restarted = 0
        self.next_at = 0
        self.due = asyncio.Event()
        self.started = asyncio.Event()
        self.over = False

    async def restarts(self) -> None:
        """A server dies, at once or with some grace, whenever so many more jobs are done."""
        while not self.over:
            server = GrpcServer(self.host, listen=self.address or "127.0.0.1:0")
            await server.start()
            self.address = f"127.0.0.1:{server.port}"
            self.started.set()
            self.due.clear()
            self.next_at = len(self.done) + self.rng.randrange(10, 50)
            await self.due.wait()
            await server.stop(self.rng.choice([0.0, 5.0]))
            self.restarted += 1

    def finished(self, job_id: str) -> None:
        assert job_id not in self.done
        self.done.add(job_id)
        if len(self.done) >= self.next_at:
            self.due.set()

    async def produce(self, client: GrpcService) -> None:
        for n in range(JOBS // CALLERS + 1):
            spec = a_job(b"%d" % n)
            if len(self.added) >= JOBS:
                return
            self.added.add(spec.id)
            # The same request until it is answered, whatever happens to each attempt.
            while not await self.attempted(client.enqueue([spec], request_id=f"add-{spec.id}")):
                await settle()

    async def work(self, client: GrpcService, name: str) -> None:
        turn = 0
        while len(self.done) < JOBS:
            turn += 1
            request_id = f"{name}-{turn}"
            jobs = None
            while jobs is None and len(self.done) < JOBS:
                jobs = await self.attempted(
                    client.dequeue(entrypoints=None, limit=2, wait_s=0.05, worker=name, request_id=request_id)
                )
                await settle(3)
            for job in jobs or []:
                acked = False
                while not acked:
                    try:
                        await client.ack(job.id, token=job.token, request_id=f"ack-{job.id}-{job.token}")
                        acked = True
                    except (UnknownOutcomeError, BrokerUnreachableError, NoLeaderError):
                        await settle()
                self.finished(job.id)

    async def attempted(self, call: Coroutine[Any, Any, T]) -> T | None:
        """One attempt, which its caller may abandon; None if nobody knows what came of it."""
        task = asyncio.create_task(call)
        if self.rng.random() < 0.3:
            await settle(self.rng.randrange(30))
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            self.interrupted += 1
            return None
        except (UnknownOutcomeError, BrokerUnreachableError, NoLeaderError):
            return None


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_storm_loses_nothing_and_doubles_nothing(seed: int) -> None:
    async with leading(f"memory://storm-{seed}") as host:
        storm = Storm(host, seed)
        serving = asyncio.create_task(storm.restarts())
        await storm.started.wait()
        clients = [GrpcService(storm.address) for _ in range(3)]
        async with asyncio.TaskGroup() as group:
            for n in range(CALLERS):
                group.create_task(storm.produce(clients[n % 3]))
                group.create_task(storm.work(clients[n % 3], f"w{n}"))
        storm.over = True
        storm.due.set()
        await serving
        for client in clients:
            await client.close()

        totals = (await host.queue.stats()).totals

        assert storm.interrupted > 0
        assert storm.restarted > 2
        assert storm.done == storm.added
        assert (totals.done, totals.enqueued) == (JOBS, JOBS)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_callers_who_leave_keep_no_job_from_others(seed: int) -> None:
    async with leading(f"memory://leavers-{seed}") as host, serving(host) as server, calling(server) as client:
        storm = Storm(host, seed)
        attempts: list[int] = []

        async def work() -> None:
            while len(storm.done) < JOBS:
                jobs = await storm.attempted(client.dequeue(entrypoints=None, limit=3, wait_s=0.2))
                for job in jobs or []:
                    await client.ack(job.id, token=job.token)
                    attempts.append(job.attempts)
                    storm.finished(job.id)

        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(work())
            for n in range(JOBS):
                await client.enqueue([a_job(b"%d" % n)])

        assert storm.interrupted > 0
        assert attempts == [1] * JOBS
        assert (await host.queue.stats()).totals.done == JOBS
