"""Three worker processes share one queue on local files with the process that fills it. No job is claimed twice."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
from multiprocessing.queues import Queue as Pipe
from pathlib import Path

from casque import Queue

JOBS = 30


async def work(url: str, name: str, results: Pipe[tuple[str, int]]) -> None:
    # Each process opens the queue by its URL. An open queue is never handed to another process.
    async with Queue.open(url, worker=name, conflict_retries=200) as queue:
        while jobs := await queue.dequeue("square", batch_size=3, wait=0.2):
            for job in jobs:
                await job.ack()
                results.put((name, int(job.payload)))


def worker(url: str, name: str, results: Pipe[tuple[str, int]]) -> None:
    asyncio.run(work(url, name, results))


async def fill(url: str) -> None:
    async with Queue.open(url, worker="producer") as queue:
        await queue.enqueue_many([("square", b"%d" % n) for n in range(JOBS)])


async def totals(url: str) -> str:
    async with Queue.open(url) as queue:
        found = (await queue.stats()).totals
        return f"{found.done} done, {found.ready} waiting, {found.running} running"


def main(directory: Path) -> None:
    url = directory.as_uri()
    asyncio.run(fill(url))

    # spawn, not fork: it is what cloud stores need, and it works everywhere.
    context = multiprocessing.get_context("spawn")
    results: Pipe[tuple[str, int]] = context.Queue()
    workers = [context.Process(target=worker, args=(url, f"worker-{n}", results)) for n in range(3)]
    for process in workers:
        process.start()
    worked_on = [results.get(timeout=20) for _ in range(JOBS)]
    for process in workers:
        process.join()

    numbers = sorted(number for _, number in worked_on)
    print("each job once:", numbers == list(range(JOBS)))
    print("workers that got some:", len({name for name, _ in worked_on}), file=sys.stderr)
    print(asyncio.run(totals(url)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
