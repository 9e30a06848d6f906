"""What jqueue's two queues share: the verbs, on one of casque's small queues."""

from __future__ import annotations

from datetime import timedelta

from casque import checks
from casque.client.small import SmallQueue
from casque.clock import SystemClock
from casque.compat.jqueue.domain.errors import translated
from casque.compat.jqueue.domain.models import Job, QueueState


class Verbs:
    """The five verbs and the view of the whole queue.

    The small queue remembers the tokens of what it claimed, so that a call by id alone means its own claim.
    """

    def __init__(self, queue: SmallQueue, stale_timeout: timedelta | None = None) -> None:
        self._queue = queue
        # As in jqueue, a timeout of zero or less takes back every claim with the next call; casque's leases have a
        # length.
        self._sweep_each_call = stale_timeout is not None and stale_timeout <= timedelta(0)

    async def enqueue(self, entrypoint: str, payload: bytes, priority: int = 0) -> Job:
        wanted = Job.new(entrypoint, payload, priority)
        with translated():
            await self._sweep()
            return Job.of(await self._queue.enqueue(wanted.entrypoint, wanted.payload, wanted.priority))

    async def dequeue(self, entrypoint: str | None = None, *, batch_size: int = 1) -> list[Job]:
        """Claim jobs; an empty list if there are none."""
        if batch_size == 0:
            return []
        with translated():
            await self._sweep()
            return [Job.of(job) for job in await self._queue.dequeue(entrypoint, batch_size=batch_size)]

    async def ack(self, job_id: str) -> None:
        """Remove a finished job.

        Raises JobNotFoundError if it is not in the queue, or was claimed here and is another worker's now.
        """
        with translated():
            await self._sweep()
            await self._queue.ack(job_id)

    async def nack(self, job_id: str) -> None:
        """Queue a job again at once. Raises JobNotFoundError as `ack` does."""
        with translated():
            await self._sweep()
            await self._queue.nack(job_id, delay=0)

    async def heartbeat(self, job_id: str) -> None:
        """Keep a claim. Raises JobNotFoundError as `ack` does, and if the job is not in progress."""
        with translated():
            await self._sweep()
            await self._queue.heartbeat(job_id)

    async def read_state(self) -> QueueState:
        """Everything in the queue, read from the storage."""
        with translated():
            state = await self._queue.read_state()
            return QueueState.of(state.jobs, state.version)

    async def _sweep(self) -> None:
        if self._sweep_each_call:
            await self._take_back(timedelta(0))

    async def _take_back(self, timeout: timedelta) -> int:
        cutoff_ms = SystemClock().wall_ms() - checks.span_ms("timeout", timeout)
        # Times are kept in whole milliseconds: one more, or a claim of this very millisecond would not count.
        return await self._queue._service.expire_before(cutoff_ms + 1)  # noqa: SLF001
