"""Zone after zone: first by hand, with a lease; then with scanner, managers and workers that do it by themselves."""

from __future__ import annotations

import asyncio

import casque
from casque import NewJob, Queue
from casque.worker import ConsumerOptions, Worker

URL = "memory://consumer-example"
app = casque.App(URL)
done: list[str] = []


@app.job(zone="{tenant}")
async def greet(tenant: str, name: str) -> None:
    done.append(f"{tenant}: {name}")


async def by_hand(queue: Queue[bytes]) -> None:
    for zone in await queue.peek_zones(limit=1):
        lease = await queue.lease_zone(zone.zone, lease=30)
        if lease is None:
            continue  # somebody was faster
        print("leased:", lease.zone, "- for others it has", len(await queue.dequeue(zone=lease.zone)), "jobs")
        jobs = await queue.dequeue(batch_size=10, zone_lease=lease)
        await queue.settle(jobs)
        await queue.release_zone(lease)
        print("done under the lease:", len(jobs))


async def main() -> None:
    async with app, Queue.open(URL) as queue:
        await queue.enqueue_many([NewJob("by hand", b"", zone="acme") for _ in range(3)])
        await by_hand(queue)

        for n in range(20):
            await greet.enqueue(f"tenant-{n % 4}", f"{n}")
        consumer = Worker(app, burst=True, consumer=ConsumerOptions(managers=2, workers=8, dequeue_max=3))
        summary = await consumer.run()
        print("done zone after zone:", summary.done, "of", len(done))
        events = queue.events(from_position=0, follow=False)
        print("leased:", sorted({event.fields["zone"] async for event in events if event.kind == "zone_leased"}))


if __name__ == "__main__":
    asyncio.run(main())
