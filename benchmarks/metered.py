"""Stores that count what is asked of them, and take their time if told to."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from benchmarks.load import Result
from casque.storage.port import Outcome, Read, Store, Stored

T = TypeVar("T")


class MeteredStore:
    """Another store, each request to it counted, timed and delayed."""

    def __init__(self, inner: Store, *, delay_ms: float = 0.0) -> None:
        self._inner = inner
        self._delay_s = delay_ms / 1000
        self._requests: Counter[str] = Counter()
        self._took_s: list[float] = []
        self._bytes_up = 0
        self._bytes_down = 0
        self._bytes_of_snapshots = 0

    def reset(self) -> None:
        """Forget what opening and warming up the queue cost."""
        self._requests.clear()
        self._took_s.clear()
        self._bytes_up = self._bytes_down = self._bytes_of_snapshots = 0

    def add_to(self, result: Result) -> None:
        result.requests = dict(self._requests)
        result.bytes_up, result.bytes_down = self._bytes_up, self._bytes_down
        result.bytes_of_snapshots = self._bytes_of_snapshots
        result.round_trip_ms = statistics.median(self._took_s or [0.0]) * 1000

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        read = await self._timed("GET", self._inner.get(key, unless=unless))
        if isinstance(read, Stored):
            self._bytes_down += len(read.body)
        return read

    async def create(self, key: str, body: bytes) -> Outcome:
        self._bytes_up += len(body)
        if key.startswith("snapshots/"):
            self._bytes_of_snapshots += len(body)
        return await self._timed("PUT", self._inner.create(key, body))

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        self._bytes_up += len(body)
        return await self._timed("PUT", self._inner.replace(key, body, expected=expected))

    async def delete(self, key: str) -> None:
        await self._timed("DELETE", self._inner.delete(key))

    async def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        self._requests["LIST"] += 1
        async for key in self._inner.list(prefix, after=after):
            yield key

    async def close(self) -> None:
        await self._inner.close()

    async def _timed(self, verb: str, request: Awaitable[T]) -> T:
        self._requests[verb] += 1
        begun = time.perf_counter()
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        answer = await request
        self._took_s.append(time.perf_counter() - begun)
        return answer
