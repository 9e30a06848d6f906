"""Carries out one run on casque in a fresh process and prints the result as JSON."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.load import ENTRYPOINT, PAYLOAD, Result, Run, drive, main, upkeep_is_over
from benchmarks.metered import MeteredStore
from casque import BrokerQueue, LocalFileSystemStorage, Queue
from casque.storage.memory import MemoryStore
from casque.storage.url import open_store

FILL_AT_ONCE = 5_000


async def carry_out(run: Run) -> Result:
    if run.place == "file":
        directory = tempfile.mkdtemp()  # deleted by whoever started this process
        await fill(f"file://{directory}", run)
        async with _on_files(run, directory) as queue:
            return await drive(queue, run)
    store = MemoryStore() if run.place == "memory" else open_store(run.place, options=run.options)
    await fill(store, run)
    metered = MeteredStore(store, delay_ms=run.delay_ms)
    async with Queue.open(metered, layout=run.layout) if run.api == "queue" else BrokerQueue(metered) as queue:
        result = await drive(queue, run, warm=metered.reset)
        metered.add_to(result)
        return result


async def fill(place: Any, run: Run) -> None:
    async with Queue.open(place, layout=run.layout) as queue:
        for done in range(0, run.depth, FILL_AT_ONCE):
            await queue.enqueue_many([(ENTRYPOINT, PAYLOAD)] * min(FILL_AT_ONCE, run.depth - done))
        await upkeep_is_over()


@contextlib.asynccontextmanager
async def _on_files(run: Run, directory: str) -> AsyncIterator[Any]:
    if run.api == "queue":
        async with Queue.open(f"file://{directory}", layout=run.layout) as queue:
            yield queue
    else:
        async with BrokerQueue(LocalFileSystemStorage(f"{directory}/queue.json")) as small:
            yield small


if __name__ == "__main__":
    main(carry_out)
