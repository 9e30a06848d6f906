"""Small histories with everything in them, for tests that read them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from casque import JobState, NewJob, Queue
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.clock import Random
from casque.testing.clock import ManualClock


async def ring_of(storage: Any, shards: int) -> None:
    """A ring of so many shards, without a job."""
    assert await Parts(as_store(storage), DEFAULTS).builder().create(shards)


async def resized(storage: Any, shards: int) -> None:
    await Parts(as_store(storage), DEFAULTS).builder().resize(shards)


async def varied(
    url: str,
    clock: ManualClock,
    rounds: int = 3,
    *,
    options: dict[str, str] | None = None,
    seed: int = 1,
    **settings: Any,
) -> None:
    """Jobs of every kind, with every kind of end, an hour for each round."""
    async with Queue.open(
        url,
        options=options,
        clock=clock,
        rng=Random(seed),
        worker="w1",
        stale_timeout=timedelta(minutes=2),
        payload_max=64,
        **settings,
    ) as q:
        await play(q, clock, rounds)


async def play(q: Queue[bytes], clock: ManualClock, rounds: int) -> None:
    """What happens to such a queue; its lease is two minutes, and payloads of more than 64 bytes are large."""
    for n in range(rounds):
        await q.enqueue("send", b"x" * n, headers={"trace": f"t{n}", "empty": ""}, zone=f"zone-{n % 2}", priority=n)
        await q.enqueue_many([("resize", b"\0\xff%d" % n), NewJob("send", b"", key=f"key-{n}", max_attempts=1)])
        await q.enqueue("later", b"large" * 30, delay=90)
        await q.enqueue("later", b"cancelled", delay=5000)
        await clock.advance(1)
        for job in await q.dequeue("send", batch_size=2):
            if job.key is not None:
                await job.nack(error=f"no such user {n}")
            else:
                await job.ack(result=b"sent" if n % 2 else None)
        [held] = await q.dequeue("resize")
        await q.heartbeat(held.id, held.token)
        await held.nack(error="try again", delay=30)
        if n % 3 == 2:
            waiting = await q.jobs(states=[JobState.DELAYED], entrypoint="later")
            await q.cancel(waiting[-1].id)
            dead = await q.jobs(states=[JobState.DEAD])
            await q.retry(dead[0].id)
            await q.purge(entrypoint="nothing")
        await q.dequeue("resize")  # nobody finishes it: its lease runs out
        await clock.advance(3600)
