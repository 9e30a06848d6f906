"""Follow a queue: every event once, in order, from a program that never writes.

The follower counts what happens to each entrypoint and remembers how far it has come. Then it is started anew, and goes
on where it stopped.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from casque import EventKind, Queue

URL = "memory://change-feed"


class Ledger:
    """What a follower keeps: its counts, and the position they stand for. Stored together, they always agree."""

    def __init__(self) -> None:
        self.position = 0
        self.finished: Counter[str] = Counter()
        self.entrypoints: dict[str | None, str] = {}

    async def catch_up(self) -> None:
        # Not entered with `async with`: whoever only watches takes no part in the queue's upkeep.
        async for event in Queue.open(URL).events(from_position=self.position, follow=False):
            if event.kind is EventKind.ADDED:
                self.entrypoints[event.job_id] = event.fields["entrypoint"]
            elif event.kind is EventKind.ACKED:
                self.finished[self.entrypoints.pop(event.job_id)] += 1
            self.position = event.position


async def main() -> None:
    ledger = Ledger()
    async with Queue.open(URL) as queue:
        await queue.enqueue_many([("resize", b"cat.png"), ("send", b"hello"), ("send", b"world")])
        for job in await queue.dequeue("send", batch_size=10):
            await job.ack()
        await ledger.catch_up()
        print(f"at position {ledger.position}: {dict(ledger.finished)}")

        [job] = await queue.dequeue("resize")
        await job.ack()
        await ledger.catch_up()
        print(f"at position {ledger.position}: {dict(ledger.finished)}")

        # For ever, until the loop is left: what a live view does.
        events = queue.events()
        waiting = asyncio.create_task(anext(events))
        await asyncio.sleep(0.1)
        await queue.enqueue("send", b"live")
        event = await waiting
        print(f"live: {event.kind.value} {event.fields['entrypoint']} {event.fields['payload'].decode()}")
        await events.aclose()


if __name__ == "__main__":
    asyncio.run(main())
