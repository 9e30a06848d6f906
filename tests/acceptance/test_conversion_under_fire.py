"""Conversions while others write, on real files: refused or done, and whatever was acknowledged is there, once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from casque import CASConflictError, Queue, QueueReplacedError
from casque.clock import SystemClock, system_random
from casque.environment import Environment
from casque.journal.convert import Converter
from casque.journal.log import contention, pace
from casque.journal.verify import Verifier
from casque.settings import QueueSettings
from casque.storage.local import LocalStore

ROUNDS = 40


class Producer:
    """Goes on through conversions as a program should: opens the queue again, and repeats with the same request id."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._queue: Queue[bytes] | None = None
        self.acknowledged = 0
        self.told = 0

    async def work(self, calls: int) -> None:
        for _ in range(calls):
            while not await self._enqueued():
                pass
            self.acknowledged += 1

    async def _enqueued(self) -> bool:
        if self._queue is None:
            self._queue = await Queue.open(self._url).__aenter__()
        try:
            await self._queue.enqueue("send", b"", request_id=f"{self._name}-{self.acknowledged}")
        except QueueReplacedError:
            self.told += 1
            await self.leave()
            return False
        return True

    async def leave(self) -> None:
        if self._queue is not None:
            queue, self._queue = self._queue, None
            await queue.__aexit__(None, None, None)


async def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 8)
    monkeypatch.setattr(contention, "ALONE_COMMITS", 2)
    monkeypatch.setattr(contention, "REST_MIN_MS", 1)
    url, store = tmp_path.as_uri(), LocalStore(tmp_path)
    settings, clock, rng = QueueSettings(), SystemClock(), system_random()
    producers = [Producer(url, f"producer-{n}") for n in range(3)]
    converted = refused = 0
    await producers[0].work(1)

    for round_ in range(ROUNDS):
        converter = Converter(store, Environment(settings, clock, rng), say=lambda _: None)
        layout = "log" if round_ % 2 else "document"
        # Every other time nobody calls, and those who have the queue open are told later. (Even then somebody may be
        # writing a snapshot, and name it in the head first.)
        busy = asyncio.gather(*(producer.work(2) for producer in producers if round_ % 4 < 2))
        try:
            converted += (await converter.convert(layout)).changed
        except CASConflictError:
            refused += 1
        await busy
        await producers[round_ % 3].work(1)
        verdict = await Verifier(store, Environment(settings, clock, rng)).verify()
        assert verdict.jobs == sum(producer.acknowledged for producer in producers)

    for producer in producers:
        await producer.leave()
    await store.close()
    assert converted >= ROUNDS // 4, f"{refused} refused"
    assert sum(producer.told for producer in producers) > 0
    async with Queue.open(url) as queue:
        assert (await queue.stats()).totals.enqueued == sum(producer.acknowledged for producer in producers)
