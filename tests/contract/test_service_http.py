"""The suite for services, over HTTP on a real port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from casque.service import Host, QueueService
from casque.testing import ServiceSuite
from casque.testing.service_suite import Reach
from casque.transport.http.client import HttpService
from casque.transport.http.server import HttpServer


@asynccontextmanager
async def over_http(host: Host) -> AsyncIterator[QueueService]:
    server = HttpServer(host, listen="127.0.0.1:0")
    await server.start()
    try:
        async with HttpService(f"127.0.0.1:{server.port}") as client:
            yield client
    finally:
        await server.stop(grace_s=5)


class TestOverHttp(ServiceSuite):
    @pytest.fixture
    def reach(self) -> Reach:
        return over_http


class TestOverHttpOnFiles(ServiceSuite):
    @pytest.fixture
    def reach(self) -> Reach:
        return over_http

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/queue"
