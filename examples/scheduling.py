"""When a job runs: priorities, delays, a moment, an end, and a key that keeps a job from being queued twice."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from casque import NewJob, Queue


async def main() -> None:
    async with Queue.open("memory://scheduling") as queue:
        # Lower runs first; within a priority, whoever became due first.
        await queue.enqueue("report", b"yearly", priority=10)
        await queue.enqueue("report", b"urgent", priority=-1)
        await queue.enqueue("report", b"daily")

        # Not before then. A moment needs a time zone; one that has passed means now.
        await queue.enqueue("report", b"in a moment", delay=timedelta(milliseconds=50))
        await queue.enqueue("report", b"next year", run_at=datetime.now(UTC) + timedelta(days=365))

        # Worth nothing later: cancelled if no worker has claimed it by then.
        await queue.enqueue("quote", b"of this moment", expires=timedelta(milliseconds=1))

        # While an unfinished job holds the key, enqueueing gives that job back and adds nothing.
        first = await queue.enqueue("report", b"nightly", priority=20, key="nightly-report")
        second = await queue.enqueue("report", b"nightly", priority=20, key="nightly-report")
        print("same job:", first.id == second.id)

        # Several at once, all of them or none, in one commit.
        await queue.enqueue_many([NewJob("report", b"weekly", priority=5), ("report", b"hourly")])

        totals = (await queue.stats()).totals
        print("waiting for their time:", totals.delayed)

        order: list[str] = []
        while len(order) < 7:
            # Waits for the delayed job too, and not a moment longer than its delay.
            for job in await queue.dequeue("report", wait=5.0):
                order.append(job.payload.decode())
                await job.ack()
        print("order:", ", ".join(name for name in order if name != "in a moment"))
        print("delayed job ran:", "in a moment" in order)

        print("expired jobs handed out:", len(await queue.dequeue("quote", wait=0.05)))
        [later] = await queue.jobs()
        await queue.cancel(later.id)
        print("cancelled:", later.payload.decode())


if __name__ == "__main__":
    asyncio.run(main())
