"""Carries out one run on jqueue 1.0 in a fresh process and prints the result as JSON.

It runs in an environment that holds jqueue and not casque, so beside jqueue it needs the standard library only.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from jqueue import BrokerQueue, InMemoryStorage, Job, LocalFileSystemStorage, QueueState
from jqueue.core import codec

from benchmarks.load import ENTRYPOINT, PAYLOAD, Result, Run, drive, main


async def carry_out(run: Run) -> Result:
    filled = codec.encode(QueueState(jobs=tuple(Job.new(ENTRYPOINT, PAYLOAD) for _ in range(run.depth)), version=1))
    if run.place == "file":
        path = Path(tempfile.mkdtemp()) / "queue.json"  # deleted by whoever started this process
        path.write_bytes(filled)
        async with BrokerQueue(LocalFileSystemStorage(path)) as queue:
            return await drive(queue, run)
    metered = MeteredStorage(InMemoryStorage(initial_content=filled), run.delay_ms)
    async with BrokerQueue(metered) as queue:
        result = await drive(queue, run, warm=metered.reset)
        metered.add_to(result)
        return result


class MeteredStorage:
    """jqueue's storage in memory, each request counted, timed and delayed."""

    def __init__(self, inner: Any, delay_ms: float) -> None:
        self._inner = inner
        self._delay_s = delay_ms / 1000
        self.reset()

    def reset(self) -> None:
        self._took_s: list[float] = []
        self._requests = {"GET": 0, "PUT": 0}
        self._bytes_up = self._bytes_down = 0

    async def read(self) -> tuple[bytes, str | None]:
        await self._wait("GET")
        content, etag = await self._inner.read()
        self._bytes_down += len(content)
        return content, etag

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        await self._wait("PUT")
        self._bytes_up += len(content)
        etag: str = await self._inner.write(content, if_match)
        return etag

    def add_to(self, result: Result) -> None:
        result.requests = self._requests
        result.bytes_up, result.bytes_down = self._bytes_up, self._bytes_down
        result.round_trip_ms = statistics.median(self._took_s) * 1000

    async def _wait(self, verb: str) -> None:
        self._requests[verb] += 1
        begun = time.perf_counter()
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        self._took_s.append(time.perf_counter() - begun)


if __name__ == "__main__":
    main(carry_out)
