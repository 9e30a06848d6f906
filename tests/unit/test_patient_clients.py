"""A client that waits longer than a broker lets it asks again."""

from __future__ import annotations

import asyncio
from typing import Any

from casque.client.reaching import AddressFinder
from casque.client.remote import RemoteQueue
from casque.clock import Random
from casque.settings import QueueSettings
from casque.testing.clock import ManualClock
from casque.transport.border import Limits
from casque.types import JobRecord


class Empty:
    """A broker without a job, which keeps those who wait for as long as they ask to wait."""

    address = "127.0.0.1:7700"

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.waits: list[float] = []

    async def dequeue(self, *, wait_s: float, **_: Any) -> list[JobRecord]:
        self.waits.append(wait_s)
        await self._clock.sleep(wait_s)
        return []

    async def close(self) -> None: ...


async def test_a_wait_that_is_longer_than_a_broker_allows_is_several_calls() -> None:
    clock = ManualClock()
    broker = Empty(clock)
    queue = RemoteQueue(
        AddressFinder([broker.address]),
        lambda _address: broker,  # type: ignore[arg-type, return-value]
        settings=QueueSettings(),
        clock=clock,
        rng=Random(1),
    )
    begun_ms = clock.monotonic_ms()
    waiting = asyncio.create_task(queue.dequeue(entrypoints=None, limit=1, wait_s=600))
    while not waiting.done():
        await clock.advance(1)

    assert await waiting == []
    assert max(broker.waits) <= Limits().wait_s
    assert 599_000 <= clock.monotonic_ms() - begun_ms <= 602_000
    await queue.close()
