"""Safe repeats: a call that carries a request id may be made again, and acts once.

The store here loses its replies for a while, so that a call ends with an unknown outcome: the job may or may not be
in the queue. Repeating the call with the same request id settles it.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from casque import Job, Queue, UnknownOutcomeError
from casque.storage.memory import MemoryStore
from casque.testing.lossy import Fault, LossyStore


class Line:
    """The line to the store: whole, or losing every reply."""

    broken = False

    def next_fault(self) -> Fault:
        return Fault.AFTER if self.broken else Fault.NONE


async def submit(queue: Queue[bytes], order: str, line: Line) -> Job[bytes]:
    for attempt in range(1, 4):
        try:
            # The id comes from the caller's own data, so a process that was started anew would use the same one.
            return await queue.enqueue("ship", order.encode(), request_id=f"ship-{order}")
        except UnknownOutcomeError:
            print(f"attempt {attempt}: nobody knows")
            line.broken = False  # the network comes back
    raise TimeoutError("the store is still away")


async def main() -> None:
    line = Line()
    store = LossyStore(MemoryStore(), line.next_fault)
    async with Queue.open(store, storage_patience=timedelta(milliseconds=100)) as queue:
        await submit(queue, "order-16", line)
        line.broken = True
        job = await submit(queue, "order-17", line)
        again = await submit(queue, "order-17", line)
        print("the same job:", job.id == again.id)
        print("jobs in the queue:", len(await queue.jobs()))

        [job] = await queue.dequeue("ship", request_id="worker-1-claim-1")
        [same] = await queue.dequeue("ship", request_id="worker-1-claim-1")
        print("the same claim:", job.token == same.token)

        await queue.ack(job.id, job.token, request_id=f"done-{job.id}")
        await queue.ack(job.id, job.token, request_id=f"done-{job.id}")
        print("acknowledged twice, done:", (await queue.stats()).totals.done)


if __name__ == "__main__":
    asyncio.run(main())
