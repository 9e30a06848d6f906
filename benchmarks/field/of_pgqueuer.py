"""PgQueuer on PostgreSQL. Its documented fast path: asyncpg, a large batch, one call for many jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.field.desk import Side, main

BATCH = int(os.environ.get("FIELD_BATCH", "500"))


class OfPgQueuer(Side):
    async def prepare(self) -> None:
        await Queries(AsyncpgDriver(await asyncpg.connect(self.place))).install()

    async def open(self) -> None:
        if self.callers > 1:
            pool = await asyncpg.create_pool(self.place, min_size=20, max_size=20)
            self._queries = Queries(AsyncpgPoolDriver(pool))
        else:
            self._queries = Queries(AsyncpgDriver(await asyncpg.connect(self.place)))

    async def enqueue(self, payload: str) -> None:
        await self._queries.enqueue(self.kind, payload.encode())

    async def enqueue_many(self, payloads: list[str]) -> None:
        await self._queries.enqueue(
            [self.kind] * len(payloads), [payload.encode() for payload in payloads], [0] * len(payloads)
        )

    async def hurry(self, *, on: bool) -> None:
        pass  # it is fast enough

    async def work(self, handle: Callable[[str], None]) -> None:
        queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.place)))

        async def noop(job: Job) -> None:
            assert job.payload is not None
            handle(job.payload.decode())

        queue.entrypoint(self.kind)(noop)
        await queue.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=30))


if __name__ == "__main__":
    main(OfPgQueuer, uvloop.run)
