from __future__ import annotations

from typing import ClassVar

import pytest

from tests.support.cloud_suite import CloudSuite
from tests.support.servers import Server


class TestAzureStore(CloudSuite):
    rounds: ClassVar[int] = 20
    wrong_credentials: ClassVar[dict[str, str]] = {"account_key": "bm90IHRoZSBrZXk="}

    @pytest.fixture
    def server(self, azure_server: Server) -> Server:
        return azure_server
