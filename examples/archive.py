"""Look at what is over: every finished job is in the archive once, with its result or its error.

The archive is read by a program that takes no part in the queue. It lies beside it as JSON lines by hour, so anything
else can read it too.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from casque import JobState, Queue


async def work(url: str) -> None:
    async with Queue.open(url, worker="w1") as queue:
        await queue.enqueue_many([("square", b"%d" % n) for n in (2, 3, 4)] + [("square", b"five")])
        await queue.cancel((await queue.enqueue("square", b"6")).id)
        for job in await queue.dequeue("square", batch_size=10):
            try:
                await job.ack(result=b"%d" % int(job.payload) ** 2)
            except ValueError as error:
                await job.nack(error=error)
        for _ in range(24):  # until its attempts are used up
            for job in await queue.dequeue("square", wait=1):
                await job.nack(delay=0, error="no number")
    # What is closed has archived everything. While a queue is open that takes some seconds.


async def main(directory: Path) -> None:
    url = directory.as_uri()
    await work(url)

    counts: Counter[JobState] = Counter()
    since = datetime.now(UTC) - timedelta(hours=1)
    async for job in Queue.open(url).archive(since=since):
        counts[job.state] += 1
        if job.state is JobState.DONE and job.result is not None:
            print(f"{job.payload.decode()} -> {job.result.decode()}")
        elif job.state is JobState.DEAD:
            print(f"{job.payload.decode()} is dead after {job.attempts} attempts: {job.error}")
    print(", ".join(f"{count} {state.value}" for state, count in sorted(counts.items())))


def look(directory: Path) -> None:
    lines = [line for path in directory.glob("archive/*/*.jsonl") for line in path.read_text().splitlines()]
    print(f"lines: {len(lines)}, worked on by {sorted({json.loads(line).get('worker', '-') for line in lines})}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(Path(place)))
        look(Path(place))
