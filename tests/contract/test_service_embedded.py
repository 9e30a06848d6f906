"""The suite for services, without any wire: on memory and on files, in the log layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from casque.testing import ServiceSuite


class TestEmbeddedInMemory(ServiceSuite):
    pass


class TestEmbeddedOnFiles(ServiceSuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/queue"
