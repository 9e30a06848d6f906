"""Celery on Redis: one process that acknowledges a job when it is done, and keeps no results."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from celery import Celery
from redis import Redis

from benchmarks.field.desk import Side, main


class OfCelery(Side):
    blocks = True
    has_bulk = False

    def prepare(self) -> None:
        pass

    def open(self) -> None:
        self._task = self._noop(lambda _payload: None)

    def enqueue(self, payload: str) -> None:
        self._task.apply_async((payload,), queue=self.kind)

    def hurry(self, *, on: bool) -> None:
        Redis(unix_socket_path=urlsplit(self.place).path).config_set("appendfsync", "no" if on else "always")

    def work(self, handle: Callable[[str], None]) -> None:
        task = self._noop(handle)
        task.app.worker_main(
            ["worker", "-P", "solo", "-Q", self.kind, "--without-gossip", "--without-mingle", "-l", "ERROR"]
        )

    def _noop(self, handle: Callable[[str], None]):  # type: ignore[no-untyped-def]
        app = Celery("field", broker=f"redis+socket://{urlsplit(self.place).path}")
        app.conf.update(task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=64)
        app.conf.update(worker_redirect_stdouts=False)  # or else nobody hears what a job says

        def noop(payload: str) -> None:
            handle(payload)

        return app.task(name="noop")(noop)


if __name__ == "__main__":
    main(OfCelery)
