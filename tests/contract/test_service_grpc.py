"""The suite for services, over gRPC on a real port."""

from __future__ import annotations

from pathlib import Path

import pytest

from casque.testing import ServiceSuite
from casque.testing.service_suite import Reach
from tests.support.over_grpc import over_grpc


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
