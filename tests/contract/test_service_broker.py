"""The suite for services, through a client that follows leaders, to a broker that leads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from casque import Queue
from casque.app import BrokerServer, ServeOptions
from casque.client.remote import RemoteQueue
from casque.service import Host, QueueService
from casque.testing import ServiceSuite
from casque.testing.service_suite import Reach
from casque.transport.listening import Address

FREE = Address.parse("127.0.0.1:0")


class TestThroughABroker(ServiceSuite):
    scheme = "grpc"

    @pytest_asyncio.fixture
    async def host(self, place: str) -> AsyncIterator[Host]:
        server = BrokerServer(ServeOptions(url=place, listen=FREE, http=FREE))
        await server.start()
        try:
            yield server
        finally:
            await server.stop()

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


class TestThroughABrokerByHttp(TestThroughABroker):
    scheme = "http"
