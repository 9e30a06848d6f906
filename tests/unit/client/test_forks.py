"""A forked child that uses its parent's queue gets an error: no call hangs, and nothing is written."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

PARENT = """
import asyncio, os, sys
import casque
from casque import BrokerQueue, Queue, QueueClosedError, SyncQueue

url = sys.argv[1]
app = casque.App(url)


@app.job()
def send(to: str) -> None: ...


def in_child(use):
    '''Fork, use the queue in the child, and return what that said.'''
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            use()
            said = "it worked"
        except QueueClosedError as error:
            said = str(error)
        except BaseException as error:
            said = repr(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    return said


def blocking():
    with SyncQueue.open(url) as queue:
        queue.enqueue("send", b"parent")

        print(in_child(lambda: queue.enqueue("send", b"child")))
        print(in_child(lambda: queue.__exit__(None, None, None)))
        queue.enqueue("send", b"parent")


def functions():
    with app:
        send.enqueue_sync("parent")
        print(in_child(lambda: send.enqueue_sync("child")))
        print(in_child(lambda: app.__exit__(None, None, None)))
        send.enqueue_sync("parent")


async def awaited(kind):
    async with kind(url) as queue:
        await queue.enqueue("send", b"parent")

        def use(call):
            # A child of an async program starts a loop of its own.
            asyncio._set_running_loop(None)
            loop = asyncio.new_event_loop()
            loop.run_until_complete(call())
            loop.close()

        print(in_child(lambda: use(lambda: queue.enqueue("send", b"child"))))
        print(in_child(lambda: use(lambda: queue.__aexit__(None, None, None))))
        await queue.enqueue("send", b"parent")


match sys.argv[2]:
    case "blocking": blocking()
    case "functions": functions()
    case "async": asyncio.run(awaited(Queue.open))
    case "jqueue": asyncio.run(awaited(BrokerQueue))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("way", ["blocking", "functions", "async", "jqueue"])
async def test_a_forked_child_is_told_to_open_the_queue_itself(tmp_path: Path, way: str) -> None:
    url = (tmp_path / "queue").as_uri()
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PARENT, url, way]

    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)

    assert ended.returncode == 0, ended.stderr
    used, left = ended.stdout.splitlines()
    assert used.startswith("this process was forked from the one that opened the queue")
    assert "open the queue after the fork" in used
    assert left == "it worked", "leaving the block in the child is harmless"
    listed = [sys.executable, "-m", "casque.cli", "jobs", "list", url, "--json"]
    shown = await asyncio.to_thread(subprocess.run, listed, capture_output=True, text=True, timeout=120, check=True)
    assert len(shown.stdout.splitlines()) == 2, "those of the parent"
