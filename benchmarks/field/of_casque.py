"""casque: embedded on a directory, or through a broker in another process; the URL tells. Its worker is the command."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import uvloop

import casque
from benchmarks.field.desk import Side, Task, main

CONCURRENCY = os.environ.get("FIELD_CONCURRENCY", "100")


class OfCasque(Side):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._given = task
        self._app = casque.App(self.place)
        self._task: Any = self._app.job(self.kind)(noop)

    async def prepare(self) -> None:
        async with self._app:
            pass

    async def open(self) -> None:
        await self._app.__aenter__()

    async def enqueue(self, payload: str) -> None:
        await self._task.enqueue(payload)

    async def enqueue_many(self, payloads: list[str]) -> None:
        await self._task.enqueue_many([self._task.bind(payload) for payload in payloads])

    async def hurry(self, *, on: bool) -> None:
        pass  # it is fast enough

    async def work(self, handle: Callable[[str], None]) -> None:  # noqa: ARG002  the app has one of its own
        os.environ["FIELD_TASK"] = json.dumps(asdict(self._given))
        command = ["-m", "casque.cli", "worker", "benchmarks.field.casque_app:app", "--concurrency", CONCURRENCY]
        os.execv(sys.executable, [sys.executable, *command])


async def noop(payload: str) -> None:
    """What is enqueued; the worker has one of its own by this name."""


if __name__ == "__main__":
    main(OfCasque, uvloop.run)
