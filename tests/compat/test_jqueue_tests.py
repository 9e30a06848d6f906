"""jqueue's own tests, unmodified, on `casque.compat.jqueue` under the name `jqueue`.

They are downloaded, never kept here. Those that look into private fields of jqueue are left out by name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_TO_BE_HAD = 3

CONFTEST = """
import importlib, pkgutil, sys
import casque.compat.jqueue as compat

sys.modules["jqueue"] = compat
for found in pkgutil.walk_packages(compat.__path__, compat.__name__ + "."):
    sys.modules[found.name.replace(compat.__name__, "jqueue", 1)] = importlib.import_module(found.name)
"""

PRIVATE = {
    "test_broker_queue.py::test_context_manager_starts_and_stops_loop": "BrokerQueue._loop._task",
    "test_group_commit.py::test_start_creates_task": "GroupCommitLoop._task",
    "test_group_commit.py::test_stop_clears_task": "GroupCommitLoop._task",
    "test_storage_s3.py::test_client_kwargs_empty_by_default": "S3Storage._client_kwargs",
    "test_storage_s3.py::test_client_kwargs_with_region": "S3Storage._client_kwargs",
    "test_storage_s3.py::test_client_kwargs_with_endpoint_url": "S3Storage._client_kwargs",
    "test_storage_s3.py::test_client_kwargs_with_both": "S3Storage._client_kwargs",
    "test_storage_gcs.py": "GCSStorage._sync_read and _sync_write",
}
"""What a test, or every test of a file, looks at."""


@pytest.fixture(scope="module")
def their_tests() -> Path:
    """Where jqueue's tests are."""
    environment = {**os.environ, "PYTHON": sys.executable}
    got = subprocess.run([ROOT / "scripts" / "jqueue-tests"], env=environment, capture_output=True, text=True)
    if got.returncode == NOT_TO_BE_HAD and os.environ.get("CI") != "true":
        pytest.skip(got.stderr.strip())
    assert got.returncode == 0, got.stderr
    return Path(got.stdout.strip())


def test_the_tests_of_jqueue_pass_on_the_drop_in(their_tests: Path, tmp_path: Path) -> None:
    shutil.copytree(their_tests, tmp_path / "tests")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    left_out = [f"--{'deselect' if '::' in name else 'ignore'}=tests/{name}" for name in PRIVATE]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *left_out, "tests"]

    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "169 passed, 7 deselected" in ran.stdout, ran.stdout
