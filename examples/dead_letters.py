"""Jobs that fail for good: kept as dead with their last error, looked at, tried once more, or purged."""

from __future__ import annotations

import asyncio

from casque import JobState, Queue


async def main() -> None:
    async with Queue.open("memory://dead-letters", max_attempts=2) as queue:
        await queue.enqueue("charge", b"card 1")
        await queue.enqueue("charge", b"card 2", max_attempts=1)

        while jobs := await queue.dequeue("charge", batch_size=10):
            for job in jobs:
                print("attempt", job.attempts, "of", job.max_attempts, "for", job.payload.decode())
                # delay=0 to keep the example short; without it the back-off doubles with every attempt.
                await job.nack(delay=0, error=TimeoutError("the bank does not answer"))

        dead = await queue.jobs(states=[JobState.DEAD])
        for job in dead:
            print("dead:", job.payload.decode(), "|", job.last_error)

        await queue.retry(dead[0].id)
        [job] = await queue.dequeue("charge")
        await job.ack()
        print("after the retry:", job.payload.decode(), "done on attempt", job.attempts)

        print("purged:", await queue.purge("charge"))
        totals = (await queue.stats()).totals
        print(f"{totals.enqueued} enqueued = {totals.done} done + {totals.dead} dead + {totals.purged} purged")


if __name__ == "__main__":
    asyncio.run(main())
