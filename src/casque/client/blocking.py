"""Turns an async queue into a blocking one, with an event loop in its own thread.

Calls from any number of threads are batched into common commits.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from datetime import timedelta
from typing import Any, Generic, Protocol, Self, TypeVar

from casque.client.forks import Origin
from casque.client.job import Job
from casque.client.loop_thread import LoopThread, result_of
from casque.client.queue import Queue
from casque.errors import QueueClosedError
from casque.types import Attempt, JobState

T = TypeVar("T")
R = TypeVar("R")


class Blocking(Generic[T]):
    """Runs the calls of a `Queue` and waits for their results."""

    def __init__(self, queue: Queue[T]) -> None:
        self._queue = queue
        self._loop: LoopThread | None = None
        self._origin = Origin()
        self._guard = threading.Lock()

    def __enter__(self) -> Self:
        self._origin = Origin()
        self._loop = LoopThread("casque")
        try:
            self._wait(self._queue.__aenter__())
        except BaseException:
            self._end_loop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._origin.is_elsewhere():
            return  # what is under way is the parent's
        try:
            self._wait(self._queue.__aexit__(*error))
        finally:
            self._end_loop()

    def _each(self, items: AsyncGenerator[R]) -> Iterator[R]:
        try:
            while (found := self._wait(_next(items))) is not None:
                yield found[0]
        finally:
            if self._loop is not None:
                self._wait(items.aclose())

    def _wait(self, call: Coroutine[Any, Any, R]) -> R:
        if self._origin.is_elsewhere():
            self._guard = threading.Lock()  # another thread of the parent may have held it
        with self._guard:
            if self._loop is None:
                call.close()
                raise QueueClosedError("use the queue inside `with SyncQueue.open(...) as q:`")
            future = self._loop.begin(call)
        return result_of(future)

    def _end_loop(self) -> None:
        with self._guard:  # from here on no call can be submitted that the loop would never run
            loop, self._loop = self._loop, None
        assert loop is not None
        loop.end()


async def _next(items: AsyncIterator[R]) -> tuple[R] | None:
    async for item in items:
        return (item,)
    return None


class _Settler(Protocol):
    """The queue's verbs that a job offers, too."""

    def ack(self, job_id: str, token: int | None = None, *, result: bytes | None = None) -> None: ...

    def nack(
        self,
        job_id: str,
        token: int | None = None,
        *,
        delay: float | timedelta | None = None,
        error: BaseException | str | None = None,
    ) -> None: ...

    def heartbeat(self, job_id: str, token: int | None = None) -> None: ...


class SyncJob(Generic[T]):
    """A job with blocking verbs; everything else is as on `Job`, available as `job`."""

    __slots__ = ("_queue", "job")

    def __init__(self, job: Job[T], queue: _Settler) -> None:
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
