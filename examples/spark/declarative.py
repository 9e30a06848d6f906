"""A queue's history as a Spark Declarative Pipeline: `spark-pipelines` runs `declarative/tables.py`, twice."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from string import Template

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark

from casque import SyncQueue
from casque.spark.java import use_java
from casque.spark.session import SETTINGS

HERE = Path(__file__).parent / "declarative"
SPARK = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"


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


def run(spec: Path) -> None:
    """The catalog has to last from one run to the next: here it is Hive's. Spark keeps it, and the tables, in folders
    of the directory in which it is started."""
    use_java()
    settings = {**SETTINGS, "spark.sql.catalogImplementation": "hive"}
    command = [str(SPARK), "run", "--spec", str(spec)]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    environment = {"PYSPARK_PYTHON": sys.executable, **os.environ}
    ended = subprocess.run(command, cwd=spec.parent, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(ended.stdout[-4000:] + ended.stderr[-4000:])


def main(directory: Path) -> None:
    url = (directory / "queue").as_uri()
    spec, tables = directory / "spark-pipeline.yml", directory / "spark-warehouse"
    places = {"url": url, "storage": (directory / "storage").as_uri()}
    spec.write_text(Template((HERE / spec.name).read_text()).substitute(places))
    (directory / "tables.py").write_text((HERE / "tables.py").read_text())

    for jobs in (20, 10):
        work(url, jobs)
        run(spec)
        events = pq.read_table(tables / "bronze_events")
        finished = pq.read_table(tables / "silver_jobs")
        print(f"added events: {pc.sum(pc.equal(events['kind'], 'added'))}, finished jobs: {len(finished)}")

    hours = pq.read_table(tables / "gold_hours").group_by("zone")
    for zone in hours.aggregate([(name, "sum") for name in ("enqueued", "done", "dead")]).sort_by("zone").to_pylist():
        print(f"{zone['zone']}: {zone['enqueued_sum']} enqueued, {zone['done_sum']} done, {zone['dead_sum']} dead")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
