"""A queue on four shards, which becomes eight while it is used: zones stay whole, and nothing moves."""

import asyncio
from collections import Counter

from casque import NewJob, Queue
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS

URL = "memory://tenants"


async def main() -> None:
    # `casque queue create URL --shards 4` and `casque queue resize URL --shards 8` do the same.
    builder = Parts(as_store(URL), DEFAULTS).builder()
    await builder.create(4)
    tenants = [f"tenant-{n}" for n in range(12)]
    async with Queue.open(URL) as queue:
        await queue.enqueue_many([NewJob("report", b"monday", zone=tenant) for tenant in tenants])
        ring = await builder.resize(8)
        print(f"generation {ring.generation}: {ring.size} shards")
        await queue.enqueue_many([NewJob("report", b"tuesday", zone=tenant) for tenant in tenants])
        days: dict[str | None, list[bytes]] = {}
        while jobs := await queue.dequeue("report", batch_size=10):
            for job in jobs:
                days.setdefault(job.zone, []).append(job.payload)
            await queue.settle(jobs)
        print("each in order:", Counter(b" ".join(several).decode() for several in days.values()))
        print("done:", (await queue.stats()).totals.done)


asyncio.run(main())
