from __future__ import annotations

from typing import ClassVar

import pytest

from tests.support.cloud_suite import CloudSuite
from tests.support.servers import Server


class TestS3Store(CloudSuite):
    wrong_credentials: ClassVar[dict[str, str]] = {"secret_access_key": "not-the-secret"}

    @pytest.fixture
    def server(self, s3_server: Server) -> Server:
        return s3_server
