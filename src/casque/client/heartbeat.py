"""Keeps a lease alive while its job runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, Self

from casque import checks
from casque.client.job import Job
from casque.clock import Clock, SystemClock
from casque.errors import CasqueError, InvalidInputError, JobNotFoundError, LeaseLostError
from casque.telemetry import logger

log = logger("heartbeat")


USUAL_INTERVAL = timedelta(seconds=60)


class HasHeartbeat(Protocol):
    """Any queue, or any other object with this method."""

    async def heartbeat(self, job_id: str) -> Any: ...


class HeartbeatManager:
    """Sends heartbeats for one job until the block ends.

    Storage failures do not stop it: it keeps trying. When the lease is lost, `lost` becomes true and `wait_lost`
    returns; with `cancel_on_lost=True` the block itself is cancelled and raises LeaseLostError, so that a handler stops
    working on a job that another worker has now.

    Pass the job instead of its id to keep only the lease of this claim alive. `interval` defaults to a minute, or less
    if the job's lease is short.

    >>> import asyncio
    >>> from casque import HeartbeatManager, Queue
    >>> async def main():
    ...     async with Queue.open("memory://heartbeat-example") as q:
    ...         await q.enqueue("transcode", b"film")
    ...         [job] = await q.dequeue("transcode")
    ...         async with HeartbeatManager(q, job) as heartbeat:
    ...             print(job.payload, heartbeat.lost)
    ...         await job.ack()
    >>> asyncio.run(main())
    b'film' False
    """

    def __init__(
        self,
        queue: HasHeartbeat,
        job_id: str | Job[Any],
        interval: timedelta | float = USUAL_INTERVAL,
        *,
        cancel_on_lost: bool = False,
        clock: Clock | None = None,
    ) -> None:
        if isinstance(job_id, Job):
            job_id.lease_holder()  # raises for a job that was not claimed
        self._queue = queue
        self._job = job_id if isinstance(job_id, Job) else checks.job_id(job_id)
        if interval is USUAL_INTERVAL and isinstance(job_id, Job):
            interval = min(job_id.lease / 4, USUAL_INTERVAL)  # a lease should survive one or two failed beats
        self._interval_s = checks.span_ms("interval", interval) / 1000
        if not self._interval_s:
            raise InvalidInputError("interval must be more than zero")
        self._cancel_on_lost = cancel_on_lost
        self._clock: Clock = clock or SystemClock()
        self._lost = asyncio.Event()
        self._error: CasqueError | None = None
        self._beats: asyncio.Task[None] | None = None
        self._body: asyncio.Task[Any] | None = None
        self._cancelled = False

    @property
    def lost(self) -> bool:
        """True once the lease is known to be lost."""
        return self._lost.is_set()

    async def wait_lost(self) -> None:
        """Wait until the lease is lost; for handlers that watch it themselves."""
        await self._lost.wait()

    async def __aenter__(self) -> Self:
        self._body = asyncio.current_task()
        self._beats = asyncio.create_task(self._beat(), name=f"casque heartbeat {self._id}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._beats is not None
        assert self._body is not None
        self._beats.cancel()
        await asyncio.gather(self._beats, return_exceptions=True)
        if self._cancelled:
            # The cancellation was ours. If no other was requested, turn it into the error that it stands for.
            others = self._body.uncancel()
            if kind is not None and issubclass(kind, asyncio.CancelledError) and others == 0:
                raise LeaseLostError(self._id) from self._error

    async def _beat(self) -> None:
        pause_s = self._interval_s
        while True:
            await self._clock.sleep(pause_s)
            try:
                await self._send()
            except (JobNotFoundError, LeaseLostError) as error:
                self._give_up(error)
                return
            except Exception as error:  # noqa: BLE001  `queue` may be anything, and whatever it is, the job goes on
                # A lease survives several failed beats, so there is time; but retry sooner than usual.
                log.warning("heartbeat of job %s failed, trying again: %s", self._id, error)
                pause_s = self._interval_s / 4
            else:
                pause_s = self._interval_s

    async def _send(self) -> None:
        if isinstance(self._job, Job):
            await self._job.heartbeat()
        else:
            await self._queue.heartbeat(self._job)

    def _give_up(self, error: CasqueError) -> None:
        self._error = error
        self._lost.set()
        if self._cancel_on_lost and self._body is not None:
            self._cancelled = True
            self._body.cancel()

    @property
    def _id(self) -> str:
        return self._job.id if isinstance(self._job, Job) else self._job
