"""Functions in processes of their own: on another core, killed when their time is up, and free to crash."""

from __future__ import annotations

import asyncio
import os

import casque
from casque import JobContext, JobState
from casque.worker import Worker

app = casque.App("memory://processes-example")


@app.job(executor="process")
def count_primes(context: JobContext, below: int) -> int:
    context.logger.info("counting")
    return sum(all(number % other for other in range(2, number)) for number in range(2, below))


@app.job(executor="process", timeout=0.2, max_attempts=1)
def never_end() -> None:
    while True:
        pass  # a thread could not be stopped


@app.job(executor="process", max_crashes=2, backoff=0)
def crash() -> None:
    os._exit(7)  # as a fault in native code would


async def main() -> None:
    async with app:
        primes = await count_primes.enqueue(2000)
        await app.enqueue_many([never_end.bind(), crash.bind()])
        summary = await Worker(app, concurrency=2, burst=True, recycle_after=100).run()
        print(f"{summary.done} done, {summary.failed} failed, {summary.crashed} crashed")
        print("primes below 2000:", await primes.result())
        for job in await app.queue.jobs(states=[JobState.DEAD]):
            print(f"{job.entrypoint}: {job.last_error}")


if __name__ == "__main__":  # each process loads this file, and must not start a worker of its own
    asyncio.run(main())
