"""One worker process of `casque demo`: claims, works, acknowledges, and says on standard output what it does."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta

from casque import HeartbeatManager, Job, Queue
from casque.clock import SystemClock


async def work(url: str, name: str, *, crashes: bool, lease: timedelta) -> None:
    clock = SystemClock()
    async with Queue.open(url, worker=name, stale_timeout=lease, backoff_base=timedelta(milliseconds=200)) as queue:
        finished = 0
        while jobs := await queue.dequeue(batch_size=5, wait=lease.total_seconds() * 2):
            if crashes and finished >= 10:
                say("holding", name, jobs[0])
                await clock.sleep(3600)  # whoever listens kills this process now
            for job in jobs:
                async with HeartbeatManager(queue, job, interval=lease / 4):
                    await clock.sleep(0.01)
                if json.loads(job.payload)["fails"] and job.attempts == 1:
                    await job.nack(error="the first attempt of this one always fails")
                    say("failed", name, job)
                else:
                    await job.ack()
                    say("done", name, job)
                    finished += 1


def say(what: str, worker: str, job: Job[bytes]) -> None:
    line = json.dumps({"what": what, "worker": worker, "job": job.id, "attempt": job.attempts})
    print(line, flush=True)


if __name__ == "__main__":
    url, name, mode, seconds = sys.argv[1:]
    asyncio.run(work(url, name, crashes=mode == "crash", lease=timedelta(seconds=float(seconds))))
