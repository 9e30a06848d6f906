"""Look at a queue as it was: who had the job, and how many were waiting, before all of that changed."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from casque import Queue, ReadOnlyError

URL = "memory://time-travel"


async def main() -> None:
    # The past is kept for as long as those who write the queue ask for.
    async with Queue.open(URL, worker="worker-1", retention=timedelta(days=7)) as queue:
        await queue.enqueue_many([("send", b"%d" % n) for n in range(5)])
        [job] = await queue.dequeue("send")
        claimed = (await queue.stats()).position
        await job.ack()
        for job in await queue.dequeue("send", batch_size=10):
            await job.ack()
        print(f"now: {len(await queue.jobs())} jobs")

    async with Queue.open(URL, as_of=claimed) as then:
        totals = (await then.stats()).totals
        print(f"at position {claimed}: {totals.ready} ready, {totals.running} running")
        [running] = [job for job in await then.jobs() if job.worker]
        print(f"held by {running.worker}: {running.payload.decode()}")
        try:
            await then.cancel(running.id)
        except ReadOnlyError:
            print("the past cannot be changed")


if __name__ == "__main__":
    asyncio.run(main())
