"""Executors as workers: what is promised, under the faults that could break it. The archive is the judge."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from casque import ArchivedJob, EventKind, Job, JobState, NewJob, Queue, SyncQueue, WorkFailedError
from casque.ring.numbers import inner
from casque.spark import Summary, process, replay, results
from tests.spark.histories import ring_of
from tests.support.servers import Server

pytestmark = pytest.mark.xdist_group("spark")

SOON = timedelta(milliseconds=1)
PATIENCE_S = 120


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "queue").as_uri()


def filled(url: str, *payloads: bytes, **how: Any) -> None:
    with SyncQueue.open(url, **how) as queue:
        queue.enqueue_many([("work", payload) for payload in payloads])


def archived(url: str, **how: Any) -> dict[bytes, ArchivedJob]:
    """Finished jobs by payload; each finished once."""

    async def read() -> list[ArchivedJob]:
        return [job async for job in Queue.open(url, **how).archive()]

    jobs = asyncio.run(read())
    assert not [payload for payload, count in Counter(job.payload for job in jobs).items() if count > 1]
    return {job.payload: job for job in jobs}


def totals(url: str) -> tuple[int, int, int]:
    """How many wait, how many are claimed, how many are done."""
    with SyncQueue.open(url) as queue:
        now = queue.stats().totals
    return now.ready + now.delayed, now.running, now.done


@contextmanager
def beside(work: Callable[[], Summary]) -> Iterator[Future[Summary]]:
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit(work)


def wait_for(place: Path) -> None:
    """Until somebody has left a mark there: in another process, so there is nothing to be woken by."""
    pause = threading.Event()
    for _ in range(PATIENCE_S * 100):
        if place.exists():
            return
        pause.wait(0.01)
    raise TimeoutError(str(place))


def until_gone(pid: int) -> None:
    """Until a process that hangs has been ended."""
    pause = threading.Event()
    for _ in range(PATIENCE_S * 100):
        if not Path(f"/proc/{pid}").exists():
            return
        pause.wait(0.01)
    raise TimeoutError(str(pid))


def until_seen(url: str, kind: EventKind, times: int) -> None:
    """Until this has happened so often in the queue."""

    async def follow() -> None:
        seen = 0
        async for event in Queue.open(url).events(from_position=0):
            seen += event.kind is kind
            if seen >= times:
                return

    asyncio.run(asyncio.wait_for(follow(), PATIENCE_S))


# --- What it does ---


def test_jobs_are_done_with_their_results_and_failures_nacked_with_their_errors(spark: SparkSession, url: str) -> None:
    filled(url, *(b"%d" % n for n in range(40)), max_attempts=2)

    def handler(job: Job[bytes]) -> bytes:
        number = int(job.payload)
        if number % 10 == 3:
            raise ValueError(f"{number} is odd, attempt {job.attempts}")
        return b"%d" % (number * number)

    told: list[Summary] = []
    summary = process(
        spark, url, handler, entrypoints="work", until="empty", on_progress=told.append, backoff_base=SOON
    )

    assert (summary.jobs, summary.done, summary.failed) == (44, 36, 8)
    assert (summary.lost, summary.left, summary.given_back, summary.running) == (0, 0, 0, 0)
    assert told[-1] == summary
    jobs = archived(url)
    assert len(jobs) == 40
    for payload, job in jobs.items():
        if int(payload) % 10 == 3:
            assert (job.state, job.attempts) == (JobState.DEAD, 2)
            assert str(job.error).startswith(f"ValueError: {int(payload)} is odd, attempt 2\n")
        else:
            assert (job.state, job.result) == (JobState.DONE, b"%d" % int(payload) ** 2)
    assert {job.worker for job in jobs.values()} == {summary.worker}


def test_jobs_of_a_ring_are_settled_in_the_shards_that_they_are_in(spark: SparkSession, url: str) -> None:
    asyncio.run(ring_of(url, 3))
    with SyncQueue.open(url, max_attempts=2) as queue:
        queue.enqueue_many([NewJob("work", b"%d" % n, zone=f"zone-{n % 13}") for n in range(40)])

    def handler(job: Job[bytes]) -> bytes:
        if job.payload == b"3":
            raise ValueError("of no use")
        return job.payload

    summary = process(spark, url, handler, entrypoints="work", until="empty", backoff_base=SOON)

    assert (summary.jobs, summary.done, summary.failed, summary.lost) == (41, 39, 2, 0)
    jobs = archived(url)
    assert {payload: job.result for payload, job in jobs.items()} == {
        payload: None if payload == b"3" else payload for payload in (b"%d" % n for n in range(40))
    }
    assert {inner(job.token)[1] for job in jobs.values()} == {0, 1, 2}
    for _ in range(2):
        replay(spark, url, "state = 'dead'")
    with SyncQueue.open(url) as queue:
        assert [job.payload for job in queue.jobs() if job.state is JobState.READY] == [b"3"]


def test_handlers_of_many_jobs_and_handlers_by_name(spark: SparkSession, url: str) -> None:
    filled(url, b"1", b"2", b"3", max_attempts=1)
    with SyncQueue.open(url) as queue:
        queue.enqueue("other", b"not asked for")

    def handler(jobs: pa.Table) -> pa.Table:
        ids, payloads = jobs.column("id").to_pylist(), jobs.column("payload").to_pylist()
        errors = ["no" if payload == b"2" else None for payload in payloads]
        return pa.table({"id": ids, "error": errors, "result": payloads})

    summary = process(spark, url, handler, kind="arrow", entrypoints="work", batch=100)
    assert (summary.done, summary.failed) == (2, 1)
    assert {payload: job.result for payload, job in archived(url).items()} == {b"1": b"1", b"2": None, b"3": b"3"}

    # Any module that executors have will do.
    assert process(spark, url, "pickle:dumps", limit=1).done == 1
    assert totals(url) == (0, 0, 3)


def test_a_limit_is_kept_and_the_rest_stays(spark: SparkSession, url: str) -> None:
    filled(url, *(b"%d" % n for n in range(30)))
    summary = process(spark, url, lambda _job: None, limit=11, batch=4)
    assert (summary.jobs, summary.done) == (11, 11)
    assert totals(url) == (19, 0, 11)


# --- Faults on the executors ---


def test_a_task_that_spark_repeats_settles_once(spark: SparkSession, url: str, tmp_path: Path) -> None:
    filled(url, *(b"%d" % n for n in range(8)))
    place = str(tmp_path)

    def handler(job: Job[bytes]) -> None:
        number = int(job.payload)
        with (Path(place) / f"ran-{number}").open("a") as ran:
            ran.write("x")
        if number == 7 and not (Path(place) / "died").exists():
            (Path(place) / "died").touch()
            os._exit(9)

    summary = process(spark, url, handler, batch=100, tasks=2)
    assert (summary.jobs, summary.done, summary.batches) == (8, 8, 1)
    assert {job.attempts for job in archived(url).values()} == {1}
    runs = {n: len((tmp_path / f"ran-{n}").read_text()) for n in range(8)}
    assert runs[7] == 2
    assert max(runs.values()) == 2, "at least once: those beside it may have been called again"


def test_a_job_that_kills_its_process_fails_alone(spark: SparkSession, url: str) -> None:
    filled(url, *(b"%d" % n for n in range(6)), max_attempts=1)

    def handler(job: Job[bytes]) -> bytes:
        if job.payload == b"5":
            os._exit(9)
        return job.payload

    summary = process(spark, url, handler, batch=100)
    assert (summary.done, summary.failed, summary.left) == (5, 1, 0)
    jobs = archived(url)
    assert str(jobs[b"5"].error).startswith("WorkerDied: the Python process on the executor died")
    assert [job.result for payload, job in jobs.items() if payload != b"5"] == [p for p in jobs if p != b"5"]


def test_a_handler_that_executors_cannot_load_is_no_jobs_fault(spark: SparkSession, url: str) -> None:
    filled(url, b"1", b"2")
    module = types.ModuleType("only_on_the_driver")
    exec("def handler(job): pass", module.__dict__)
    sys.modules[module.__name__] = module
    try:
        with pytest.raises(WorkFailedError, match="No module named 'only_on_the_driver'") as caught:
            process(spark, url, module.handler)
    finally:
        del sys.modules[module.__name__]
    assert caught.value.left == 0
    assert totals(url) == (2, 0, 0)
    with SyncQueue.open(url) as queue:
        assert {job.attempts for job in queue.jobs()} == {0}, "given back, and no attempt was counted"


# --- Leases, and being stopped ---


def test_leases_live_as_long_as_the_handler_runs(spark: SparkSession, url: str, tmp_path: Path) -> None:
    filled(url, b"long")
    enough = tmp_path / "enough"

    def handler(job: Job[bytes]) -> None:
        wait_for(enough)

    with beside(lambda: process(spark, url, handler, lease=1.0)) as running:
        until_seen(url, EventKind.BEATEN, 5)  # four beats are a whole lease
        enough.touch()
        summary = running.result()
    assert (summary.done, summary.lost) == (1, 0)
    [job] = archived(url).values()
    assert job.attempts == 1


def test_what_was_cancelled_meanwhile_is_not_counted_as_done(spark: SparkSession, url: str, tmp_path: Path) -> None:
    filled(url, b"stays", b"goes")
    begun, enough = tmp_path / "begun", tmp_path / "enough"

    def handler(job: Job[bytes]) -> None:
        begun.touch()
        wait_for(enough)

    with beside(lambda: process(spark, url, handler, batch=2, tasks=1)) as running:
        wait_for(begun)
        with SyncQueue.open(url) as queue:
            [gone] = [job for job in queue.jobs() if job.payload == b"goes"]
            queue.cancel(gone.id)
        enough.touch()
        summary = running.result()
    assert (summary.done, summary.lost) == (1, 1)
    assert {payload: job.state for payload, job in archived(url).items()} == {
        b"stays": JobState.DONE,
        b"goes": JobState.CANCELLED,
    }


def test_a_stop_finishes_what_runs_and_gives_back_what_has_not_begun(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    filled(url, *(b"%d" % n for n in range(6)))
    enough, place, stop = tmp_path / "enough", str(tmp_path), threading.Event()

    def handler(job: Job[bytes]) -> None:
        (Path(place) / f"begun-{job.payload.decode()}").touch()
        wait_for(enough)

    with beside(lambda: process(spark, url, handler, batch=1, follow=True, stop=stop)) as running:
        wait_for(tmp_path / "begun-0")
        wait_for(tmp_path / "begun-1")
        until_seen(url, EventKind.CLAIMED, 3)  # the third waits for its turn
        stop.set()
        enough.touch()
        summary = running.result()
    assert (summary.jobs, summary.done, summary.given_back) == (3, 2, 1)
    assert totals(url) == (4, 0, 2)


# --- Slow handlers and the timeout ---


def test_a_handler_that_hangs_is_left_to_its_lease_and_comes_back(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    filled(url, b"hangs")
    place = str(tmp_path)

    def handler(job: Job[bytes]) -> None:
        if job.attempts == 1:
            wait_for(Path(place) / "what never comes")

    summary = process(spark, url, handler, lease=1.0, timeout=1.5, until="empty")
    assert (summary.jobs, summary.done, summary.left) == (2, 1, 1)
    [job] = archived(url).values()
    assert job.attempts == 2


@pytest.mark.parametrize("reported", [True, False], ids=["reports", "no-reports"])
def test_a_handler_that_hangs_costs_no_other_job_an_attempt(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: bool
) -> None:
    filled(url, *(b"%d" % n for n in range(40)), max_attempts=2)
    place = str(tmp_path)
    if not reported:  # as over Spark Connect
        monkeypatch.setattr(sys.modules["casque.spark.work.process"], "server_for", lambda _context: None)

    def handler(job: Job[bytes]) -> bytes:
        with (Path(place) / f"ran-{job.payload.decode()}").open("a") as ran:
            ran.write("x")
        if job.payload == b"17":
            (Path(place) / f"pid-{os.getpid()}").touch()
            wait_for(Path(place) / "what never comes")
        return job.payload

    summary = process(spark, url, handler, batch=40, tasks=4, lease=1.0, timeout=3.0, until="empty")

    jobs = archived(url)
    assert len(jobs) == 40
    innocent = [job for payload, job in jobs.items() if payload != b"17"]
    assert {(job.state, job.attempts) for job in innocent} == {(JobState.DONE, 1)}
    assert (jobs[b"17"].state, jobs[b"17"].attempts) == (JobState.DEAD, 2)
    assert (summary.done, summary.failed, summary.lost, summary.left) == (39, 0, 0, 2)
    assert reported or summary.given_back > 0, "those behind it in its part of the batch"
    assert summary.jobs == summary.done + summary.left + summary.given_back
    runs = {n: len((tmp_path / f"ran-{n}").read_text()) for n in range(40)}
    assert {n: count for n, count in runs.items() if count != 1} == {17: 2}, "no other one was called twice"
    for path in tmp_path.glob("pid-*"):
        until_gone(int(path.name.removeprefix("pid-")))


@pytest.mark.parametrize("slow", [b"0", b"99"], ids=["first", "last"])
def test_outcomes_are_settled_while_a_slow_handler_of_the_same_batch_runs(
    spark: SparkSession, url: str, tmp_path: Path, slow: bytes
) -> None:
    filled(url, *(b"%d" % n for n in range(100)))
    begun, enough = tmp_path / "begun", tmp_path / "enough"

    def handler(job: Job[bytes]) -> bytes | None:
        if job.payload == slow:
            begun.touch()
            wait_for(enough)
        return job.payload if int(job.payload) % 2 else None

    with beside(lambda: process(spark, url, handler, batch=100, lease=2.0)) as running:
        wait_for(begun)
        until_seen(url, EventKind.ACKED, 99)
        assert not running.done()
        assert totals(url) == (0, 1, 99)
        until_seen(url, EventKind.BEATEN, 5)
        enough.touch()
        summary = running.result()
    assert (summary.jobs, summary.done, summary.lost, summary.left, summary.batches) == (100, 100, 0, 0, 1)
    assert {payload: job.result for payload, job in archived(url).items()} == {
        b"%d" % n: b"%d" % n if n % 2 else None for n in range(100)
    }


def test_results_that_were_finished_at_the_timeout_are_kept(spark: SparkSession, url: str, tmp_path: Path) -> None:
    filled(url, *(b"%d" % n for n in range(12)), max_attempts=1)
    place, warehouse = str(tmp_path), (tmp_path / "warehouse").as_uri()

    def handler(job: Job[bytes]) -> bytes:
        if job.payload == b"4":
            wait_for(Path(place) / "what never comes")
        return job.payload

    summary = process(spark, url, handler, batch=12, tasks=3, lease=1.0, timeout=2.0, until="empty", results=warehouse)
    assert (summary.done, summary.left) == (11, 1)
    rows = [bytes(row["result"]) for row in results(spark, warehouse, url).collect()]
    assert sorted(rows, key=int) == [b"%d" % n for n in range(12) if n != 4]


def test_a_table_handler_that_hangs_is_left_with_the_jobs_of_its_call_alone(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    filled(url, *(b"%d" % n for n in range(12)), max_attempts=1)
    place = str(tmp_path)

    def handler(jobs: pa.Table) -> None:
        if b"4" in jobs.column("payload").to_pylist():
            wait_for(Path(place) / "what never comes")

    summary = process(spark, url, handler, kind="arrow", per_call=2, batch=12, tasks=2, lease=1.0, timeout=2.0)
    assert (summary.done, summary.left) == (10, 2)


def test_a_timeout_in_which_no_executor_starts_anything_ends_the_run(spark: SparkSession, url: str) -> None:
    filled(url, b"1", b"2")
    with pytest.raises(WorkFailedError, match=r"started no job of 3 batches within the timeout of 0\.001 s"):
        process(spark, url, lambda _job: None, timeout=0.001)
    assert totals(url) == (2, 0, 0)
    with SyncQueue.open(url) as queue:
        assert {job.attempts for job in queue.jobs()} == {0}


# --- Places ---


def test_it_works_on_an_object_store(spark: SparkSession, s3_server: Server) -> None:
    url, options = s3_server.fresh_url(), s3_server.options
    filled(url, b"1", b"2", options=options)
    assert process(spark, url, lambda job: job.payload, options=options).done == 2
    assert {job.result for job in archived(url, options=options).values()} == {b"1", b"2"}
