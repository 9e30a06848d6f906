from __future__ import annotations

from typing import ClassVar

import pytest

from tests.support.cloud_suite import CloudSuite
from tests.support.servers import Server


class TestGcsStore(CloudSuite):
    rounds: ClassVar[int] = 20
    wrong_credentials: ClassVar[dict[str, str]] = {"bearer_token": "not-the-token"}

    @pytest.fixture
    def server(self, gcs_server: Server) -> Server:
        return gcs_server
