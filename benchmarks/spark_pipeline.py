"""From a queue to gold: a whole run of the pipeline, one over 1 % more, and one that finds nothing new.

Two queues: one that is only an archive, made with the codec, and one that real calls have filled, with a log, so that
bronze is written as well. One session, warmed up with a small queue first: what a pipeline costs is asked here, not
what a Java costs.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from benchmarks.report import Section, Steps, Table
from benchmarks.scale import Scale
from casque import NewJob, Queue
from casque.codec.archive import HOUR_MS, Range, archive_key, encode_archived, hour_of
from casque.codec.document import DocumentCodec
from casque.codec.head import KEY
from casque.state import Limits, State
from casque.storage.local import LocalStore
from casque.storage.port import Stored
from casque.types import Attempt, Ending, Finished, JobRecord, JobSpec, JobState

BEGIN_MS = 1_771_113_600_000
"""2026-02-15, at midnight."""
HOURS = 24
PER_COMMIT = 100
PER_OBJECT = 5_000
PER_CALL = 1_000
ARCHIVE_SECONDS_MAX = 25.0
LOG_SECONDS_MAX = 60.0
JOBS = 1_000_000
"""For so many."""


def measure(scale: Scale, steps: Steps) -> Section:
    from casque.spark.pipeline import run
    from casque.spark.session import local_session

    table = Table(
        f"spark-pipeline: {scale.spark_jobs:,} finished jobs to gold, local[2]",
        ("queue", "run", "jobs", "seconds", "jobs/s", "MB of Parquet"),
        notes=["More: an hour's jobs that finished late, 1 % of all. Again: nothing new. Log: with every event."],
    )
    section = Section([table])
    steps.expect(10)
    settings = {"spark.sql.shuffle.partitions": "4", "spark.log.level": "ERROR"}
    session = local_session("casque-bench", master="local[2]", settings=settings)
    try:
        with tempfile.TemporaryDirectory() as directory:
            small = History(Path(directory) / "small")
            asyncio.run(small.grow(2_000))
            run(session, small.url, f"file://{directory}/warm")
            steps.done("warm")
            for kind, queue, most in (
                ("archive", History(Path(directory) / "archive"), ARCHIVE_SECONDS_MAX),
                ("log", LoggedHistory(Path(directory) / "log"), LOG_SECONDS_MAX),
            ):
                asyncio.run(queue.grow(scale.spark_jobs))
                steps.done(f"{kind} made")
                took = []
                for name, jobs in (("whole", scale.spark_jobs), ("more", scale.spark_jobs // 100), ("again", 0)):
                    if name == "more":
                        asyncio.run(queue.grow(jobs, hours=1))
                    begun = time.perf_counter()
                    summary = run(session, queue.url, f"file://{directory}/warehouse-{kind}")
                    took.append(time.perf_counter() - begun)
                    assert summary.jobs == jobs, summary
                    table.add(kind, name, jobs, took[-1], jobs / took[-1], summary.bytes / 1e6)
                    steps.done(f"{kind}, {name}")
                seconds = took[0] * JOBS / scale.spark_jobs
                section.keep_below(f"{kind}: seconds for a million jobs", seconds, at_most=most, unit=" s")
                section.keep_below(f"{kind}: 1 % more, against the whole", took[1] / took[0], at_most=0.2)
    finally:
        session.stop()
    steps.done("measured")
    return section


class LoggedHistory:
    """A queue in the log layout, whose jobs real calls have enqueued, claimed and finished."""

    def __init__(self, path: Path) -> None:
        self.url = path.as_uri()

    async def grow(self, jobs: int, *, hours: int = HOURS) -> None:  # noqa: ARG002  it takes the time that it takes
        async with Queue.open(self.url) as queue:
            for begin in range(0, jobs, PER_CALL):
                some = min(PER_CALL, jobs - begin)
                await queue.enqueue_many(
                    [NewJob(f"entry-{n % 5}", b"x" * 100, zone=f"zone-{n % 20}") for n in range(begin, begin + some)]
                )
                claimed = await queue.dequeue(batch_size=some)
                await queue.settle(claimed)


class History:
    """A queue in the document layout with nothing left in it but its archive."""

    def __init__(self, path: Path) -> None:
        self.url = path.as_uri()
        self._store = LocalStore(path)
        self._position = 0
        self._jobs = 0
        self._rng = Random(5)

    async def grow(self, jobs: int, *, hours: int = HOURS) -> None:
        """So many more have finished, over so many hours from the beginning."""
        made = 0
        while made < jobs:
            some = min(PER_OBJECT, jobs - made)
            at_ms = BEGIN_MS + made * hours * HOUR_MS // jobs
            await self._archive(list(self._finished(some, at_ms)))
            made += some
        codec = DocumentCodec(KEY, "bench")
        state = State(Limits())
        state.position = self._position
        body = codec.encode(state, version=self._position, writers={})
        before = await self._store.get(KEY)
        if isinstance(before, Stored):
            await self._store.replace(KEY, body, expected=before.etag)
        else:
            await self._store.create(KEY, body)

    async def _archive(self, finished: list[Finished]) -> None:
        range_ = Range(finished[0].position, finished[-1].position)
        by_hour: dict[str, list[Finished]] = {}
        for one in finished:
            by_hour.setdefault(hour_of(one.at_ms), []).append(one)
        for hour, some in by_hour.items():
            await self._store.create(archive_key(hour, range_), b"".join(encode_archived(some)))

    def _finished(self, jobs: int, at_ms: int) -> Iterator[Finished]:
        rng = self._rng
        for number in range(jobs):
            if number % PER_COMMIT == 0:
                self._position += 1
                at_ms += 1_500
            self._jobs += 1
            wait_ms, run_ms = int(rng.lognormvariate(5, 2)), int(rng.lognormvariate(6, 1))
            worker = f"worker-{self._jobs % 16}"
            tries: tuple[Attempt, ...] = ()
            dead = self._jobs % 97 == 0
            if self._jobs % 23 == 0:
                failed_ms = at_ms - run_ms - 3_000
                tries = (Attempt(failed_ms - 900, failed_ms, Ending.FAILED, worker, 1, "TimeoutError: no answer"),)
            spec = JobSpec(
                f"{self._jobs:08x}-0000-4000-8000-{self._jobs:012x}",
                f"entrypoint-{self._jobs % 8}",
                b"x" * 100,
                max_attempts=5,
                zone=f"zone-{self._jobs % 5}",
            )
            created_ms = at_ms - run_ms - wait_ms - (10_000 if tries else 0)
            job = JobRecord(
                spec,
                self._jobs,
                created_ms,
                JobState.RUNNING,
                created_ms,
                self._jobs,
                1 + len(tries),
                worker,
                60_000,
                at_ms - run_ms,
                at_ms - run_ms,
                None,
                tries,
            )
            state = JobState.DEAD if dead else JobState.DONE
            yield Finished(self._position, at_ms, job, state, "ValueError: of no use" if dead else None, b"ok")
