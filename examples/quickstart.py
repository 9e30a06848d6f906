"""The shortest useful program: enqueue a job, claim it, acknowledge it. The queue is a directory."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from casque import Queue


async def main(directory: Path) -> None:
    async with Queue.open(directory.as_uri()) as queue:
        job = await queue.enqueue("greet", b"world")
        print("enqueued", job.entrypoint, "as", job.id)

        for job in await queue.dequeue("greet", wait=5.0):
            print("hello", job.payload.decode())
            await job.ack()

        totals = (await queue.stats()).totals
        print(f"{totals.done} done, {totals.ready} waiting")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
