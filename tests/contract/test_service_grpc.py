"""The suite for services, over gRPC on a real port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from casque.service import Host, QueueService
from casque.testing import ServiceSuite
from casque.testing.service_suite import Reach
from casque.transport.grpc.client import GrpcService
from casque.transport.grpc.server import GrpcServer


@asynccontextmanager
async def over_grpc(host: Host) -> AsyncIterator[QueueService]:
    server = GrpcServer(host, listen="127.0.0.1:0")
    await server.start()
    client = GrpcService(f"127.0.0.1:{server.port}")
    try:
        yield client
    finally:
        await client.close()
        await server.stop(grace_s=5)


class TestOverGrpc(ServiceSuite):
    @pytest.fixture
    def reach(self) -> Reach:
        return over_grpc


class TestOverGrpcOnFiles(ServiceSuite):
    @pytest.fixture
    def reach(self) -> Reach:
        return over_grpc

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/queue"
