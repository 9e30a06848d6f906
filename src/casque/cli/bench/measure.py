"""The measurements, one after the other, on one queue."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable

import msgspec

from casque.cli.bench.counting import CountingStore
from casque.client.queue import Queue

ENTRYPOINT = "bench"
BULK = 1_000
"""Jobs in one bulk enqueue, and the most that are claimed at once."""
STARTS_MAX = 200
WAIT_S = 60.0

Report = Callable[[str, float], object]
"""Called with the measurement, and how far it has come, from 0 to 1."""


class Measurement(msgspec.Struct, frozen=True):
    """One measurement."""

    what: str
    jobs: int
    jobs_per_s: float
    median_ms: float
    worst_ms: float
    puts: int
    """Write requests, including the queue's own upkeep meanwhile."""
    gets: int


class Bench:
    """Measures a queue on this store. Leaves objects behind, which the caller removes."""

    def __init__(self, store: CountingStore, *, seconds: float, callers: int, payload: bytes, report: Report) -> None:
        self._store = store
        self._seconds = seconds
        self._callers = callers
        self._payload = payload
        self._report = report

    async def run(self) -> list[Measurement]:
        async with Queue.open(self._store, worker="casque bench") as queue:
            return [
                await self._repeat(queue, "enqueue, 1 caller", 1, self._enqueue),
                await self._repeat(queue, f"enqueue, {self._callers} callers", self._callers, self._enqueue),
                await self._repeat(queue, f"enqueue {BULK:,} at once", 1, self._enqueue_many),
                await self._process_all(queue),
                await self._repeat(queue, f"enqueue, claim, ack, {self._callers} callers", self._callers, _whole_life),
                await self._measure_start(queue),
            ]

    async def _enqueue(self, queue: Queue[bytes]) -> int:
        await queue.enqueue(ENTRYPOINT, self._payload)
        return 1

    async def _enqueue_many(self, queue: Queue[bytes]) -> int:
        return len(await queue.enqueue_many([(ENTRYPOINT, self._payload)] * BULK))

    async def _repeat(
        self,
        queue: Queue[bytes],
        what: str,
        callers: int,
        call: Callable[[Queue[bytes]], Awaitable[int]],
    ) -> Measurement:
        """Concurrent callers that call again as soon as they are answered, until time is up."""
        took: list[float] = []
        done = 0
        puts, gets, begun = self._store.puts, self._store.gets, self._now()
        ends = begun + self._seconds

        async def caller() -> None:
            nonlocal done
            while (before := self._now()) < ends or not took:
                jobs = await call(queue)
                done += jobs
                took.append(self._now() - before)
                self._report(what, min((self._now() - begun) / self._seconds, 1.0))

        async with asyncio.TaskGroup() as callers_:
            for _ in range(callers):
                callers_.create_task(caller())
        return self._row(what, done, took, self._now() - begun, puts, gets)

    async def _process_all(self, queue: Queue[bytes]) -> Measurement:
        """Claim and settle all jobs that are there, in batches; the next is claimed while one is settled."""
        what = f"claim and settle, {BULK:,} at once"
        there = (await queue.stats()).totals.ready
        took: list[float] = []
        done = 0
        puts, gets, begun = self._store.puts, self._store.gets, self._now()
        claiming = asyncio.create_task(queue.dequeue(ENTRYPOINT, batch_size=BULK))
        while jobs := await claiming:
            before = self._now()
            claiming = asyncio.create_task(queue.dequeue(ENTRYPOINT, batch_size=BULK))
            await queue.settle(jobs)
            took.append(self._now() - before)
            done += len(jobs)
            self._report(what, done / there)
        return self._row(what, done, took, self._now() - begun, puts, gets)

    async def _measure_start(self, queue: Queue[bytes]) -> Measurement:
        """The time from an enqueue to a waiting worker, on an idle queue."""
        what = "idle start"
        took: list[float] = []
        puts, gets, begun = self._store.puts, self._store.gets, self._now()
        while (self._now() - begun < self._seconds or not took) and len(took) < STARTS_MAX:
            waiting = asyncio.create_task(queue.dequeue(ENTRYPOINT, wait=WAIT_S))
            # When a later claim has been answered with nothing, the first one is waiting.
            await queue.dequeue(f"{ENTRYPOINT} nothing")
            before = self._now()
            added = asyncio.create_task(queue.enqueue(ENTRYPOINT, self._payload))
            jobs = await waiting
            took.append(self._now() - before)
            await added
            await queue.settle(jobs)
            self._report(what, min((self._now() - begun) / self._seconds, 1.0))
        return self._row(what, len(took), took, self._now() - begun, puts, gets)

    def _row(self, what: str, done: int, took: list[float], seconds: float, puts: int, gets: int) -> Measurement:
        return Measurement(
            what,
            done,
            done / max(seconds, 1e-6),
            statistics.median(took or [0.0]) * 1000,
            max(took, default=0.0) * 1000,
            self._store.puts - puts,
            self._store.gets - gets,
        )

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def _whole_life(queue: Queue[bytes]) -> int:
    await queue.enqueue(ENTRYPOINT, b"")
    jobs = await queue.dequeue(ENTRYPOINT)
    for job in jobs:
        await job.ack()
    return len(jobs)
