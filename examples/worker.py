"""A worker for production: heartbeats, failures with their reason, and a clean end on SIGTERM or Ctrl-C.

It puts four jobs into a queue of its own, works them off and waits for more. One of them always fails and ends as
dead. Stop it with Ctrl-C: a job in hand is finished first, and nothing stays claimed.
"""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta

from casque import HeartbeatManager, Job, JobState, LeaseLostError, Queue

LEASE = timedelta(seconds=30)


async def handle(job: Job[bytes]) -> None:
    """The work itself. Whatever it raises makes the attempt a failed one."""
    if job.payload == b"broken.png":
        raise ValueError("not an image")
    print("resized", job.payload.decode(), flush=True)


async def work_on(queue: Queue[bytes], job: Job[bytes]) -> None:
    try:
        # A heartbeat every quarter of the lease leaves room for three that fail. Should the lease be lost all the
        # same, the block is cancelled: somebody else has the job by then.
        async with HeartbeatManager(queue, job, interval=LEASE / 4, cancel_on_lost=True):
            await handle(job)
    except LeaseLostError:
        print("lost", job.payload.decode(), flush=True)
    except Exception as error:  # noqa: BLE001  a handler may raise anything, and the worker goes on
        await job.nack(error=error)
        print("failed", job.payload.decode(), "attempt", job.attempts, flush=True)
    else:
        await job.ack()


async def claim(queue: Queue[bytes], stop: asyncio.Event) -> list[Job[bytes]]:
    """Wait for the next job, or for the order to stop."""
    claiming = asyncio.create_task(queue.dequeue("resize", wait=30.0))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({claiming, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if claiming.done():
        return claiming.result()
    claiming.cancel()  # should the claim be on its way to the store, the queue gives it back
    await asyncio.gather(claiming, return_exceptions=True)
    return []


async def work(queue: Queue[bytes], stop: asyncio.Event) -> None:
    while not stop.is_set():
        for job in await claim(queue, stop):
            await work_on(queue, job)


async def main() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Queue.open(
        "memory://worker",
        stale_timeout=LEASE,
        max_attempts=2,
        backoff_base=timedelta(milliseconds=50),
    ) as queue:
        for name in (b"one.png", b"broken.png", b"two.png", b"three.png"):
            await queue.enqueue("resize", name)
        print("working; Ctrl-C ends it", flush=True)
        await work(queue, stop)
        for dead in await queue.jobs(states=[JobState.DEAD]):
            print("dead:", dead.payload.decode(), "because of", dead.last_error)
        print("stopped")


if __name__ == "__main__":
    asyncio.run(main())
