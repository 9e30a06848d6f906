"""Carries out one task on a deep queue in a fresh process and prints what it found as JSON."""

from __future__ import annotations

import asyncio
import resource
import time
from pathlib import Path
from typing import Any

from benchmarks.load import ENTRYPOINT, PAYLOAD, Run, main, upkeep_goes_on, upkeep_is_over
from casque import Queue
from casque.storage.memory import MemoryStore
from casque.storage.port import Store
from casque.storage.url import open_store

BULK = 10_000
SMALL_BULK = 500
GIVE_UP_S = 90.0
"""A snapshot that has not become due by then does not become due."""

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
    """Single calls, timed, while bulk calls make a snapshot due: the longest with one being written, and without."""
    calls: dict[bool, list[float]] = {False: [], True: []}
    spans: list[float] = []
    async with Queue.open(store, layout=run.layout) as queue:
        await _add(queue, max(0, run.depth - (await queue.stats()).totals.ready))
        await upkeep_is_over()
        begun = time.perf_counter()
        feeder = asyncio.create_task(_feed(queue))
        started: float | None = None
        while (now := time.perf_counter()) - begun < GIVE_UP_S:
            in_hand = upkeep_goes_on()
            if in_hand and started is None:
                started = now
            elif not in_hand and started is not None:
                spans.append(now - started)
                started = None
            if spans and now - begun >= run.seconds:
                break
            await queue.enqueue(ENTRYPOINT, PAYLOAD)
            # One that began or ended during the call counts as beside: its first and last steps stall too.
            calls[in_hand or upkeep_goes_on()].append(time.perf_counter() - now)
        feeder.cancel()
        await asyncio.gather(feeder, return_exceptions=True)
    return {
        "snapshots": len(spans),
        "snapshot_s": sum(spans) / max(1, len(spans)),
        "without_ms": max(calls[False], default=0.0) * 1000,
        "beside_ms": max(calls[True], default=0.0) * 1000,
        "without_rate": len(calls[False]) / max(sum(calls[False]), 1e-9),
        "beside_rate": len(calls[True]) / max(sum(calls[True]), 1e-9),
    }


async def _feed(queue: Queue[bytes]) -> None:
    while True:
        await queue.enqueue_many([(ENTRYPOINT, PAYLOAD)] * SMALL_BULK)


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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"after_bytes": _held() - before, "peak_bytes": peak - before}


def _held() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main(carry_out)
