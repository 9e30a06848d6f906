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
from casque.spark.work.courier import SparkFailedError
from casque.spark.work.foreman import Foreman
from casque.spark.work.options import WorkOptions
from casque.spark.work.summary import Summary


class EndlessCourier:
    """Carries until it is interrupted, as Spark does with a handler that hangs."""

    def __init__(self) -> None:
        self.carrying = threading.Event()
        self._interrupted = threading.Event()

    def carry(self, _jobs: Sequence[Job[bytes]], _tag: str) -> Any:
        self.carrying.set()
        self._interrupted.wait(20)
        raise SparkFailedError("cancelled by its tag")

    def probe(self, _tag: str) -> None:
        raise SparkFailedError("no job may be blamed for a stop")

    def interrupt(self, _tag: str) -> None:
        self._interrupted.set()


async def test_a_batch_that_outlives_the_drain_goes_back_and_is_neither_an_attempt_nor_a_crash() -> None:
    courier, stop, told = EndlessCourier(), asyncio.Event(), list[Summary]()
    async with Queue.open("memory://" + new_nonce(system_random())) as queue:
        await queue.enqueue_many([("do", b"")] * 3)
        with ThreadPoolExecutor(4) as threads:
            foreman = Foreman(
                queue,
                courier,  # type: ignore[arg-type]
                WorkOptions(drain_ms=0, killed_ms=0, follow=True),
                worker="spark-1",
                stop=stop,
                threads=threads,
                clock=SystemClock(),
                rng=system_random(),
                results=None,
                report=told.append,
            )
            running = asyncio.create_task(foreman.run())
            await asyncio.to_thread(courier.carrying.wait, 20)
            stop.set()
            async with asyncio.timeout(20):
                summary = await running
        jobs = await queue.jobs()

    assert (summary.given_back, summary.left, summary.failed) == (3, 0, 0)
    assert {(job.state, job.attempts, job.record.crashes) for job in jobs} == {(JobState.READY, 0, 0)}
