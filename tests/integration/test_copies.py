"""A copy of a queue that is led: nothing that is done to it reaches the original."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from casque import Queue, QueueCopiedError
from casque.app import BrokerServer, ServeOptions
from casque.journal.discovery import find_leader
from casque.settings import BrokerSettings
from casque.storage.local import LocalStore
from casque.storage.port import UNMARKED, place_of
from casque.transport.listening import Address
from tests.integration.shell import casque

FREE = Address.parse("127.0.0.1:0")
SOON = BrokerSettings(heartbeat=timedelta(seconds=0.1), lease=timedelta(seconds=0.6), poll=timedelta(seconds=0.05))


def copytree(source: Path, target: Path) -> None:
    shutil.copytree(source, target)


def cp_archive(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", source, target], check=True)


def without_hidden_files(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(".casque*"))


@asynccontextmanager
async def broker(url: str, layout: str = "log") -> AsyncIterator[BrokerServer]:
    server = BrokerServer(ServeOptions(url=url, listen=FREE, layout=layout, broker=SOON))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.mark.parametrize("copied", [copytree, cp_archive, without_hidden_files])
@pytest.mark.parametrize("layout", ["log", "document"])
async def test_commands_on_a_copy_do_not_reach_the_original(
    tmp_path: Path, layout: str, copied: Callable[[Path, Path], None]
) -> None:
    original, copy = tmp_path / "q", tmp_path / "backup"
    async with broker(original.as_uri(), layout):
        await asyncio.to_thread(casque, "enqueue", original.as_uri(), "work", "{}")
        copied(original, copy)
        before = _files(copy)

        for command in (["enqueue", copy.as_uri(), "work", "{}"], ["jobs", "purge", copy.as_uri(), "--yes"]):
            refused = await asyncio.to_thread(casque, *command, ends=1)
            assert "this is a copy of a queue that the broker at 127.0.0.1:" in refused.output
            assert "casque queue release" in refused.output
        with pytest.raises(QueueCopiedError):
            await _enqueue(copy.as_uri(), via="broker")
        with pytest.raises(QueueCopiedError):
            await _enqueue(copy.as_uri(), via=None)
        assert _files(copy) == before
        assert "this is a copy of" in (await asyncio.to_thread(casque, "queue", "info", copy.as_uri())).output

        async with Queue.open(original.as_uri(), via="broker") as queue:
            assert (await queue.stats()).totals.enqueued == 1


async def test_a_copy_becomes_a_queue_of_its_own_when_its_lead_is_ended(tmp_path: Path) -> None:
    original, copy = tmp_path / "q", tmp_path / "backup"
    async with broker(original.as_uri()):
        await asyncio.to_thread(casque, "enqueue", original.as_uri(), "work", "{}")
        copytree(original, copy)

        await asyncio.to_thread(casque, "queue", "release", copy.as_uri(), "--lease", "0.5")
        await asyncio.to_thread(casque, "enqueue", copy.as_uri(), "work", "{}")

        async with Queue.open(original.as_uri(), via="broker") as queue:
            assert (await queue.stats()).totals.enqueued == 1
    async with Queue.open(copy.as_uri()) as queue:
        assert (await queue.stats()).totals.enqueued == 2


async def test_a_broker_of_a_copy_sends_nobody_to_the_original(tmp_path: Path) -> None:
    original, copy = tmp_path / "q", tmp_path / "backup"
    async with broker(original.as_uri()) as first:
        await asyncio.to_thread(casque, "enqueue", original.as_uri(), "work", "{}")
        copytree(original, copy)
        async with broker(copy.as_uri()) as second:
            assert second.standing().leader != first.address
            async with Queue.open(f"grpc://{second.address}") as queue:
                await queue.enqueue("work", b"for the copy")
        async with Queue.open(original.as_uri(), via="broker") as queue:
            assert (await queue.stats()).totals.enqueued == 1
    async with Queue.open(copy.as_uri()) as queue:
        assert (await queue.stats()).totals.enqueued == 2


async def test_a_copy_of_a_ring_does_not_reach_the_original(tmp_path: Path) -> None:
    original, copy = tmp_path / "q", tmp_path / "backup"
    await asyncio.to_thread(casque, "queue", "create", original.as_uri(), "--shards", "2")
    async with broker(original.as_uri()):
        async with Queue.open(original.as_uri(), via="broker") as queue:
            await queue.enqueue("work", b"first", zone="acme")
        copytree(original, copy)

        refused = await asyncio.to_thread(casque, "enqueue", copy.as_uri(), "work", "{}", ends=1)
        assert "this is a copy of a queue" in refused.output
        with pytest.raises(QueueCopiedError):
            await _enqueue(copy.as_uri(), via="broker")
        async with broker(copy.as_uri()) as second, Queue.open(f"grpc://{second.address}") as queue:
            for n in range(8):
                await queue.enqueue("work", b"for the copy", zone=f"zone-{n}")

        async with Queue.open(original.as_uri(), via="broker") as queue:
            assert (await queue.stats()).totals.enqueued == 1


async def test_a_queue_that_was_moved_is_no_copy(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "q")
    place = await place_of(store, make=True)
    (tmp_path / "q").rename(tmp_path / "moved")

    assert await place_of(LocalStore(tmp_path / "moved")) == place
    assert await place_of(LocalStore(tmp_path / "q")) == UNMARKED


async def test_all_who_mark_a_place_at_once_agree(tmp_path: Path) -> None:
    marks = await asyncio.gather(*(place_of(LocalStore(tmp_path / "q"), make=True) for _ in range(8)))

    assert len(set(marks)) == 1
    copytree(tmp_path / "q", tmp_path / "copy")
    assert await place_of(LocalStore(tmp_path / "copy")) == UNMARKED
    assert await place_of(LocalStore(tmp_path / "copy"), make=True) not in (UNMARKED, marks[0])


async def test_heads_of_older_releases_name_no_place_and_are_followed(tmp_path: Path) -> None:
    original = tmp_path / "q"
    async with broker(original.as_uri()) as server:
        head = original / "queue.json"
        copytree(original, tmp_path / "old")
        place = await place_of(LocalStore(original))
        assert place
        old = head.read_text().replace(f'"{place}"', "null")
        (tmp_path / "old" / "queue.json").write_text(old)

        assert await find_leader(LocalStore(tmp_path / "old")) == server.address


async def _enqueue(url: str, via: str | None) -> None:
    async with Queue.open(url, via=via) as queue:
        await queue.enqueue("work", b"payload")


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
