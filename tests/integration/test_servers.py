"""The test servers leave nothing behind, also when nobody had the time to stop them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from casque.clock import SystemClock
from tests.support import servers

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from tests.support import servers
with servers.fake_gcs() as server:
    print(server.endpoint, flush=True)
    sys.stdin.read()
"""


def _answers(endpoint: str) -> bool:
    parts = urlsplit(endpoint)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=1).close()
    except OSError:
        return False
    return True


def test_a_server_ends_with_its_block() -> None:
    with servers.fake_gcs() as server:
        assert _answers(server.endpoint)

    assert not _answers(server.endpoint)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_with_a_test_run_that_is_killed(tmp_path: Path, end: signal.Signals) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        endpoint = holder.stdout.readline().strip()
        assert _answers(endpoint)
        holder.send_signal(end)

    clock = SystemClock()
    deadline = clock.monotonic_ms() + 20_000
    while _answers(endpoint) or list(tmp_path.iterdir()):
        assert clock.monotonic_ms() < deadline, list(tmp_path.iterdir())
