"""A process of a ring: `produce URL NAME` or `work URL NAME`. Says each job whose enqueue, or ack, has come back."""

from __future__ import annotations

import asyncio
import sys

from casque import Queue

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
            await job.ack()
            print(job.payload.decode(), flush=True)


async def main(kind: str, url: str, name: str) -> None:
    async with Queue.open(url) as queue:
        await (produce if kind == "produce" else work)(queue, name)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
