"""Processes that share a queue on local files hear of each other's jobs; they need not wait for the next look."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from casque import Queue
from casque.clock import SystemClock
from casque.codec.log import segment_key
from casque.engine.announcements import FOLLOWED_MS
from casque.storage.local import LocalStore
from casque.storage.port import Lost, Outcome, Read, Stored
from casque.testing import ManualClock


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell of new files")
async def test_a_job_of_another_process_wakes_whoever_waits_though_no_time_passes(tmp_path: Path) -> None:
    # It stands still, so that nobody who looks now and then ever looks again; ahead, so that all jobs are due.
    clock = ManualClock(SystemClock().wall_ms() + 3_600_000)
    url = f"file://{tmp_path}/queue"
    async with Queue.open(url) as producer, Queue.open(url, clock=clock) as consumer:
        await producer.enqueue("other", b"")
        for number in range(3):
            waiting = asyncio.create_task(consumer.dequeue("send", wait=3600))
            await producer.enqueue("other", b"")  # not what is waited for
            added = await producer.enqueue("send", b"%d" % number)
            async with asyncio.timeout(30):
                [job] = await waiting
            assert job.id == added.id
            await job.ack()


class Followed(LocalStore):
    """Tells what was read, how often a commit came too late, and whether anybody listens."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read: asyncio.Queue[str] = asyncio.Queue()
        self.too_late = 0
        self.listeners = 0
        self.left = asyncio.Event()

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        found = await super().get(key, unless=unless)
        if isinstance(found, Stored):
            self.read.put_nowait(key)
        return found

    async def create(self, key: str, body: bytes) -> Outcome:
        outcome = await super().create(key, body)
        self.too_late += isinstance(outcome, Lost)
        return outcome

    def watch(self, folder: str, appeared: Callable[[str], None]) -> Callable[[], None] | None:
        stop = super().watch(folder, appeared)
        if stop is None:
            return None
        self.listeners += 1

        def leave() -> None:
            stop()
            self.listeners -= 1
            self.left.set()

        return leave


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell of new files")
async def test_whoever_lost_a_race_follows_the_others_and_does_not_lose_the_next(tmp_path: Path) -> None:
    store = Followed(tmp_path / "queue")
    async with Queue.open(f"file://{tmp_path}/queue") as other, Queue.open(store) as producer:
        await producer.enqueue("send", b"first")
        assert store.listeners == 0  # nobody else has been met
        await other.enqueue("send", b"between")
        await producer.enqueue("send", b"too late")
        assert store.too_late == 1
        assert store.listeners == 1
        for _ in range(3):
            await other.enqueue("send", b"between")
            theirs = segment_key((await other.stats()).position)
            async with asyncio.timeout(30):
                while await store.read.get() != theirs:
                    pass
            await producer.enqueue("send", b"at once")
        assert store.too_late == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell of new files")
async def test_whoever_adds_nothing_for_a_while_follows_nobody(tmp_path: Path) -> None:
    clock = ManualClock(SystemClock().wall_ms())
    store = Followed(tmp_path / "queue")
    async with Queue.open(f"file://{tmp_path}/queue") as other, Queue.open(store, clock=clock) as producer:
        await producer.enqueue("send", b"first")
        await other.enqueue("send", b"between")
        await producer.enqueue("send", b"too late")
        assert store.listeners == 1
        await clock.advance(FOLLOWED_MS / 1000)
        await other.enqueue("send", b"long after")
        async with asyncio.timeout(30):
            await store.left.wait()
        assert store.listeners == 0
