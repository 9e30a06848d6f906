"""RQ on Redis, with the worker that does not fork for every job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from urllib.parse import urlsplit

from redis import Redis
from rq import Queue, SimpleWorker

from benchmarks.field.desk import Side, main

handler: Callable[[str], object] = len


class OfRq(Side):
    blocks = True

    def prepare(self) -> None:
        pass

    def open(self) -> None:
        self._queue = Queue(self.kind, connection=self._redis())

    def enqueue(self, payload: str) -> None:
        self._queue.enqueue("benchmarks.field.of_rq.noop", payload, result_ttl=0)

    def enqueue_many(self, payloads: list[str]) -> None:
        made = [Queue.prepare_data("benchmarks.field.of_rq.noop", (payload,), result_ttl=0) for payload in payloads]
        self._queue.enqueue_many(made)

    def hurry(self, *, on: bool) -> None:
        self._redis().config_set("appendfsync", "no" if on else "always")

    def work(self, handle: Callable[[str], None]) -> None:
        # Not in the module that runs as __main__, which is another one.
        import_module("benchmarks.field.of_rq").__dict__["handler"] = handle
        SimpleWorker([self.kind], connection=self._redis()).work(logging_level=logging.ERROR)

    def _redis(self) -> Redis:
        return Redis(unix_socket_path=urlsplit(self.place).path)


def noop(payload: str) -> None:
    handler(payload)


if __name__ == "__main__":
    main(OfRq)
