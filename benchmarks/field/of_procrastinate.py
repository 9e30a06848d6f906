"""Procrastinate on PostgreSQL, through psycopg and its pool."""

from __future__ import annotations

import os
from collections.abc import Callable

import uvloop
from procrastinate import App, PsycopgConnector

from benchmarks.field.desk import Side, main

CONCURRENCY = int(os.environ.get("FIELD_CONCURRENCY", "20"))


class OfProcrastinate(Side):
    async def prepare(self) -> None:
        async with self._app().open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        self._task = self._noop(self._app(), lambda _payload: None)
        await self._task.blueprint.open_async()

    async def enqueue(self, payload: str) -> None:
        await self._task.defer_async(payload=payload)

    async def enqueue_many(self, payloads: list[str]) -> None:
        await self._task.batch_defer_async(*({"payload": payload} for payload in payloads))

    async def hurry(self, *, on: bool) -> None:
        pass  # it is fast enough

    async def work(self, handle: Callable[[str], None]) -> None:
        app = self._app()
        self._noop(app, handle)
        async with app.open_async():
            await app.run_worker_async(queues=[self.kind], concurrency=CONCURRENCY, delete_jobs="always")

    def _app(self) -> App:
        return App(connector=PsycopgConnector(conninfo=self.place, min_size=2, max_size=20))

    def _noop(self, app: App, handle: Callable[[str], None]):  # type: ignore[no-untyped-def]
        async def noop(payload: str) -> None:
            handle(payload)

        return app.task(queue=self.kind, name=self.kind)(noop)


if __name__ == "__main__":
    main(OfProcrastinate, uvloop.run)
