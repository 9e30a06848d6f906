"""What is measured, one thing after the other, on a queue that is empty each time."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable

import msgspec

from casque.cli.bench.counted import CountedStore
from casque.client.queue import Queue

ENTRYPOINT = "bench"
BULK = 1_000
"""Jobs in one call, where many are enqueued at once, and the most that are claimed at once."""
STARTS_MAX = 200
WAIT_S = 60.0

Tell = Callable[[str, float], object]
"""What is being done, and how far it has come, from 0 to 1."""


class Row(msgspec.Struct, frozen=True):
    """One measurement."""

    what: str
    jobs: int
    jobs_per_s: float
    median_ms: float
    worst_ms: float
    puts: int
    """Write requests that it took, whatever else the queue did meanwhile included."""
    gets: int


class Bench:
    """Measures a queue on this store. Leaves objects behind: whoever made the store removes them."""

    def __init__(self, store: CountedStore, *, seconds: float, callers: int, payload: bytes, tell: Tell) -> None:
        self._store = store
        self._seconds = seconds
        self._callers = callers
        self._payload = payload
        self._tell = tell

    async def run(self) -> list[Row]:
        async with Queue.open(self._store, worker="casque bench") as queue:
            return [
                await self._repeated(queue, "enqueue, 1 caller", 1, self._enqueue),
                await self._repeated(queue, f"enqueue, {self._callers} callers", self._callers, self._enqueue),
                await self._repeated(queue, f"enqueue {BULK:,} at once", 1, self._enqueue_many),
                await self._worked_off(queue),
                await self._repeated(queue, f"enqueue, claim, ack, {self._callers} callers", self._callers, _life),
                await self._started(queue),
            ]

    async def _enqueue(self, queue: Queue[bytes]) -> int:
        await queue.enqueue(ENTRYPOINT, self._payload)
        return 1

    async def _enqueue_many(self, queue: Queue[bytes]) -> int:
        return len(await queue.enqueue_many([(ENTRYPOINT, self._payload)] * BULK))

    async def _repeated(
        self,
        queue: Queue[bytes],
        what: str,
        callers: int,
        call: Callable[[Queue[bytes]], Awaitable[int]],
    ) -> Row:
        """So many callers, each of which calls again as soon as it is answered, until time is up."""
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
                self._tell(what, min((self._now() - begun) / self._seconds, 1.0))

        async with asyncio.TaskGroup() as callers_:
            for _ in range(callers):
                callers_.create_task(caller())
        return self._row(what, done, took, self._now() - begun, puts, gets)

    async def _worked_off(self, queue: Queue[bytes]) -> Row:
        """Whatever is there by now, claimed and settled in batches, the next one claimed while one is settled."""
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
            self._tell(what, done / there)
        return self._row(what, done, took, self._now() - begun, puts, gets)

    async def _started(self, queue: Queue[bytes]) -> Row:
        """From an enqueue to a worker that waits, with nothing else going on."""
        what = "idle start"
        took: list[float] = []
        puts, gets, begun = self._store.puts, self._store.gets, self._now()
        while (self._now() - begun < self._seconds or not took) and len(took) < STARTS_MAX:
            waiting = asyncio.create_task(queue.dequeue(ENTRYPOINT, wait=WAIT_S))
            # It waits as soon as an empty queue has answered somebody who came after it.
            await queue.dequeue(f"{ENTRYPOINT} nothing")
            before = self._now()
            added = asyncio.create_task(queue.enqueue(ENTRYPOINT, self._payload))
            jobs = await waiting
            took.append(self._now() - before)
            await added
            await queue.settle(jobs)
            self._tell(what, min((self._now() - begun) / self._seconds, 1.0))
        return self._row(what, len(took), took, self._now() - begun, puts, gets)

    def _row(self, what: str, done: int, took: list[float], seconds: float, puts: int, gets: int) -> Row:
        return Row(
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


async def _life(queue: Queue[bytes]) -> int:
    await queue.enqueue(ENTRYPOINT, b"")
    jobs = await queue.dequeue(ENTRYPOINT)
    for job in jobs:
        await job.ack()
    return len(jobs)
