"""jqueue on a local file, which it does not sync. It has no worker of its own: this is the loop that its pages show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from jqueue import BrokerQueue, LocalFileSystemStorage

from benchmarks.field.desk import Side, main

BATCH = 100
LOOKS_AGAIN_S = 0.002


class OfJqueue(Side):
    has_bulk = False

    async def prepare(self) -> None:
        pass

    async def open(self) -> None:
        self._queue = await BrokerQueue(LocalFileSystemStorage(Path(self.place))).__aenter__()

    async def enqueue(self, payload: str) -> None:
        await self._queue.enqueue(self.kind, payload.encode())

    async def hurry(self, *, on: bool) -> None:
        pass  # it is fast enough

    async def work(self, handle: Callable[[str], None]) -> None:
        await self.open()
        while True:
            jobs = await self._queue.dequeue(self.kind, batch_size=BATCH)
            for job in jobs:
                handle(job.payload.decode())
            if jobs:
                await asyncio.gather(*(self._queue.ack(job.id) for job in jobs))
            else:
                await asyncio.sleep(LOOKS_AGAIN_S)


if __name__ == "__main__":
    main(OfJqueue)
