"""A queue's history as tables: a pipeline run, a look at the tables, and a run that finds what is new."""

from __future__ import annotations

import tempfile
from pathlib import Path

from casque import SyncQueue
from casque.spark.pipeline import run
from casque.spark.session import local_session
from casque.spark.warehouse import Warehouse


def work(url: str, jobs: int) -> None:
    """Some jobs, of two zones; one in five is of no use to anybody."""
    with SyncQueue.open(url, max_attempts=1) as queue:
        for number in range(jobs):
            queue.enqueue("resize", str(number).encode(), zone="acme" if number % 3 else "globex")
        for job in queue.dequeue("resize", batch_size=jobs):
            if int(job.payload) % 5 == 4:
                job.nack(error="ValueError: no image")
            else:
                job.ack()


def main(directory: Path) -> None:
    url = (directory / "queue").as_uri()
    warehouse = Warehouse((directory / "warehouse").as_uri())
    work(url, jobs=20)

    spark = local_session("casque-example", settings={"spark.log.level": "OFF"})
    first = run(spark, url, warehouse)
    print(f"finished jobs: {first.jobs}, attempts: {first.attempts}")

    # What is not finished yet is in the tables too; what finishes later is added by the next run.
    work(url, jobs=10)
    print(f"new in the second run: {run(spark, url, warehouse).jobs}")
    print(f"new in the third run: {run(spark, url, warehouse).jobs}")

    hours = warehouse.read(spark, "gold/hours")
    for row in hours.groupBy("zone").sum("enqueued", "done", "dead").orderBy("zone").collect():
        print(f"{row[0]}: {row[1]} enqueued, {row[2]} done, {row[3]} dead")
    [(error, jobs)] = warehouse.read(spark, "gold/dead_letters").groupBy("error_class").sum("jobs").collect()
    print(f"died of {error}: {jobs}")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
