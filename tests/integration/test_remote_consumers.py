"""Consumers of zones that reach the queue through a broker, over every wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from casque import NewJob, Queue
from casque.testing.hosting import leading
from casque.worker import ConsumerOptions, Handler, JobContext, Worker
from tests.integration.over_http.hosts import serving as over_http
from tests.support.over_grpc import serving as over_grpc


class App:
    """A queue behind a broker, and one thing to do with its jobs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.opening: Mapping[str, Any] = {}
        self.seen: Counter[bytes] = Counter()
        self.handlers = {"do": Handler("do", self._note)}

    async def _note(self, payload: bytes, context: JobContext) -> None:
        self.seen[payload] += 1


@pytest.mark.parametrize("wire", ["grpc", "http"])
async def test_a_remote_consumer_works_off_every_zone_once_and_leaves_none_leased(wire: str) -> None:
    serving: Any = over_grpc if wire == "grpc" else over_http
    async with leading(f"memory://remote-consumer-{wire}") as host, serving(host) as server:
        app = App(f"{wire}://127.0.0.1:{server.port}")
        async with Queue.open(app.url) as queue:
            jobs = [NewJob("do", b"%d" % n, zone=f"z{n % 9}", fifo=n % 9 == 0) for n in range(90)]
            await queue.enqueue_many(jobs)
            options = ConsumerOptions(selection_frac=1.0, scanner_interval=0.01, scanner_idle=0.01)

            summary = await Worker(app, burst=True, consumer=options).run()

            assert (summary.done, len(app.seen), set(app.seen.values())) == (90, 90, {1})
            assert await queue.zones() == []
