"""A ring of shards on a store that takes 50 ms per request: how the rate grows with the shards, what a resize costs.

A commit carries a limited number of calls here, and more callers wait than all shards together can carry at once. So
the rate is that of the commits, and what a shard adds is its own. Each caller enqueues one job after the other in
zones of its own, all in one process: the time that this takes is what limits the ring in the end.
"""

from __future__ import annotations

import asyncio
import time

from benchmarks.load import PAYLOAD
from benchmarks.metered import MeteredStore
from benchmarks.report import Section, Steps, Table, median
from benchmarks.scale import Scale
from casque import Queue
from casque.client.opening import Parts
from casque.client.queue import DEFAULTS
from casque.storage.memory import MemoryStore

DELAY_MS = 50.0
CALLS_PER_COMMIT = 25
CALLERS = 600
"""Three for every place in a commit of eight shards: the hash does not spread zones evenly."""
SHARDS = (1, 2, 4, 8)
SHARE = 0.9
LIMIT = CALLS_PER_COMMIT * 1000 / DELAY_MS
"""What one write in flight allows a shard."""
RESIZE_FROM, RESIZE_TO = 4, 8
SLOW_S = 1.0
WINDOW_S = 0.1


def measure(scale: Scale, steps: Steps) -> Section:
    steps.expect(scale.latency_repetitions * len(SHARDS) + 1)
    rates: dict[int, list[float]] = {shards: [] for shards in SHARDS}
    for _ in range(scale.latency_repetitions):
        for shards in SHARDS:
            rates[shards].append(asyncio.run(_rate(shards, scale)))
            steps.done(f"{shards} shards")
    section = Section()
    table = Table(
        f"ring: {CALLERS} callers, {CALLS_PER_COMMIT} calls per commit, {DELAY_MS:.0f} ms per request",
        ["shards", "enqueues/s", "times one shard", "per shard", "of what one write in flight allows"],
    )
    one = median(rates[1])
    for shards in SHARDS:
        times = median(rates[shards]) / one
        allowed = median(rates[shards]) / (shards * LIMIT)
        table.add(shards, median(rates[shards]), f"{times:.2f}", f"{times / shards:.2f}", f"{allowed:.0%}")
        if shards > 1:
            section.aim_for(f"{shards} shards, times one", times, at_least=SHARE * shards, unit=" times")
    section.tables.append(table)
    section.tables.append(_resized(section, scale))
    steps.done("resize")
    return section


def _resized(section: Section, scale: Scale) -> Table:
    before, after, slow_s, failed = asyncio.run(_resize(scale))
    table = Table(
        f"ring: {RESIZE_FROM} shards become {RESIZE_TO} under the same load",
        ["enqueues/s before", "after", "below half of that before, s", "failed calls"],
    )
    table.add(before, after, f"{slow_s:.1f}", failed)
    table.notes.append("Nobody takes jobs here, so that all zones stay where they are, and the new shards have none.")
    section.keep_below("resize, failed calls", failed, at_most=0)
    section.keep_below("resize, longest below half the rate", slow_s, at_most=SLOW_S, unit=" s")
    return table


class _Load:
    """Callers that never stop asking."""

    def __init__(self, queue: Queue[bytes]) -> None:
        self._queue = queue
        self.done = 0
        self.failed = 0
        self._callers = [asyncio.create_task(self._call(n)) for n in range(CALLERS)]

    async def _call(self, caller: int) -> None:
        n = 0
        while True:
            n += 1
            try:
                await self._queue.enqueue("task", PAYLOAD, zone=f"{caller}/{n % 16}")
            except Exception:  # noqa: BLE001  whatever it is, it is counted
                self.failed += 1
            self.done += 1

    async def rate(self, seconds: float) -> float:
        begun, done = time.perf_counter(), self.done
        await asyncio.sleep(seconds)
        return (self.done - done) / (time.perf_counter() - begun)

    async def stop(self) -> None:
        for caller in self._callers:
            caller.cancel()
        await asyncio.gather(*self._callers, return_exceptions=True)


async def _rate(shards: int, scale: Scale) -> float:
    store = MemoryStore()
    await Parts(store, DEFAULTS).builder().create(shards)
    async with _opened(store) as queue:
        load = _Load(queue)
        await load.rate(scale.log_warm_up_s)  # until each shard's writer knows itself alone, it reads too
        rate = await load.rate(scale.latency_seconds)
        await load.stop()
    return rate


async def _resize(scale: Scale) -> tuple[float, float, float, int]:
    """The rate before and after, how long it was below half of the first, and calls that failed."""
    store = MemoryStore()
    parts = Parts(MeteredStore(store, delay_ms=DELAY_MS), DEFAULTS)
    await Parts(store, DEFAULTS).builder().create(RESIZE_FROM)
    async with _opened(store) as queue:
        load = _Load(queue)
        await load.rate(scale.log_warm_up_s)
        before = await load.rate(scale.latency_seconds)
        resizing = asyncio.create_task(parts.builder().resize(RESIZE_TO))
        slow_s = longest_s = 0.0
        ends = time.perf_counter() + scale.latency_seconds + scale.log_warm_up_s
        while time.perf_counter() < ends or not resizing.done():
            is_slow = await load.rate(WINDOW_S) < before / 2
            slow_s = slow_s + WINDOW_S if is_slow else 0.0
            longest_s = max(longest_s, slow_s)
        after = await load.rate(scale.latency_seconds)
        await resizing
        await load.stop()
    return before, after, longest_s, load.failed


def _opened(store: MemoryStore) -> Queue[bytes]:
    return Queue.open(MeteredStore(store, delay_ms=DELAY_MS), batch_max=CALLS_PER_COMMIT, archive=False)
