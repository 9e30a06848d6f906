"""The documents that are kept in casque-0.1/, and how they were made.

`python tests/compat/casque_side.py DIRECTORY` writes them anew with the casque at hand. Never over the kept ones: those
are what a released casque wrote, and what every later one has to read.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from casque import BrokerQueue, DirectQueue, NewJob, Queue
from casque.clock import Random
from casque.storage.memory import MemoryStore
from casque.storage.port import Stored
from casque.testing.clock import ManualClock

T = TypeVar("T")

START_MS = 1_790_000_000_000


async def everything() -> bytes:
    """Every state a stored job can be in, through three writers."""
    clock, rng, store = ManualClock(START_MS), Random(1), MemoryStore()

    def opened(worker: str) -> Queue[bytes]:
        return Queue.open(store, worker=worker, clock=clock, rng=rng)

    async with opened("producer") as one, opened("worker") as two, opened("operator") as three:
        await _done(clock, one.enqueue("ready", b"waits", priority=3))
        await _done(clock, one.enqueue("delayed", b"not yet", delay=timedelta(hours=1)))
        await _done(clock, one.enqueue("keyed", b"only one of these", key="order-17"))
        headers = {"trace": "00-ab", "Sprache": "Deutsch"}
        await _done(clock, one.enqueue("größe", "ünïcode".encode(), headers=headers, zone="acme"))
        await _done(clock, one.enqueue("asked", b"by request", request_id="enqueue-1"))
        many: list[tuple[str, bytes] | NewJob[bytes]] = [("many", b"1"), NewJob("many", bytes(range(256)), priority=-1)]
        await _done(clock, one.enqueue_many(many, request_id="many-1"))
        await clock.advance(1)

        await _done(clock, one.enqueue("running", b"leased", max_attempts=3))
        await _done(clock, two.dequeue("running", lease=90, request_id="dequeue-1"))
        await _done(clock, one.enqueue("beaten", b"leased and renewed"))
        [beaten] = await _done(clock, two.dequeue("beaten"))
        await clock.advance(5)
        await _done(clock, beaten.heartbeat())

        await _done(clock, one.enqueue("failed", b"comes back"))
        [failed] = await _done(clock, two.dequeue("failed"))
        await _done(clock, failed.nack(delay=30, error=ValueError("no such user")))
        await _done(clock, one.enqueue("dying", b"last attempt", max_attempts=1, key="held-until-dead"))
        [dying] = await _done(clock, two.dequeue("dying"))
        await _done(clock, dying.nack(error="the mailbox does not exist"))

        for name in ("acked", "cancelled", "purged"):
            await _done(clock, one.enqueue(name, b"gone", max_attempts=1))
        [acked] = await _done(clock, two.dequeue("acked"))
        await _done(clock, two.ack(acked.id, acked.token, request_id="ack-1"))
        [cancelled] = await _done(clock, two.jobs(entrypoint="cancelled"))
        await _done(clock, three.cancel(cancelled.id, request_id="cancel-1"))
        [purged] = await _done(clock, two.dequeue("purged"))
        await _done(clock, purged.nack())
        await _done(clock, three.purge("purged", request_id="purge-1"))
        return await _stored(store)


async def _done(clock: ManualClock, call: Coroutine[Any, Any, T]) -> T:
    """Wait for a call that may lose a race: it then rests for a moment, and time passes only if it is moved."""
    task = asyncio.create_task(call)
    while not task.done():
        await clock.advance(0.01)
    return task.result()


async def drained() -> bytes:
    """A queue that has been used and is empty."""
    clock, rng, store = ManualClock(START_MS), Random(2), MemoryStore()
    async with BrokerQueue(store, clock=clock, rng=rng) as q:
        for n in range(3):
            await q.enqueue("task", b"%d" % n)
        for job in await q.dequeue("task", batch_size=3):
            await q.ack(job.id)
        return await _stored(store)


async def direct() -> bytes:
    """The small API, one write per call."""
    clock, rng, store = ManualClock(START_MS), Random(3), MemoryStore()
    q = DirectQueue(store, clock=clock, rng=rng)
    for n in range(3):
        await q.enqueue("task", b"%d" % n, priority=-n)
        await clock.advance(1)
    [job] = await q.dequeue("task")
    await q.nack(job.id)
    await q.dequeue("task")
    return await _stored(store)


async def _stored(store: MemoryStore) -> bytes:
    stored = await store.get("queue.json")
    assert isinstance(stored, Stored)
    return stored.body


DOCUMENTS = {"everything": everything, "drained": drained, "direct": direct}


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, make in DOCUMENTS.items():
        (directory / f"{name}.json").write_bytes(asyncio.run(make()))


if __name__ == "__main__":
    main()
