"""The same queue for people without asyncio: every call blocks until it is durable.

An event loop runs in a thread of its own; calls from any number of threads are batched into common commits.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import EllipsisType, TracebackType
from typing import Any, Generic, TypeVar, Unpack, overload

from casque.client.job import Job
from casque.client.loop_thread import LoopThread, result_of
from casque.client.queue import NewJob, Queue
from casque.client.reaching import ClientTlsFiles
from casque.errors import CasqueError, QueueClosedError
from casque.service import ArchivedJob, Outcome, QueueEvent, Stats
from casque.settings import SettingsChanges
from casque.types import (
    Admission,
    Attempt,
    JobState,
    Missed,
    PeekedZone,
    Schedule,
    StagedPart,
    ZoneLease,
    ZoneRules,
    ZoneStanding,
)

T = TypeVar("T")
R = TypeVar("R")


class SyncQueue(Generic[T]):
    """`Queue` without `await`.

    >>> from casque import SyncQueue
    >>> with SyncQueue.open("memory://sync-example") as q:
    ...     _ = q.enqueue("send", b"hello")
    ...     for job in q.dequeue("send", wait=5.0):
    ...         print(job.payload)
    ...         job.ack()
    b'hello'
    """

    def __init__(self, queue: Queue[T]) -> None:
        self._queue = queue
        self._loop: LoopThread | None = None
        self._guard = threading.Lock()

    @overload
    @classmethod
    def open(
        cls,
        url: Any,
        *,
        layout: str | None = None,
        options: Mapping[str, str] | None = None,
        via: str | None = None,
        token: str | None = None,
        tls: ClientTlsFiles | None = None,
        worker: str | None = None,
        as_of: int | datetime | None = None,
        **settings: Unpack[SettingsChanges],
    ) -> SyncQueue[bytes]: ...

    @overload
    @classmethod
    def open(
        cls,
        url: Any,
        *,
        type: type[T],
        layout: str | None = None,
        options: Mapping[str, str] | None = None,
        via: str | None = None,
        token: str | None = None,
        tls: ClientTlsFiles | None = None,
        worker: str | None = None,
        as_of: int | datetime | None = None,
        **settings: Unpack[SettingsChanges],
    ) -> SyncQueue[T]: ...

    @classmethod
    def open(cls, url: Any, **everything: Any) -> SyncQueue[Any]:
        """As `Queue.open`."""
        return SyncQueue(Queue.open(url, **everything))

    def __enter__(self) -> SyncQueue[T]:
        self._loop = LoopThread("casque")
        try:
            self._wait(self._queue.__aenter__())
        except BaseException:
            self._end_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._wait(self._queue.__aexit__(kind, error, trace))
        finally:
            self._end_loop()

    def enqueue(
        self,
        entrypoint: str,
        payload: T,
        *,
        priority: int = 0,
        delay: float | timedelta | None = None,
        run_at: datetime | None = None,
        key: str | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, str] | None = None,
        zone: str | None = None,
        max_crashes: int | None = None,
        fifo: bool = False,
        request_id: str | None = None,
    ) -> SyncJob[T]:
        return self._job(
            self._wait(
                self._queue.enqueue(
                    entrypoint,
                    payload,
                    priority=priority,
                    delay=delay,
                    run_at=run_at,
                    key=key,
                    max_attempts=max_attempts,
                    headers=headers,
                    zone=zone,
                    max_crashes=max_crashes,
                    fifo=fifo,
                    request_id=request_id,
                )
            )
        )

    def enqueue_many(
        self, jobs: Iterable[tuple[str, T] | NewJob[T]], *, request_id: str | None = None
    ) -> list[SyncJob[T]]:
        return [self._job(job) for job in self._wait(self._queue.enqueue_many(jobs, request_id=request_id))]

    def admit(self, source: str, batch: int, parts: Sequence[StagedPart], *, skip_known: bool = False) -> Admission:
        """Add the jobs of staged parts in one commit, once for each batch of a source."""
        return self._wait(self._queue.admit(source, batch, parts, skip_known=skip_known))

    def dequeue(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        batch_size: int = 1,
        wait: float | timedelta = 0.0,
        lease: float | timedelta | None = None,
        zone: str | Sequence[str] | None = None,
        zone_lease: ZoneLease | None = None,
        request_id: str | None = None,
    ) -> list[SyncJob[T]]:
        claimed = self._wait(
            self._queue.dequeue(
                entrypoint,
                batch_size=batch_size,
                wait=wait,
                lease=lease,
                zone=zone,
                zone_lease=zone_lease,
                request_id=request_id,
            )
        )
        return [self._job(job) for job in claimed]

    def ack(
        self, job_id: str, token: int | None = None, *, result: bytes | None = None, request_id: str | None = None
    ) -> None:
        self._wait(self._queue.ack(job_id, token, result=result, request_id=request_id))

    def nack(
        self,
        job_id: str,
        token: int | None = None,
        *,
        delay: float | timedelta | None = None,
        error: BaseException | str | None = None,
        request_id: str | None = None,
    ) -> None:
        self._wait(self._queue.nack(job_id, token, delay=delay, error=error, request_id=request_id))

    def settle(
        self, outcomes: Iterable[SyncJob[T] | Outcome], *, request_id: str | None = None
    ) -> list[CasqueError | None]:
        """As `Queue.settle`."""
        told = [one.job if isinstance(one, SyncJob) else one for one in outcomes]
        return self._wait(self._queue.settle(told, request_id=request_id))

    def heartbeat(self, job_id: str, token: int | None = None) -> None:
        self._wait(self._queue.heartbeat(job_id, token))

    def heartbeats(self, jobs: Sequence[SyncJob[T]]) -> list[CasqueError | None]:
        """As `Queue.heartbeats`."""
        return self._wait(self._queue.heartbeats([job.job for job in jobs]))

    def give_back(self, jobs: Sequence[SyncJob[T]]) -> list[CasqueError | None]:
        """As `Queue.give_back`."""
        return self._wait(self._queue.give_back([job.job for job in jobs]))

    def cancel(self, job_id: str, *, request_id: str | None = None) -> None:
        self._wait(self._queue.cancel(job_id, request_id=request_id))

    def retry(self, job_id: str, *, request_id: str | None = None) -> None:
        self._wait(self._queue.retry(job_id, request_id=request_id))

    def requeue_stale(
        self,
        older: float | timedelta,
        *,
        entrypoint: str | None = None,
        zone: str | None = None,
        request_id: str | None = None,
    ) -> int:
        """As `Queue.requeue_stale`."""
        asked = self._queue.requeue_stale(older, entrypoint=entrypoint, zone=zone, request_id=request_id)
        return self._wait(asked)

    def purge(self, entrypoint: str | None = None, *, zone: str | None = None, request_id: str | None = None) -> int:
        return self._wait(self._queue.purge(entrypoint, zone=zone, request_id=request_id))

    def set_schedule(
        self,
        name: str,
        expression: str,
        job: tuple[str, T] | NewJob[T],
        *,
        tz: str = "UTC",
        missed: Missed | str = Missed.ONE,
        origin: str | None = None,
    ) -> Schedule:
        """As `Queue.set_schedule`."""
        return self._wait(self._queue.set_schedule(name, expression, job, tz=tz, missed=missed, origin=origin))

    def schedules(self) -> list[Schedule]:
        return self._wait(self._queue.schedules())

    def pause_schedule(self, name: str) -> Schedule:
        return self._wait(self._queue.pause_schedule(name))

    def resume_schedule(self, name: str) -> Schedule:
        return self._wait(self._queue.resume_schedule(name))

    def drop_schedule(self, name: str) -> None:
        self._wait(self._queue.drop_schedule(name))

    def trigger_schedule(self, name: str) -> SyncJob[T]:
        """As `Queue.trigger_schedule`."""
        return self._job(self._wait(self._queue.trigger_schedule(name)))

    def set_zone(
        self,
        zone: str,
        *,
        weight: float | None = None,
        running_max: int | EllipsisType | None = ...,
        per_second: float | EllipsisType | None = ...,
        paused: bool | None = None,
        request_id: str | None = None,
    ) -> ZoneRules:
        """As `Queue.set_zone`."""
        return self._wait(
            self._queue.set_zone(
                zone,
                weight=weight,
                running_max=running_max,
                per_second=per_second,
                paused=paused,
                request_id=request_id,
            )
        )

    def zones(self, zone: str | Sequence[str] | None = None, *, limit: int = 100) -> list[ZoneStanding]:
        """As `Queue.zones`."""
        return self._wait(self._queue.zones(zone, limit=limit))

    def peek_zones(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        zone: str | Sequence[str] | None = None,
        limit: int = 100,
    ) -> list[PeekedZone]:
        """As `Queue.peek_zones`."""
        return self._wait(self._queue.peek_zones(entrypoint, zone=zone, limit=limit))

    def lease_zone(
        self, zone: str, *, lease: float | timedelta | None = None, request_id: str | None = None
    ) -> ZoneLease | None:
        """As `Queue.lease_zone`."""
        return self._wait(self._queue.lease_zone(zone, lease=lease, request_id=request_id))

    def heartbeat_zone(self, lease: ZoneLease) -> ZoneLease:
        return self._wait(self._queue.heartbeat_zone(lease))

    def release_zone(self, lease: ZoneLease) -> None:
        self._wait(self._queue.release_zone(lease))

    def pause(self, entrypoint: str | None = None, *, request_id: str | None = None) -> None:
        self._wait(self._queue.pause(entrypoint, request_id=request_id))

    def drain(self, entrypoint: str | None = None, *, request_id: str | None = None) -> None:
        self._wait(self._queue.drain(entrypoint, request_id=request_id))

    def resume(self, entrypoint: str | None = None, *, request_id: str | None = None) -> None:
        self._wait(self._queue.resume(entrypoint, request_id=request_id))

    def find(self, job_id: str) -> SyncJob[T] | None:
        job = self._wait(self._queue.find(job_id))
        return None if job is None else self._job(job)

    def jobs(
        self,
        *,
        states: Iterable[JobState] | None = None,
        entrypoint: str | None = None,
        limit: int | None = None,
        after: int = 0,
    ) -> list[SyncJob[T]]:
        found = self._wait(self._queue.jobs(states=states, entrypoint=entrypoint, limit=limit, after=after))
        return [self._job(job) for job in found]

    def stats(self) -> Stats:
        return self._wait(self._queue.stats())

    def events(
        self, *, from_position: int | Mapping[int, int] | None = None, follow: bool = True
    ) -> Iterator[QueueEvent]:
        """As `Queue.events`: a loop over it waits for what happens next, for ever unless `follow=False`."""
        return self._each(self._queue.events(from_position=from_position, follow=follow))

    def archive(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        entrypoint: str | None = None,
        states: Iterable[JobState] | None = None,
    ) -> Iterator[ArchivedJob]:
        """As `Queue.archive`."""
        return self._each(self._queue.archive(since=since, until=until, entrypoint=entrypoint, states=states))

    def _each(self, items: AsyncGenerator[R]) -> Iterator[R]:
        try:
            while (found := self._wait(_next(items))) is not None:
                yield found[0]
        finally:
            if self._loop is not None:
                self._wait(items.aclose())

    def _job(self, job: Job[T]) -> SyncJob[T]:
        return SyncJob(job, self)

    def _wait(self, call: Coroutine[Any, Any, R]) -> R:
        with self._guard:
            if self._loop is None:
                call.close()
                raise QueueClosedError("use the queue inside `with SyncQueue.open(...) as q:`")
            future = self._loop.begin(call)
        return result_of(future)

    def _end_loop(self) -> None:
        with self._guard:  # from here on nobody can hand in a call that the loop would never run
            loop, self._loop = self._loop, None
        assert loop is not None
        loop.end()


async def _next(items: AsyncIterator[R]) -> tuple[R] | None:
    async for item in items:
        return (item,)
    return None


class SyncJob(Generic[T]):
    """A job with blocking verbs; everything else is as on `Job`, reachable as `job`."""

    __slots__ = ("_queue", "job")

    def __init__(self, job: Job[T], queue: SyncQueue[T]) -> None:
        self.job = job
        self._queue = queue

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def entrypoint(self) -> str:
        return self.job.entrypoint

    @property
    def payload(self) -> T:
        return self.job.payload

    @property
    def attempts(self) -> int:
        return self.job.attempts

    @property
    def state(self) -> JobState:
        return self.job.state

    @property
    def priority(self) -> int:
        return self.job.priority

    @property
    def token(self) -> int:
        return self.job.token

    @property
    def last_error(self) -> str | None:
        return self.job.last_error

    @property
    def tries(self) -> tuple[Attempt, ...]:
        return self.job.tries

    def ack(self, *, result: bytes | None = None) -> None:
        self._queue.ack(self.id, self.job.token, result=result)

    def nack(self, *, delay: float | timedelta | None = None, error: BaseException | str | None = None) -> None:
        self._queue.nack(self.id, self.job.token, delay=delay, error=error)

    def heartbeat(self) -> None:
        self._queue.heartbeat(self.id, self.job.token)

    def __repr__(self) -> str:
        return f"Sync{self.job!r}"
