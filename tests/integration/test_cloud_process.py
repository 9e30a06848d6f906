"""Cloud stores and processes: what happens at a fork and at the end."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from tests.support.servers import Server

USE = """
import asyncio, json, os, sys
from casque.storage.url import open_store
store = open_store(sys.argv[1], options=json.loads(sys.argv[2]))
print(asyncio.run(store.get("key")), flush=True)
"""
FORK = (
    USE
    + """
from casque.errors import StoreAccessError
child = os.fork()
if child == 0:
    try:
        asyncio.run(store.get("key"))
    except StoreAccessError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
)


def _run(script: str, server: Server) -> str:
    options = msgspec.json.encode(server.options).decode()
    done = subprocess.run(
        [sys.executable, "-c", script, server.fresh_url(), options],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_a_forked_child_is_told_instead_of_hanging(gcs_server: Server) -> None:
    first, second = _run(FORK, gcs_server).splitlines()

    assert first == "Missing()"
    assert "spawn" in second


def test_a_process_that_ends_right_after_its_work_ends_well(gcs_server: Server) -> None:
    # Without the pause at exit about every tenth of these dies of SIGABRT.
    assert [_run(USE, gcs_server) for _ in range(15)] == ["Missing()\n"] * 15
