"""The queue without asyncio: every call blocks until it is durable. Calls from several threads share commits."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from casque import SyncQueue


def main(directory: Path) -> None:
    with SyncQueue.open(directory.as_uri()) as queue:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: queue.enqueue("square", b"%d" % n), range(1, 9)))
        print("8 jobs enqueued by 8 threads in", queue.stats().position, "commits")

        results = []
        while jobs := queue.dequeue("square", batch_size=3):
            for job in jobs:
                results.append(int(job.payload) ** 2)
                job.ack()
        print("squares:", *sorted(results))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
