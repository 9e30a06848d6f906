"""Zones: tenants take turns, one has a limit, and one gets its jobs strictly one after the other."""

from __future__ import annotations

import asyncio

from casque import NewJob, Queue


async def main() -> None:
    async with Queue.open("memory://tenants-example") as queue:
        await queue.enqueue_many([NewJob("send", b"", zone="giant") for _ in range(1000)])
        await queue.enqueue("send", b"", zone="small")
        claimed = await queue.dequeue(batch_size=4)
        print("in turns:", [job.zone for job in claimed])
        await queue.settle(claimed)

        await queue.set_zone("giant", running_max=2)
        claimed = await queue.dequeue(batch_size=100)
        print("at most two at a time:", [job.zone for job in claimed])

        await queue.enqueue_many([NewJob("book", b"%d" % n, zone="ledger", fifo=True) for n in range(3)])
        order = []
        while jobs := await queue.dequeue(zone="ledger", batch_size=100):
            order += [job.payload.decode() for job in jobs]
            await queue.settle(jobs)
        print("one after the other:", order)
        for zone in await queue.zones():
            print(f"{zone.zone}: {zone.ready} waiting, {zone.running} running")


if __name__ == "__main__":
    asyncio.run(main())
