"""Carries out one run of the gRPC section in a fresh process and prints what it found as JSON."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.grpc_server import a_broker
from benchmarks.load import ENTRYPOINT, PAYLOAD, Run, main
from benchmarks.metered import MeteredStore
from casque.client.ids import new_ids
from casque.clock import new_id, system_random
from casque.service import QueueService
from casque.storage.memory import MemoryStore
from casque.transport.grpc.client import GrpcService
from casque.types import JobSpec

BULK = 1000


async def carry_out(run: Run) -> dict[str, float]:
    side, task = run.api.split(":")
    if side == "embedded":
        async with a_broker(MeteredStore(MemoryStore())) as broker:
            return await TASKS[task](broker.service(), run, Processor())
    async with _elsewhere() as server:
        client = GrpcService(f"127.0.0.1:{server.port}")
        try:
            if task == "idle":
                return await idle(server, run)
            if task == "latency":
                return await latency(server, client, run)
            return await TASKS[task](client, run, Processor(server))
        finally:
            await client.close()


class Processor:
    """How long processors were busy, here and in the broker: unlike the rate, this hardly depends on the neighbours."""

    def __init__(self, server: Elsewhere | None = None) -> None:
        self._server = server
        self._here = self._there = 0.0

    async def start(self) -> None:
        self._here, self._there = await self._now()

    async def spent(self, count: float) -> dict[str, float]:
        """Microseconds for each of so many."""
        here, there = await self._now()
        return {"here_us": (here - self._here) / count * 1e6, "there_us": (there - self._there) / count * 1e6}

    async def _now(self) -> tuple[float, float]:
        return time.process_time(), 0.0 if self._server is None else float(await self._server.ask("cpu"))


async def calls(service: QueueService, run: Run, processor: Processor) -> dict[str, float]:
    """Everybody enqueues, claims and acknowledges, as fast as they are answered."""
    rng = system_random()
    count = 0

    async def caller(until_s: float) -> None:
        nonlocal count
        while time.perf_counter() < until_s:
            await service.enqueue([JobSpec(new_id(rng), ENTRYPOINT, PAYLOAD)])
            [job] = await service.dequeue(entrypoints=(ENTRYPOINT,), limit=1)
            await service.ack(job.id, token=job.token)
            count += 3

    async def go(seconds: float) -> float:
        nonlocal count
        count, begun = 0, time.perf_counter()
        await asyncio.gather(*(caller(begun + seconds) for _ in range(run.concurrency)))
        return count / (time.perf_counter() - begun)

    await go(run.warm_up_s)
    await processor.start()
    rate = await go(run.seconds)
    return {"rate": rate, **await processor.spent(count)}


async def bulk(service: QueueService, run: Run, processor: Processor) -> dict[str, float]:
    """A few callers, a thousand jobs each time."""
    rng = system_random()
    count = 0

    async def caller(until_s: float) -> None:
        nonlocal count
        while time.perf_counter() < until_s:
            await service.enqueue([JobSpec(job_id, ENTRYPOINT, PAYLOAD) for job_id in new_ids(rng, BULK)])
            count += BULK

    async def go(seconds: float) -> float:
        nonlocal count
        count, begun = 0, time.perf_counter()
        await asyncio.gather(*(caller(begun + seconds) for _ in range(run.concurrency)))
        return count / (time.perf_counter() - begun)

    await go(run.warm_up_s)
    await processor.start()
    rate = await go(run.seconds)
    return {"rate": rate, **await processor.spent(count)}


TASKS = {"calls": calls, "bulk": bulk}


async def latency(server: Elsewhere, consumer: GrpcService, run: Run) -> dict[str, float]:
    """From the moment the commit has landed, by the broker's process, to the job in the hands of a waiting consumer."""
    producer = GrpcService(f"127.0.0.1:{server.port}")
    rng = system_random()
    took_s: list[float] = []
    try:
        until_s = time.perf_counter() + run.seconds
        while time.perf_counter() < until_s:
            waiting = asyncio.create_task(consumer.dequeue(entrypoints=(ENTRYPOINT,), limit=1, wait_s=30))
            await consumer.stats()  # the wait has begun
            adding = asyncio.create_task(producer.enqueue([JobSpec(new_id(rng), ENTRYPOINT, PAYLOAD)]))
            [job] = await waiting
            got_s = time.perf_counter()
            await adding
            took_s.append(got_s - float(await server.ask("landed")))
            await consumer.ack(job.id, token=job.token)
    finally:
        await producer.close()
    took_s.sort()
    return {
        "median_ms": statistics.median(took_s) * 1000,
        "p99_ms": took_s[len(took_s) * 99 // 100] * 1000,
        "jobs": len(took_s),
    }


async def idle(server: Elsewhere, run: Run) -> dict[str, float]:
    """Consumers that wait for a job which does not come; what the broker asks of its store meanwhile."""
    fleet = [GrpcService(f"127.0.0.1:{server.port}") for _ in range(run.concurrency)]
    waiting = [asyncio.create_task(one.dequeue(entrypoints=(ENTRYPOINT,), limit=1, wait_s=60)) for one in fleet]
    try:
        await asyncio.gather(*(one.stats() for one in fleet))
        await asyncio.sleep(run.warm_up_s)
        await server.ask("reset")
        await asyncio.sleep(run.seconds)
        requests: dict[str, float] = dict(await server.ask("requests"))
        return {"consumers": run.concurrency, "seconds": run.seconds, **requests}
    finally:
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for client in fleet:
            await client.close()


class Elsewhere:
    """A broker in another process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.port = port

    async def ask(self, question: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(question.encode() + b"\n")
        return json.loads(await self._process.stdout.readline())


@asynccontextmanager
async def _elsewhere() -> AsyncIterator[Elsewhere]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.grpc_server", stdin=pipe, stdout=pipe
    )
    try:
        assert process.stdout is not None
        yield Elsewhere(process, json.loads(await process.stdout.readline()))
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


if __name__ == "__main__":
    main(carry_out)
