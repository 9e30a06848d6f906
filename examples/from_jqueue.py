"""A program for jqueue with another import, on the queue that jqueue left behind.

The rest of the program stays as it is. What changes is what happens to a worker that was away for too long: another
one has its job by then, and `ack` says so.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from casque.compat.jqueue import DirectQueue, HeartbeatManager, JobNotFoundError, LocalFileSystemStorage

LEFT_BEHIND = """{"version": 7, "jobs": [{
  "id": "550e8400-e29b-41d4-a716-446655440000", "entrypoint": "send_email", "payload": "eyJ0byI6ICJhZGEifQ==",
  "status": "queued", "priority": 0, "created_at": "2026-01-01T12:00:00+00:00", "heartbeat_at": null
}]}"""


async def main() -> None:
    with TemporaryDirectory() as place:
        path = Path(place) / "queue.json"
        path.write_text(LEFT_BEHIND)
        slow, quick = (DirectQueue(LocalFileSystemStorage(path), max_retries=3) for _ in range(2))

        [job] = await slow.dequeue("send_email")
        async with HeartbeatManager(slow, job.id):
            print("the first worker has", job.payload)
        print("taken back:", await quick.requeue_stale(timedelta(0)))
        [again] = await quick.dequeue("send_email")
        print("the second worker has the same job:", again.id == job.id)

        try:
            await slow.ack(job.id)
        except JobNotFoundError as error:
            print("the first worker:", error)
        await quick.ack(again.id)
        print("left:", len((await quick.read_state()).jobs))


if __name__ == "__main__":
    asyncio.run(main())
