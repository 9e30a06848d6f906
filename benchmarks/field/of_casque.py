"""casque: embedded on a directory, or through a broker in another process; the URL tells."""

from __future__ import annotations

import os
from collections.abc import Callable

import uvloop

import casque
from benchmarks.field.desk import Side, main
from casque.worker import Worker

CONCURRENCY = int(os.environ.get("FIELD_CONCURRENCY", "100"))


class OfCasque(Side):
    async def prepare(self) -> None:
        async with self._app(lambda _payload: None)[0]:
            pass

    async def open(self) -> None:
        self._open, self._task = self._app(lambda _payload: None)
        await self._open.__aenter__()

    async def enqueue(self, payload: str) -> None:
        await self._task.enqueue(payload)

    async def enqueue_many(self, payloads: list[str]) -> None:
        await self._task.enqueue_many([self._task.bind(payload) for payload in payloads])

    async def work(self, handle: Callable[[str], None]) -> None:
        await Worker(self._app(handle)[0], concurrency=CONCURRENCY).run()

    def _app(self, handle: Callable[[str], None]):  # type: ignore[no-untyped-def]
        app = casque.App(self.place)

        @app.job(self.kind)
        async def noop(payload: str) -> None:
            handle(payload)

        return app, noop


if __name__ == "__main__":
    main(OfCasque, uvloop.run)
