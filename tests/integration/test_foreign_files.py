"""What another program wrote is never taken for a queue, and never written over, whichever way one comes in."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from casque import BrokerQueue, DirectQueue, InMemoryStorage, LocalFileSystemStorage, Queue
from casque.errors import CasqueError, CorruptQueueError, StoreAccessError

FOREIGN = {
    "an object": b"{}",
    "a package": b'{"name": "shop", "version": "1.0.0", "jobs": {}}',
    "a version and jobs among others": b'{"version": 3, "jobs": [], "runner": "ci"}',
    "jobs alone": b'{"jobs": []}',
    "a version alone": b'{"version": 7}',
    "a format": b'{"format": 1}',
    "a format and a layout": b'{"format": 1, "layout": "document"}',
    "a newer format of something else": b'{"format": 9, "pages": []}',
    "osqueue's in Go": b'{"broker": "host-1:7", "brokerHeartbeat": 1900000000000, "jobs": []}',
    "osqueue's in TypeScript": b'{"version": 4, "broker": "10.0.0.1:80", "brokerHeartbeat": 1900000000000, "jobs": []}',
    "a list": b"[]",
    "text": b"hello\n",
    "deep": b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "deep where jobs should be": b'{"version": 1, "jobs": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "deep in a field of ours": b'{"format": 1, "layout": "log", "queue_id": "q", "owner": ' + b"[" * 200_000 + b"}",
    "no text at all": b"\xff\xfe\x00",
}

COMMANDS = {
    "enqueue": ["enqueue", "work", "{}"],
    "dequeue": ["dequeue"],
    "queue info": ["queue", "info"],
    "queue verify": ["queue", "verify"],
    "queue create": ["queue", "create"],
    "jobs list": ["jobs", "list"],
    "jobs purge": ["jobs", "purge", "--yes"],
    "convert": ["convert", "--to", "log"],
    "serve": ["serve", "--listen", "127.0.0.1:0", "--no-http"],
}


async def _use(queue: BrokerQueue) -> None:
    async with queue:
        await queue.enqueue("work", b"payload")


async def _use_directly(queue: DirectQueue) -> None:
    await queue.enqueue("work", b"payload")


async def _open(url: str) -> None:
    async with Queue.open(url) as queue:
        await queue.enqueue("work", b"payload")


async def _spread(url: str) -> None:
    async with Queue.open(url) as queue:
        for n in range(20):
            await queue.enqueue("work", b"payload", zone=f"zone-{n}")


@pytest.mark.parametrize("body", FOREIGN.values(), ids=FOREIGN)
async def test_a_foreign_file_is_refused_by_name_and_stays_as_it_was(tmp_path: Path, body: bytes) -> None:
    file = tmp_path / "queue.json"
    _write(file, body)
    ways: list[Callable[[], Awaitable[None]]] = [
        lambda: _use(BrokerQueue(LocalFileSystemStorage(file))),
        lambda: _use_directly(DirectQueue(LocalFileSystemStorage(file))),
        lambda: _open(tmp_path.as_uri()),
    ]

    for way in ways:
        with pytest.raises(CorruptQueueError) as raised:
            await way()

        assert str(file) in str(raised.value)
        assert '"format", "layout" and "queue_id"' in str(raised.value)
        assert _read(file) == body
        assert _names(tmp_path) == ["queue.json"]


async def test_the_file_that_is_named_is_the_one_that_was_given(tmp_path: Path) -> None:
    file = tmp_path / "package.json"
    _write(file, b'{"name": "shop"}')

    with pytest.raises(CorruptQueueError, match=r"package\.json is not a queue that casque or jqueue wrote"):
        await _use(BrokerQueue(LocalFileSystemStorage(file)))


async def test_a_foreign_object_in_memory_is_refused() -> None:
    storage = InMemoryStorage(b'{"name": "shop"}')

    with pytest.raises(CorruptQueueError, match="is not a queue"):
        await _use(BrokerQueue(storage))

    assert (await storage.read())[0] == b'{"name": "shop"}'


async def test_a_foreign_file_in_the_place_of_a_shard_is_refused(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    assert _casque("queue", "create", url, "--shards", "2").returncode == 0
    shard = tmp_path / "shards" / "0001" / "queue.json"
    _write(shard, b'{"name": "shop"}')

    with pytest.raises(CasqueError, match="is not a queue"):
        await _spread(url)

    assert _read(shard) == b'{"name": "shop"}'


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_command_refuses_a_foreign_file(tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "queue.json"
    file.write_bytes(FOREIGN["osqueue's in TypeScript"])

    done = _casque(*_at(command, tmp_path.as_uri()))

    assert done.returncode != 0
    assert "is not a queue that casque or jqueue wrote" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert file.read_bytes() == FOREIGN["osqueue's in TypeScript"]
    assert _names(tmp_path) == ["queue.json"]


@pytest.mark.parametrize("kind", ["FIFO", "directory", "link"])
async def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    _make(place / "queue.json", kind, tmp_path)

    async with asyncio.timeout(30):
        with pytest.raises(StoreAccessError, match=f"is a (symbolic )?{kind}"):
            await _open(place.as_uri())


def _make(path: Path, kind: str, elsewhere: Path) -> None:
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(elsewhere / "other.json")


def _at(command: list[str], url: str) -> list[str]:
    words = 2 if command[0] in ("queue", "jobs") else 1
    return [*command[:words], url, *command[words:]]


def _casque(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "casque.cli", *args],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def _write(path: Path, body: bytes) -> None:
    path.write_bytes(body)


def _read(path: Path) -> bytes:
    return path.read_bytes()


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())
