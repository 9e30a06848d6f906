"""The real storage servers, started when the first test asks for one and gone with the test run.

Each xdist worker has its own: starting one takes a second or two, and sharing would tie its end to whichever
worker happens to finish first.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

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


def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import stay for good. Simulated worlds make so much garbage that looking
    through all of it again and again took a seventh of their time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


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
