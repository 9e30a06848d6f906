"""Processes that share a queue on local files hear of each other's jobs; they need not wait for the next look."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from casque import Queue
from casque.clock import SystemClock
from casque.testing import ManualClock


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell of new files")
async def test_a_job_of_another_process_wakes_whoever_waits_though_no_time_passes(tmp_path: Path) -> None:
    # It stands still, so that nobody who looks now and then ever looks again; ahead, so that all jobs are due.
    clock = ManualClock(SystemClock().wall_ms() + 3_600_000)
    url = f"file://{tmp_path}/queue"
    async with Queue.open(url) as producer, Queue.open(url, clock=clock) as consumer:
        await producer.enqueue("other", b"")
        for number in range(3):
            waiting = asyncio.create_task(consumer.dequeue("send", wait=3600))
            await producer.enqueue("other", b"")  # not what is waited for
            added = await producer.enqueue("send", b"%d" % number)
            async with asyncio.timeout(30):
                [job] = await waiting
            assert job.id == added.id
            await job.ack()
