"""One program, run with jqueue 1.0 and with the drop-in: it sees the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
NO_PYTHON = 3

pytestmark = pytest.mark.xdist_group("jqueue")


@pytest.fixture(scope="module")
def there() -> Any:
    """With jqueue."""
    made = subprocess.run([HERE.parents[1] / "scripts" / "jqueue-venv"], capture_output=True, text=True)
    if made.returncode == NO_PYTHON:
        pytest.skip(made.stderr.strip())
    assert made.returncode == 0, made.stderr
    return run(made.stdout.strip(), "jqueue")


@pytest.fixture(scope="module")
def here() -> Any:
    """With the drop-in."""
    return run(sys.executable, "casque.compat.jqueue")


def run(python: str, package: str) -> Any:
    ran = subprocess.run([python, HERE / "jqueue_program.py", package], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_every_public_name_takes_what_it_took(there: Any, here: Any) -> None:
    assert here["surface"] == there["surface"]


def test_a_program_sees_what_it_saw(there: Any, here: Any) -> None:
    assert here["behaviour"].keys() == there["behaviour"].keys()
    for what, seen in there["behaviour"].items():
        assert here["behaviour"][what] == seen, what
