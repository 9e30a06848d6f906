"""Executors as workers: a queue worked off by Spark, with handlers of one job and of many."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from casque import Job, SyncQueue
from casque.spark import process
from casque.spark.session import local_session


def resize(job: Job[bytes]) -> bytes:
    """One job. What it returns goes to the archive, what it raises makes the attempt a failed one."""
    name = job.payload.decode()
    if not name.endswith(".png"):
        raise ValueError(f"{name} is no image")
    return f"small-{name}".encode()


def count(jobs: pa.Table) -> pa.Table:
    """Many jobs in one call: an answer for each, by id."""
    return pa.table({"id": jobs.column("id"), "result": pc.cast(pc.binary_length(jobs.column("payload")), pa.string())})


def main(directory: Path) -> None:
    url = directory.as_uri()
    with SyncQueue.open(url, max_attempts=1) as queue:
        queue.enqueue_many([("resize", f"{n}.png".encode()) for n in range(20)] + [("resize", b"notes.txt")])
        queue.enqueue_many([("count", b"x" * n) for n in range(10)])

    spark = local_session("casque-example", settings={"spark.log.level": "OFF"})
    resized = process(spark, url, resize, entrypoints="resize")
    print(f"resized: {resized.done} done, {resized.failed} failed")
    counted = process(spark, url, count, kind="arrow", entrypoints="count")
    print(f"counted: {counted.done} done")
    spark.stop()

    with SyncQueue.open(url) as queue:
        finished = {job.payload: job for job in queue.archive()}
    print("0.png ->", (finished[b"0.png"].result or b"").decode())
    print("xxxx ->", (finished[b"xxxx"].result or b"").decode())
    print("notes.txt:", (finished[b"notes.txt"].error or "").splitlines()[0])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary) / "queue")
