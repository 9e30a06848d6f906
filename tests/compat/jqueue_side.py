"""What jqueue 1.0 itself does in the interchange tests. Run by the python of `scripts/jqueue-venv`.

python jqueue_side.py write DIRECTORY   the documents that are kept in jqueue-1.0/
python jqueue_side.py decode FILE       what jqueue's codec reads in it, as JSON on stdout
python jqueue_side.py work FILE         one of everything with jqueue's DirectQueue; then as decode
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any


async def write(directory: Path) -> None:
    from jqueue import DirectQueue, LocalFileSystemStorage
    from jqueue.core import codec
    from jqueue.domain.models import Job, JobStatus, QueueState

    def queue(name: str) -> Any:
        (directory / f"{name}.json").unlink(missing_ok=True)
        return DirectQueue(LocalFileSystemStorage(directory / f"{name}.json"))

    (directory / "empty.json").write_bytes(codec.encode(QueueState()))

    q = queue("queued")
    for n in range(3):
        await q.enqueue("task", b"payload %d" % n)

    q = queue("in-progress")
    for n in range(3):
        await q.enqueue("task", b"payload %d" % n)
    await q.dequeue("task", batch_size=2)

    q = queue("priorities")
    for priority in (10, 0, -5, 10, 0, 2**40):
        await q.enqueue("task", b"%d" % priority, priority=priority)

    q = queue("unicode")
    for entrypoint in ("größe", "作業", "naïve 🦆", "with space / and \\ slash"):
        await q.enqueue(entrypoint, entrypoint.encode())

    q = queue("binary")
    for payload in (b"", b"\x00", bytes(range(256)), b"\xff\xfe\xfd", b"\xfb\xef\xbe" * 7, b'{"json": true}'):
        await q.enqueue("task", payload)

    q = queue("worked")
    for n in range(5):
        await q.enqueue("task" if n % 2 else "other", b"payload %d" % n, priority=n % 3)
    first, second, third = await q.dequeue(batch_size=3)
    await q.nack(first.id)
    await q.ack(second.id)
    await q.heartbeat(third.id)
    await q.enqueue("task", b"last")

    # No verb of jqueue makes a dead job, but its format has them.
    dead = Job.new("task", b"given up").with_status(JobStatus.DEAD)
    state = QueueState().with_job_added(dead).with_job_added(Job.new("task", b"waiting"))
    (directory / "dead.json").write_bytes(codec.encode(state))


async def work(path: Path) -> None:
    from jqueue import DirectQueue, LocalFileSystemStorage

    q = DirectQueue(LocalFileSystemStorage(path))
    await q.enqueue("from-jqueue", b"added there", priority=1)
    claimed = await q.dequeue("task", batch_size=2)
    await q.ack(claimed[0].id)
    await q.nack(claimed[1].id)
    await q.dequeue("task")


def decode(path: Path) -> None:
    from jqueue.core import codec

    state = codec.decode(path.read_bytes())
    jobs = [
        {
            "id": job.id,
            "entrypoint": job.entrypoint,
            "payload": base64.b64encode(job.payload).decode(),
            "status": job.status.value,
            "priority": job.priority,
            "created_at": job.created_at.isoformat(),
            "heartbeat_at": job.heartbeat_at and job.heartbeat_at.isoformat(),
        }
        for job in state.jobs
    ]
    print(json.dumps({"version": state.version, "jobs": jobs}))


def main() -> None:
    verb, place = sys.argv[1], Path(sys.argv[2])
    if verb == "write":
        asyncio.run(write(place))
        return
    if verb == "work":
        asyncio.run(work(place))
    decode(place)


if __name__ == "__main__":
    main()
