"""A process that dies with kill -9 while it brings a batch in, and another one that does the same again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from casque import Queue
from casque.client.opening import Parts
from casque.client.queue import DEFAULTS
from casque.client.staging import StagedJobs, StagedPart, Stager
from casque.environment import Environment
from casque.journal.verify import Verifier
from casque.storage.port import Outcome, Read
from casque.storage.url import open_store

JOBS = 500


class Deadly:
    """A store on files that ends the process at a commit: before it lands, or before anybody is told that it has."""

    def __init__(self, url: str, at: str) -> None:
        self._store = open_store(url)
        self._at = at
        self._writes = 0

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        return await self._store.get(key, unless=unless)

    async def create(self, key: str, body: bytes) -> Outcome:
        return await self._write(key, self._store.create, body)

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        return await self._write(key, self._store.replace, body, expected=expected)

    async def _write(self, key: str, write, body: bytes, **condition: str) -> Outcome:  # type: ignore[no-untyped-def]
        commits = b"nightly" in body
        if commits and self._at.isdecimal():
            self._writes += 1
            commits = self._writes == int(self._at)
        if commits and self._at == "before the commit":
            os.kill(os.getpid(), signal.SIGKILL)
        outcome: Outcome = await write(key, body, **condition)
        if commits:
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome

    async def delete(self, key: str) -> None:
        await self._store.delete(key)

    async def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        async for key in self._store.list(prefix, after=after):
            yield key

    async def close(self) -> None:
        await self._store.close()


def staged(url: str) -> list[StagedPart]:
    with Stager(url) as stager:
        zones = [None if row % 3 else f"zone-{row % 17}" for row in range(JOBS // 2)]
        return [
            stager.stage(StagedJobs([f"{half}-{row}" for row in range(JOBS // 2)], "task", b"x", zones=zones))
            for half in "ab"
        ]


def bring_in(url: str, layout: str, point: str) -> None:
    async def main() -> None:
        async with Queue.open(Deadly(url, point), layout=layout) as q:
            await q.admit("nightly", 1, parts)

    parts = staged(url)
    if point == "after staging":
        os.kill(os.getpid(), signal.SIGKILL)
    asyncio.run(main())


@pytest.mark.parametrize("layout", ["log", "document"])
@pytest.mark.parametrize("point", ["after staging", "before the commit", "after the commit"])
async def test_whoever_repeats_the_batch_has_it_once(layout: str, point: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/queue"
    victim = await asyncio.create_subprocess_exec(sys.executable, __file__, url, layout, point)
    assert await victim.wait() == -signal.SIGKILL

    async with Queue.open(url, layout=layout) as q:
        there = (await q.stats()).totals.enqueued
        assert there == (JOBS if point == "after the commit" else 0)
        admission = await q.admit("nightly", 1, await asyncio.to_thread(staged, url))
        assert (admission.jobs, admission.repeated) == (JOBS, point == "after the commit")
        assert (await q.stats()).totals.enqueued == JOBS
        assert len({job.id for job in await q.dequeue(batch_size=JOBS)}) == JOBS
    store = open_store(url)
    verdict = await Verifier(store, Environment()).verify()
    assert verdict.jobs == JOBS


@pytest.mark.parametrize("write", ["1", "3", "5"])
async def test_whoever_repeats_the_batch_of_a_ring_has_it_once(write: str, tmp_path: Path) -> None:
    """Killed when it was written down which shard gets which jobs, when some have theirs, and when all have."""
    url = f"file://{tmp_path}/queue"
    builder = Parts(open_store(url), DEFAULTS).builder()
    await builder.create(3)
    victim = await asyncio.create_subprocess_exec(sys.executable, __file__, url, "log", write)
    assert await victim.wait() == -signal.SIGKILL
    await builder.resize(5)

    async with Queue.open(url) as q:
        there = (await q.stats()).totals.enqueued
        assert there == 0 if write == "1" else 0 < there <= JOBS
        admission = await q.admit("nightly", 1, await asyncio.to_thread(staged, url))
        assert (admission.jobs, admission.repeated) == (JOBS, True)
        assert (await q.stats()).totals.enqueued == JOBS
        assert len({job.id for job in await q.dequeue(batch_size=JOBS)}) == JOBS


if __name__ == "__main__":
    bring_in(*sys.argv[1:])
