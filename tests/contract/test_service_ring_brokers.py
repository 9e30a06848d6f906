"""The suite for services on a ring of four shards behind brokers, as far as a ring promises the same as a queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from casque import Queue
from casque.app import BrokerServer, ServeOptions
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.client.remote import RemoteQueue
from casque.service import Host, QueueService
from casque.settings import BrokerSettings
from casque.testing import ServiceSuite
from casque.testing.service_suite import Reach
from casque.transport.listening import Address
from tests.contract.test_service_ring import DIFFERS

FREE = Address.parse("127.0.0.1:0")
SOON = BrokerSettings(
    heartbeat=timedelta(milliseconds=100), lease=timedelta(seconds=5), poll=timedelta(milliseconds=50)
)


FEEDS = {"test_a_follower_hears_of_what_others_do": "the feed of a ring is read from the bucket"}


@asynccontextmanager
async def brokers(place: str, count: int, shards: int = 4, **options: Any) -> AsyncIterator[list[BrokerServer]]:
    """So many that lead as many shards each."""
    store = as_store(place)
    await Parts(store, DEFAULTS).builder().create(shards)
    await store.close()
    started: list[BrokerServer] = []
    try:
        for _ in range(count):
            server = BrokerServer(ServeOptions(url=place, listen=FREE, http=FREE, broker=SOON, **options))
            await server.start()
            started.append(server)
        for server in started:
            while server.standing().led != shards // count:
                await server.changed()
        yield started
    finally:
        for server in started:
            await server.stop()


class TestRingBehindABroker(ServiceSuite):
    scheme = "grpc"
    count = 1

    @pytest.fixture(autouse=True)
    def _as_far_as_it_applies(self, request: pytest.FixtureRequest) -> None:
        if (why := {**DIFFERS, **FEEDS}.get(request.node.originalname)) is not None:
            pytest.skip(why)

    @pytest_asyncio.fixture
    async def host(self, place: str) -> AsyncIterator[Host]:
        async with brokers(place, self.count) as servers:
            yield servers[0]

    @pytest.fixture
    def reach(self) -> Reach:
        return self._reached

    @asynccontextmanager
    async def _reached(self, host: Host) -> AsyncIterator[QueueService]:
        assert isinstance(host, BrokerServer)
        port = host.grpc_port if self.scheme == "grpc" else host.http_port
        async with Queue.open(f"{self.scheme}://127.0.0.1:{port}") as queue:
            assert isinstance(queue._embedded, RemoteQueue)
            yield queue._embedded


class TestRingBehindTwoBrokers(TestRingBehindABroker):
    count = 2


class TestRingBehindTwoBrokersByHttp(TestRingBehindABroker):
    scheme = "http"
    count = 2
