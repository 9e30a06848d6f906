"""The real storage servers, started when the first test asks for one and gone with the test run.

Each xdist worker has its own: starting one takes a second or two, and sharing would tie its end to whichever
worker happens to finish first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support import servers
from tests.support.servers import Server, ServerMissingError


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that take long, and prove once more or elsewhere what others prove, are worth their minutes before a
    release, not every time: most of them start Spark again and again, to kill it."""
    if os.environ.get("CASQUE_LONG") != "1":
        for item in items:
            if item.get_closest_marker("long") is not None:
                item.add_marker(pytest.mark.skip(reason="takes long: make proof"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """For `scripts/tests`: which tests failed, without the group that xdist adds to their names."""
    path = os.environ.get("CASQUE_FAILED")
    if path and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(path).open("a+", encoding="utf-8") as failed:
            name = re.sub(r"@\w+$", "", report.nodeid)
            if getattr(report, "_schemathesis_subtest", False):  # a part of a test, which cannot be run by itself
                name = name.partition("[")[0]
            failed.seek(0)
            if f"{name}\n" not in failed.readlines():
                failed.write(f"{name}\n")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    """SeaweedFS."""
    yield from _started(servers.seaweedfs)


@pytest.fixture(scope="session")
def azure_server() -> Iterator[Server]:
    """azurite."""
    yield from _started(servers.azurite)


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[Server]:
    """fake-gcs-server behind the shim."""
    yield from _started(servers.fake_gcs)


def _started(server: Callable[[], AbstractContextManager[Server]]) -> Iterator[Server]:
    try:
        with server() as running:
            yield running
    except ServerMissingError as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))
