"""A process of a ring: `produce URL NAME`, `work URL NAME` or `resize URL NAME`; with `broker` after it, through the
ring's brokers. Says each job whose enqueue or ack has come back, and each size that the ring has got."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from itertools import cycle

from casque import JobNotFoundError, LeaseLostError, Queue
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.errors import CASConflictError

ZONES = 8


async def produce(queue: Queue[bytes], name: str) -> None:
    n = 0
    while True:
        n += 1
        payload = f"{name}-{n}"
        await queue.enqueue("task", payload.encode(), zone=f"zone-{n % ZONES}")
        print(payload, flush=True)


async def work(queue: Queue[bytes], _name: str) -> None:
    while True:
        for job in await queue.dequeue("task", batch_size=4, wait=5, lease=2):
            # A failover may take longer than so short a lease: then somebody else has the job.
            with suppress(LeaseLostError, JobNotFoundError):
                await job.ack()
                print(job.payload.decode(), flush=True)


async def resize(url: str, name: str) -> None:
    """Up and down, one after the other, with another one doing the same."""
    builder = Parts(as_store(url), DEFAULTS).builder()
    for size in cycle((5, 2, 3) if name == "e" else (1, 4)):
        try:
            await builder.resize(size)
        except CASConflictError:
            continue
        print(size, flush=True)


async def main(kind: str, url: str, name: str, via: str | None = None) -> None:
    if kind == "resize":
        await resize(url, name)
    async with Queue.open(url, via=via) as queue:
        await (produce if kind == "produce" else work)(queue, name)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
