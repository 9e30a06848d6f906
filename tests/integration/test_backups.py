"""Backups, clones, restored queues: as of one moment, while the queue is in use and after everyone is killed."""

# ruff: noqa: ASYNC220, ASYNC221 (small directories, and nothing else runs meanwhile)

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from typer.testing import Result

from casque import (
    CorruptQueueError,
    InvalidInputError,
    Queue,
    backup_queue,
    clone_queue,
    restore_queue,
)
from casque.app import BrokerServer, ServeOptions
from casque.environment import Environment
from casque.errors import CasqueError
from casque.journal.copying import Copier
from casque.journal.discovery import find_leader
from casque.settings import BrokerSettings
from casque.storage.local import LocalStore
from casque.storage.memory import MemoryStore
from casque.storage.port import Read
from casque.storage.prefixed import PrefixedStore
from casque.transport.listening import Address
from tests.integration.shell import casque

FREE = Address.parse("127.0.0.1:0")
SOON = BrokerSettings(heartbeat=timedelta(seconds=0.1), lease=timedelta(seconds=0.6), poll=timedelta(seconds=0.05))
LARGE = b"x" * 300_000
"""Kept in an object of its own."""


async def run(*arguments: str) -> Result:
    """A command, which has an event loop of its own."""
    return await asyncio.to_thread(casque, *arguments)


class Ledger:
    """What callers were told."""

    def __init__(self) -> None:
        self.added: set[str] = set()
        self.claimed: set[str] = set()
        self.busy = asyncio.Event()


async def work(queue: Queue[bytes], ledger: Ledger, name: str) -> None:
    """Add jobs, every third a large one, and finish half of them, until cancelled."""
    for n in range(100_000):
        payload = LARGE if n % 3 == 0 else b"small"
        ledger.added.add((await queue.enqueue("work", payload, zone=f"{name}-{n % 4}")).id)
        if n % 2:
            for job in await queue.dequeue():
                ledger.claimed.add(job.id)
                await job.ack()
        if len(ledger.added) > 20:
            ledger.busy.set()


@asynccontextmanager
async def working(url: str, *, via: str | None = None) -> AsyncIterator[Ledger]:
    ledger = Ledger()
    opening: dict[str, Any] = {"archive_interval": timedelta(milliseconds=50)} if via is None else {}
    async with Queue.open(url, via=via, **opening) as one, Queue.open(url, via=via, **opening) as other:
        tasks = [asyncio.create_task(work(queue, ledger, name)) for queue, name in ((one, "one"), (other, "other"))]
        try:
            await asyncio.wait_for(ledger.busy.wait(), 60)
            yield ledger
        finally:
            assert not any(task.done() for task in tasks), [task.exception() for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def check(target: str, acknowledged: set[str], claimed_later: set[str]) -> None:
    """What was acknowledged before the copy began is in it, with its payload, unless it was claimed by its end."""
    async with Queue.open(target) as queue:
        there = {job.id: job for job in await queue.jobs(limit=100_000)}
        assert acknowledged - claimed_later - there.keys() == set()
        found = await asyncio.gather(*(queue.find(job_id) for job_id in there))
        assert all(job is not None and job.payload in (LARGE, b"small") for job in found)
        archived = [job.id async for job in queue.archive()]
        assert len(archived) == len(set(archived))
        assert set(archived).isdisjoint(there)
        await queue.enqueue("work", b"small")
        while jobs := await queue.dequeue(batch_size=100):
            for job in jobs:
                await job.ack()
        assert (await queue.stats()).totals.ready == 0


@pytest.mark.parametrize("kind", ["log", "document", "ring"])
async def test_a_queue_is_backed_up_while_others_write(tmp_path: Path, kind: str) -> None:
    url = (tmp_path / "q").as_uri()
    await _create(url, kind)
    async with working(url) as ledger:
        for n in range(3):
            before = set(ledger.added)
            target = (tmp_path / f"backup-{n}").as_uri()
            copied = await backup_queue(url, target)
            assert copied.layout == kind
            await check(target, before, set(ledger.claimed))
    await run("queue", "verify", url)


@pytest.mark.parametrize("kind", ["log", "document", "ring"])
async def test_a_queue_that_a_broker_leads_is_cloned_and_the_clone_is_nobody_s(tmp_path: Path, kind: str) -> None:
    url, target = (tmp_path / "q").as_uri(), (tmp_path / "clone").as_uri()
    await _create(url, kind)
    server = BrokerServer(ServeOptions(url=url, listen=FREE, broker=SOON))
    await server.start()
    try:
        async with working(url, via="broker") as ledger:
            before = set(ledger.added)
            await clone_queue(url, target)
            claimed = set(ledger.claimed)
        assert await find_leader(LocalStore(tmp_path / "clone")) is None
        async with Queue.open(url, via="broker") as queue:
            enqueued = (await queue.stats()).totals.enqueued
            await check(target, before, claimed)
            assert (await queue.stats()).totals.enqueued == enqueued
    finally:
        await server.stop()


async def test_a_backup_is_restored_with_everything_in_it(tmp_path: Path) -> None:
    url, backup, target = ((tmp_path / name).as_uri() for name in ("q", "backup", "restored"))
    async with Queue.open(url) as queue:
        for n in range(20):
            await queue.enqueue("work", LARGE if n % 5 == 0 else b"small", key=f"key-{n}", delay=3600 + n, zone="acme")
        await queue.enqueue("work", b"small")
        [job] = await queue.dequeue()
        await job.nack(error="broken", delay=3600)
        await queue.set_schedule("nightly", "0 3 * * *", ("work", b"tick"))
        await queue.set_zone("acme", weight=3)
        await queue.pause("mail")
    source = await info(url)

    await backup_queue(url, backup)
    await restore_queue(backup, target)

    restored = await info(target)
    same = ("enqueued", "ready", "delayed", "running", "dead", "done", "entrypoints", "gates", "zones_with_rules")
    assert {name: restored[name] for name in same} == {name: source[name] for name in same}
    assert len({(await info(place))["queue_id"] for place in (url, backup, target)}) == 3
    async with Queue.open(target) as queue:
        assert [one.name for one in await queue.schedules()] == ["nightly"]


@pytest.mark.parametrize("kind", ["log", "document", "ring"])
async def test_what_streams_of_spark_keep_beside_a_queue_is_copied_with_it(tmp_path: Path, kind: str) -> None:
    url, target = (tmp_path / "q").as_uri(), (tmp_path / "clone").as_uri()
    await _create(url, kind)
    (tmp_path / "q" / "writers").mkdir()
    (tmp_path / "q" / "writers" / "orders").write_bytes(b"a checkpoint")

    await clone_queue(url, target)

    assert (tmp_path / "clone" / "writers" / "orders").read_bytes() == b"a checkpoint"


async def test_whoever_has_the_queue_open_notices_that_another_one_was_restored_in_its_place(tmp_path: Path) -> None:
    url, backup = (tmp_path / "q").as_uri(), (tmp_path / "backup").as_uri()
    async with Queue.open(url) as queue:
        await queue.enqueue("work", b"first")
        await backup_queue(url, backup)
        await queue.enqueue("work", b"second")
        (tmp_path / "q").rename(tmp_path / "damaged")
        await restore_queue(backup, url)

        with pytest.raises(CasqueError):
            await queue.enqueue("work", b"third")
    async with Queue.open(url) as queue:
        assert (await queue.stats()).totals.enqueued == 1
        await queue.enqueue("work", b"fourth")
    await run("queue", "verify", url)


async def test_a_damaged_backup_is_not_restored(tmp_path: Path) -> None:
    url, backup, target = ((tmp_path / name).as_uri() for name in ("q", "backup", "restored"))
    async with Queue.open(url) as queue:
        await queue.enqueue("work", b"first")
    await backup_queue(url, backup)
    [snapshot] = (tmp_path / "backup" / "snapshots").iterdir()
    snapshot.write_bytes(snapshot.read_bytes().replace(b"work", b"Work"))

    with pytest.raises(CorruptQueueError):
        await restore_queue(backup, target)

    assert not (tmp_path / "restored").exists()


async def test_nothing_is_copied_over_something_and_nothing_from_nowhere(tmp_path: Path) -> None:
    url, target = (tmp_path / "q").as_uri(), (tmp_path / "target").as_uri()
    with pytest.raises(InvalidInputError, match="there is no queue here"):
        await backup_queue(url, target)
    async with Queue.open(url) as queue:
        await queue.enqueue("work", b"first")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "notes.txt").write_text("mine")

    with pytest.raises(InvalidInputError, match="is in the way"):
        await backup_queue(url, target)
    with pytest.raises(InvalidInputError, match="the same place"):
        await clone_queue(url, url)

    assert [path.name for path in (tmp_path / "target").iterdir()] == ["notes.txt"]


async def test_a_queue_is_not_copied_into_itself_or_around_itself(tmp_path: Path) -> None:
    async with Queue.open((tmp_path / "outer" / "q").as_uri()) as queue:
        await queue.enqueue("send", b"1")
    url = (tmp_path / "outer" / "q").as_uri()
    for target in (f"{url}/", f"{url}/backup", (tmp_path / "outer").as_uri()):
        with pytest.raises(InvalidInputError, match=r"same place|inside each other"):
            await backup_queue(url, target)
    assert not (tmp_path / "outer" / "q" / "backup").exists()
    assert (await backup_queue(url, f"{url}-backup")).jobs == 1


async def test_a_queue_is_not_copied_into_itself_by_another_name_of_its_directory(tmp_path: Path) -> None:
    url = (tmp_path / "q").as_uri()
    async with Queue.open(url) as queue:
        await queue.enqueue("send", b"1")
    (tmp_path / "link").symlink_to(tmp_path / "q", target_is_directory=True)
    (tmp_path / "elsewhere").mkdir()
    before = _paths(tmp_path)
    for name in ("elsewhere/../q", "elsewhere/../q/backup", "link", "link/backup", "q/./backup"):
        with pytest.raises(InvalidInputError, match=r"same place|inside each other"):
            await backup_queue(url, f"file://{tmp_path}/{name}")
    with pytest.raises(InvalidInputError, match=r"same place|inside each other"):
        await restore_queue(f"file://{tmp_path}/link", f"file://{tmp_path}/q/restored")
    assert _paths(tmp_path) == before


def _paths(directory: Path) -> set[Path]:
    return set(directory.rglob("*"))


@pytest.mark.parametrize("kind", ["log", "document", "ring"])
async def test_a_backup_names_a_payload_that_was_lost(tmp_path: Path, kind: str) -> None:
    url, target = (tmp_path / "q").as_uri(), (tmp_path / "backup").as_uri()
    await _create(url, kind)
    async with Queue.open(url) as queue:
        job = await queue.enqueue("work", LARGE, zone="one")
        await queue.enqueue("work", b"small", zone="one")
    [payload] = [path for path in _paths(tmp_path / "q") if path.parent.parent.name == "blobs"]
    payload.unlink()

    with pytest.raises(CorruptQueueError, match=f"payload of job {job.id} is missing") as raised:
        await backup_queue(url, target)

    assert raised.value.key.startswith("blobs/")
    assert not (tmp_path / "backup" / "queue.json").exists()
    async with Queue.open(url) as queue:
        await queue.cancel(job.id)
    assert (await backup_queue(url, f"{target}-2")).jobs == 1


@pytest.mark.parametrize("layout", ["log", "document"])
async def test_a_payload_that_goes_with_its_job_during_a_copy_is_no_damage(layout: Literal["log", "document"]) -> None:
    bucket = MemoryStore()
    async with Queue.open(PrefixedStore(bucket, "q"), layout=layout) as queue:
        job = await queue.enqueue("work", LARGE)
        await queue.enqueue("work", LARGE)

        class Late(PrefixedStore):
            """The job is cancelled after the queue was read, before its payload is."""

            async def get(self, key: str, *, unless: str | None = None) -> Read:
                if job.id in key and await queue.find(job.id) is not None:
                    await queue.cancel(job.id)
                    await self.delete(key)
                return await super().get(key, unless=unless)

        target = MemoryStore()
        copier = Copier(Late(bucket, "q"), target, Environment())
        assert (await copier.copy()).jobs == 1

    async with Queue.open(target) as queue:
        assert [one.payload for one in await queue.dequeue(batch_size=2)] == [LARGE]


async def test_a_foreign_file_among_the_segments_is_named_and_harms_nothing(tmp_path: Path) -> None:
    url = (tmp_path / "q").as_uri()
    async with Queue.open(url) as queue:
        await queue.enqueue("work", b"1")
    for name in ("queue.json", ".DS_Store", "9", "zzz/00000000000000000009"):
        path = tmp_path / "q" / "log" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("foreign")

    said = await run("queue", "verify", url)

    assert "log/queue.json is no segment" in said.output
    assert (await backup_queue(url, (tmp_path / "backup").as_uri())).jobs == 1
    async with Queue.open(url) as queue:
        await queue.enqueue("work", b"2")
        assert len(await queue.jobs()) == 2


@pytest.mark.parametrize("kind", ["log", "ring"])
async def test_a_queue_whose_writers_were_killed_is_backed_up(tmp_path: Path, kind: str) -> None:
    url, target = (tmp_path / "q").as_uri(), (tmp_path / "backup").as_uri()
    await _create(url, kind)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    told = {writer.stdout.readline().strip() for _ in range(25)}
    writer.send_signal(signal.SIGKILL)
    told |= set(writer.communicate()[0].split("\n")[:-1]) - {""}

    await backup_queue(url, target)

    async with Queue.open(target) as queue:
        assert told - {job.id for job in await queue.jobs(limit=100_000)} == set()


WRITER = """
import asyncio, sys
from casque import Queue

async def main():
    async with Queue.open(sys.argv[1]) as queue:
        for n in range(100_000):
            print((await queue.enqueue("work", b"x" * (300_000 if n % 3 == 0 else 5), zone=f"z{n % 5}")).id, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["log", "document", "ring"])
async def test_a_backup_that_was_killed_is_no_queue_and_harms_none(tmp_path: Path, kind: str) -> None:
    url = (tmp_path / "q").as_uri()
    await _create(url, kind)
    async with Queue.open(url) as queue:
        for n in range(30):
            await queue.enqueue("work", LARGE if n % 2 else b"small", zone=f"zone-{n}")
    verdict = (await run("queue", "verify", url, "--json")).stdout
    for n in range(4):
        # Killed by itself, with the n-th write: there is no signal to wait for.
        ended = subprocess.run([sys.executable, "-c", KILLED, url, (tmp_path / f"b{n}").as_uri(), str(3 + 7 * n)])
        assert ended.returncode == -signal.SIGKILL
        assert not (tmp_path / f"b{n}" / "queue.json").exists()

    assert (await run("queue", "verify", url, "--json")).stdout == verdict
    assert (await backup_queue(url, (tmp_path / "backup").as_uri())).jobs == 30


KILLED = """
import asyncio, os, signal, sys
from casque import backup_queue
from casque.storage.local import LocalStore

create, left = LocalStore.create, [int(sys.argv[3])]

async def killing(self, key, body):
    left[0] -= 1
    if left[0] == 0 or key.startswith("queue.json"):
        os.kill(os.getpid(), signal.SIGKILL)
    return await create(self, key, body)

LocalStore.create = killing
asyncio.run(backup_queue(sys.argv[1], sys.argv[2]))
"""


def test_the_commands_say_what_they_did(tmp_path: Path) -> None:
    url, backup, restored, clone = ((tmp_path / name).as_uri() for name in ("q", "backup", "restored", "clone"))
    casque("enqueue", url, "work", "{}", "--count", "3")

    assert "3 jobs" in casque("queue", "backup", url, backup).output
    told = json.loads(casque("queue", "restore", backup, restored, "--json").stdout)
    assert (told["layout"], told["jobs"], told["objects"], told["shards"]) == ("log", 3, 0, 0)
    casque("queue", "clone", url, clone)
    assert "is in the way" in casque("queue", "clone", url, clone, ends=2).output
    assert "the same place" in casque("queue", "clone", url, url, ends=2).output
    for place in (backup, restored, clone):
        casque("queue", "verify", place)


async def info(url: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await run("queue", "info", url, "--json")).stdout)
    return found


async def _create(url: str, kind: str) -> None:
    if kind == "ring":
        await run("queue", "create", url, "--shards", "3")
    else:
        await run("queue", "create", url, "--layout", kind)
