"""A run on Spark that is stopped, with a courier that never comes back by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("pyspark")

from casque import Job, JobState, Queue
from casque.clock import SystemClock, new_nonce, system_random
from casque.spark.work.courier import SparkFailedError, Tracking
from casque.spark.work.foreman import Foreman
from casque.spark.work.options import WorkOptions


class EndlessCourier:
    """Carries until it is interrupted, as Spark does with a handler that hangs."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """With a loop, the outcome of the first job is reported on the way."""
        self._loop = loop
        self.carrying = threading.Event()
        self._interrupted = threading.Event()

    def carry(self, jobs: Sequence[Job[bytes]], _tag: str, tracking: Tracking) -> Any:
        assert tracking.arrived is not None
        if self._loop is not None:
            self._loop.call_soon_threadsafe(tracking.arrived, jobs[:1], [])
        self.carrying.set()
        self._interrupted.wait(20)
        raise SparkFailedError("cancelled by its tag")

    def probe(self, _tag: str) -> None:
        raise SparkFailedError("no job may be blamed for a stop")

    def interrupt(self, _tag: str) -> None:
        self._interrupted.set()


def foreman_of(
    queue: Queue[bytes],
    courier: EndlessCourier,
    options: WorkOptions,
    threads: ThreadPoolExecutor,
    stop: asyncio.Event | None = None,
) -> Foreman:
    return Foreman(
        queue,
        courier,  # type: ignore[arg-type]
        options,
        worker="spark-1",
        stop=stop or asyncio.Event(),
        threads=threads,
        clock=SystemClock(),
        rng=system_random(),
        results=None,
        reports=None,
        report=lambda _summary: None,
    )


async def test_a_batch_that_outlives_the_drain_goes_back_and_is_neither_an_attempt_nor_a_crash() -> None:
    courier, stop = EndlessCourier(), asyncio.Event()
    async with Queue.open("memory://" + new_nonce(system_random())) as queue:
        await queue.enqueue_many([("do", b"")] * 3)
        with ThreadPoolExecutor(4) as threads:
            options = WorkOptions(drain_ms=0, killed_ms=0, follow=True)
            running = asyncio.create_task(foreman_of(queue, courier, options, threads, stop).run())
            await asyncio.to_thread(courier.carrying.wait, 20)
            stop.set()
            async with asyncio.timeout(20):
                summary = await running
        jobs = await queue.jobs()

    assert (summary.given_back, summary.left, summary.failed) == (3, 0, 0)
    assert {(job.state, job.attempts, job.record.crashes) for job in jobs} == {(JobState.READY, 0, 0)}


async def test_tasks_that_do_not_end_at_the_timeout_are_interrupted_and_what_they_reported_is_settled() -> None:
    courier = EndlessCourier(asyncio.get_running_loop())
    async with Queue.open("memory://" + new_nonce(system_random())) as queue:
        await queue.enqueue_many([("do", b"")] * 3)
        with ThreadPoolExecutor(4) as threads:
            foreman = foreman_of(queue, courier, WorkOptions(timeout_ms=10, grace_ms=10), threads)
            async with asyncio.timeout(20):
                summary = await foreman.run()
        jobs = await queue.jobs()

    assert (summary.jobs, summary.done, summary.left, summary.running) == (3, 1, 2, 0)
    assert {(job.state, job.attempts) for job in jobs} == {(JobState.RUNNING, 1)}
    assert len(jobs) == 2
