"""Carries out one task on a deep queue in a fresh process and prints what it found as JSON."""

from __future__ import annotations

import asyncio
import resource
import time
from pathlib import Path
from typing import Any

from benchmarks.load import ENTRYPOINT, PAYLOAD, Run, main, upkeep_is_over
from casque import Queue
from casque.journal.log import pace
from casque.storage.memory import MemoryStore
from casque.storage.port import Store
from casque.storage.url import open_store

BULK = 10_000
CALLERS = 50
BESIDE = "beside"
TURNS = 3
WARM_S = 2.0
BEGINS_S = 0.05
"""By then some commit has found a snapshot due, and writing a deep one takes seconds."""
NEVER = 10**15

Figures = dict[str, float]


async def carry_out(run: Run) -> Figures:
    store: Store = MemoryStore() if run.place == "memory" else open_store(run.place, options=run.options)
    tasks = {"bulk": in_bulk, "fill": filled, "open": opened, "snapshot": beside_snapshots}
    return await tasks[run.api](store, run)


async def in_bulk(store: Store, run: Run) -> Figures:
    """How fast jobs are added to an empty queue, and to a deep one."""
    figures: Figures = {}
    async with Queue.open(store, layout=run.layout) as queue:
        measured = run.depth // 5
        await _add(queue, BULK)  # warm
        for name, before in (("empty", 0), ("deep", run.depth - measured)):
            await _add(queue, before)
            took = await _add(queue, measured)
            figures[f"{name}_rate"] = measured / sum(took)
            figures[f"{name}_longest_ms"] = max(took) * 1000
    return figures


async def filled(store: Store, run: Run) -> Figures:
    before = _held()
    begun = time.perf_counter()
    async with Queue.open(store, layout=run.layout) as queue:
        await _add(queue, run.depth)
        return _memory(before) | {"seconds": time.perf_counter() - begun}


async def opened(store: Store, run: Run) -> Figures:
    before = _held()
    begun = time.perf_counter()
    async with Queue.open(store, layout=run.layout) as queue:
        seconds = time.perf_counter() - begun
        assert (await queue.stats()).totals.ready >= run.depth
        return _memory(before) | {"seconds": seconds}


async def beside_snapshots(store: Store, run: Run) -> Figures:
    """Fifty callers, every call timed: a while without a snapshot, then while one is being written, in turns.

    When a snapshot is due is decided by hand here; what is made and written then is the real thing. The callers take
    out what they put in, so the queue stays as deep as it is.
    """
    calls: dict[bool, list[float]] = {False: [], True: []}
    spans: dict[bool, list[float]] = {False: [], True: []}
    writing = False
    async with Queue.open(store, layout=run.layout) as queue:
        await _add(queue, max(0, run.depth - (await queue.stats()).totals.ready))
        await upkeep_is_over()
        _no_snapshots()

        async def timed(call: Any) -> Any:
            begun = time.perf_counter()
            answer = await call
            calls[writing].append(time.perf_counter() - begun)
            return answer

        async def caller() -> None:
            while True:
                await timed(queue.enqueue(BESIDE, PAYLOAD))
                for job in await timed(queue.dequeue(BESIDE)):
                    await timed(job.ack())

        callers = [asyncio.create_task(caller()) for _ in range(CALLERS)]
        await asyncio.sleep(WARM_S)
        calls[False].clear()
        for _ in range(TURNS):
            begun = time.perf_counter()
            await asyncio.sleep(run.seconds)
            spans[False].append(time.perf_counter() - begun)
            before = await _snapshots(store)
            writing, begun = True, time.perf_counter()
            _snapshot_now()
            await asyncio.sleep(BEGINS_S)
            _no_snapshots()
            await upkeep_is_over()
            spans[True].append(time.perf_counter() - begun)
            writing = False
            assert await _snapshots(store) > before, "no snapshot was written"
        for task in callers:
            task.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    return {
        "snapshots": TURNS,
        "snapshot_s": sum(spans[True]) / TURNS,
        "without_ms": max(calls[False]) * 1000,
        "beside_ms": max(calls[True]) * 1000,
        "without_rate": len(calls[False]) / sum(spans[False]),
        "beside_rate": len(calls[True]) / sum(spans[True]),
    }


async def _snapshots(store: Store) -> str:
    """The name of the newest one: names rise with the position."""
    return max([key async for key in store.list("snapshots/")], default="")


def _no_snapshots() -> None:
    pace.SNAPSHOT_SEGMENTS, pace.SNAPSHOT_BYTES, pace.SNAPSHOT_MS = NEVER, NEVER, NEVER


def _snapshot_now() -> None:
    pace.SNAPSHOT_MS, pace.SNAPSHOT_BYTES = 0, NEVER


async def _add(queue: Queue[bytes], count: int) -> list[float]:
    """Add so many jobs, and say how long each call took."""
    took: list[float] = []
    for done in range(0, count, BULK):
        jobs: list[Any] = [(ENTRYPOINT, PAYLOAD)] * min(BULK, count - done)
        begun = time.perf_counter()
        await queue.enqueue_many(jobs)
        took.append(time.perf_counter() - begun)
    return took


def _memory(before: float) -> Figures:
    return {"after_bytes": _held() - before, "peak_bytes": _peak() - before}


def _peak() -> float:
    # Not ru_maxrss, which begins with what the process that started this one had held.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def _held() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main(carry_out)
