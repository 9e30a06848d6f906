"""Huey on SQLite, which it opens with a write-ahead log; every commit is synchronous here."""

from __future__ import annotations

import os
from collections.abc import Callable

from huey import SqliteHuey
from huey.consumer import Consumer

from benchmarks.field.desk import Side, main

WORKERS = int(os.environ.get("FIELD_CONCURRENCY", "1"))


class OfHuey(Side):
    blocks = True
    has_bulk = False

    def prepare(self) -> None:
        self._named()

    def open(self) -> None:
        self._task = self._named().task(name="noop")(_noop)

    def enqueue(self, payload: str) -> None:
        self._task(payload)

    def hurry(self, *, on: bool) -> None:
        self._task.huey.storage.conn.execute(f"pragma synchronous={0 if on else 2}")

    def work(self, handle: Callable[[str], None]) -> None:
        def noop(payload: str) -> None:
            handle(payload)

        huey = self._named()
        huey.task(name="noop")(noop)
        Consumer(huey, workers=WORKERS, initial_delay=0.001, max_delay=0.002, periodic=False).run()

    def _named(self) -> SqliteHuey:
        return SqliteHuey(self.kind, filename=self.place, fsync=True, results=False, timeout=60)


def _noop(payload: str) -> None:
    """What is enqueued; the worker has one of its own by this name."""


if __name__ == "__main__":
    main(OfHuey)
