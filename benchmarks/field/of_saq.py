"""SAQ on Redis."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import uvloop
from saq import Worker
from saq.queue.redis import RedisQueue

from benchmarks.field.desk import Side, main

CONCURRENCY = int(os.environ.get("FIELD_CONCURRENCY", "20"))


class OfSaq(Side):
    has_bulk = False

    async def prepare(self) -> None:
        pass

    async def open(self) -> None:
        self._queue = self._named()
        await self._queue.connect()

    async def enqueue(self, payload: str) -> None:
        await self._queue.enqueue("noop", payload=payload, ttl=-1)

    async def hurry(self, *, on: bool) -> None:
        await self._queue.redis.config_set("appendfsync", "no" if on else "always")

    async def work(self, handle: Callable[[str], None]) -> None:
        async def noop(_context: Any, *, payload: str) -> None:
            handle(payload)

        queue = self._named()
        await queue.connect()
        await Worker(queue, functions=[("noop", noop)], concurrency=CONCURRENCY).start()

    def _named(self) -> RedisQueue:
        return RedisQueue.from_url(self.place, name=self.kind)


if __name__ == "__main__":
    main(OfSaq, uvloop.run)
