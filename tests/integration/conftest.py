"""What several of these tests need around them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the variable nor a file of whoever runs the tests."""
    monkeypatch.delenv("CASQUE_URL", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
