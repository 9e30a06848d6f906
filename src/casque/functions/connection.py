"""Connects an app to its open queue: calls come from any thread and any event loop, but the queue has only one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

import msgspec

from casque import checks
from casque.client.forks import Origin
from casque.client.loop_thread import result_of
from casque.client.new_jobs import NewJob
from casque.client.queue import Queue
from casque.clock import Clock, SystemClock
from casque.errors import HistoryGoneError, InvalidInputError, NoHistoryError, NoResultError, QueueClosedError
from casque.functions.handle import Connection, Handle, Outcome
from casque.functions.job import JobCall
from casque.service import ArchivedJob, EventKind
from casque.settings import QueueSettings
from casque.telemetry.tracing import enqueueing, tracer
from casque.types import JobState, Progress

R = TypeVar("R")

CLOCKS_APART = timedelta(hours=1)
"""Clock difference between the machines that enqueue and finish a job up to which its result is still found."""
ARCHIVED_AFTER = 3
"""After this many times `archive_interval`, a job that is not in the archive will not appear there."""
Enqueued = tuple[str, datetime | None]
"""The id of a job, and when it was created."""


class Outlet(Connection, Protocol):
    """Destination of an app's jobs."""

    async def enqueue(self, calls: Sequence[JobCall[Any]], *, request_id: str | None = None) -> list[Enqueued]: ...


class Open:
    """An open queue."""

    def __init__(self, queue: Queue[bytes], settings: QueueSettings, clock: Clock | None = None) -> None:
        self._queue = queue
        self._clock: Clock = clock or SystemClock()
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._origin = Origin()

    async def enqueue(self, calls: Sequence[JobCall[Any]], *, request_id: str | None = None) -> list[Enqueued]:
        if tracer() is None and self._is_here():
            jobs = await self._queue.enqueue_many([call.new for call in calls], request_id=request_id)
        else:
            with enqueueing(frozenset({call.entrypoint for call in calls}), len(calls)) as trace:
                new = [_traced(call.new, trace) for call in calls] if trace else [call.new for call in calls]
                jobs = await self._there(self._queue.enqueue_many(new, request_id=request_id))
        return [(job.id, job.created_at) for job in jobs]

    async def status(self, handle: Handle[Any]) -> JobState | None:
        job = await self._there(self._queue.find(handle.id))
        if job is not None:
            return job.state
        archived = await self._there(self._archived(handle))
        return None if archived is None else archived.state

    async def progress(self, handle: Handle[Any]) -> Progress | None:
        job = await self._there(self._queue.find(handle.id))
        return None if job is None else job.progress

    async def cancel(self, handle: Handle[Any]) -> None:
        await self._there(self._queue.cancel(handle.id))

    async def outcome(self, handle: Handle[Any], timeout: float | None) -> Outcome:
        seconds = None if timeout is None else checks.span_ms("timeout", timeout) / 1000
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await self._there(self._outcome(handle))
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimeoutError(
                f"job {handle.id!r} of {handle.entrypoint} was unfinished after {seconds:g} s; it continues. "
                "`casque jobs show` says why it waits: is a worker running?"
            ) from error

    def wait(self, call: Coroutine[Any, Any, R]) -> R:
        if _running_loop() is self._loop:
            call.close()
            raise InvalidInputError("this would block the event loop that it waits for: `await` the call without _sync")
        return result_of(self._begin(call))

    # --- Inside ---

    async def _there(self, call: Coroutine[Any, Any, R]) -> R:
        if self._is_here():
            return await call
        return await asyncio.wrap_future(self._begin(call))

    def _begin(self, call: Coroutine[Any, Any, R]) -> Future[R]:
        if self._origin.is_elsewhere():
            call.close()
            self._origin.check()
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def _is_here(self) -> bool:
        # A thread runs one loop at a time. Asking which one is a system call on some versions of Python.
        return threading.get_ident() == self._thread and self._loop.is_running()

    async def _outcome(self, handle: Handle[Any]) -> Outcome:
        while True:
            # Read the position first: events then cover everything that happens after `find`.
            position = (await self._queue.stats()).position
            job = await self._queue.find(handle.id)
            if job is not None and job.state is JobState.DEAD:
                return Outcome(JobState.DEAD, error=job.last_error)
            if job is None:
                return await self._from_archive(handle)
            try:
                return await self._from_events(handle, position)
            except HistoryGoneError:
                continue  # it fell behind: start again
            except NoHistoryError:
                if not self._queue.archives:
                    why = "this queue has the document layout and keeps no archive, so that results are kept nowhere"
                    raise NoResultError(handle.id, why) from None
                return await self._from_looks(handle)

    async def _from_events(self, handle: Handle[Any], position: int) -> Outcome:
        async with aclosing(self._queue.events(from_position=position)) as events:
            async for event in events:
                if event.job_id != handle.id:
                    continue
                match event.kind:
                    case EventKind.ACKED:
                        return Outcome(JobState.DONE, result=event.fields.get("result"))
                    case EventKind.CANCELLED | EventKind.WITHDRAWN | EventKind.LAPSED:
                        return Outcome(JobState.CANCELLED, error=event.fields.get("error"))
                    case EventKind.DIED | EventKind.QUARANTINED:
                        return Outcome(JobState.DEAD, error=event.fields.get("error"))
        raise QueueClosedError("the queue was closed while a result was waited for")

    async def _from_archive(self, handle: Handle[Any]) -> Outcome:
        """For a job that has left the queue: the archive has it within `archive_interval`, or never."""
        pause_s = self._settings.poll_min.total_seconds()
        limit_s = ARCHIVED_AFTER * self._settings.archive_interval.total_seconds()
        until_ms = self._clock.monotonic_ms() + limit_s * 1000
        while (archived := await self._archived(handle)) is None:
            if not self._queue.archives:
                raise NoResultError(handle.id, "it is not in the queue, and this queue keeps no archive")
            if self._clock.monotonic_ms() >= until_ms:
                raise NoResultError(
                    handle.id,
                    f"it is not in the queue, and did not appear in the archive within {limit_s:g} s. It was never "
                    "enqueued here, its line was deleted (archive_retention), or it was finished by a process that "
                    "does not archive",
                )
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, self._settings.poll_max.total_seconds())
        # Two clocks, if another machine finished the job. That is good enough: only `result_ttl` depends on this age.
        age = self._clock.wall_ms() - checks.moment_ms("finished_at", archived.finished_at)
        return Outcome(archived.state, archived.result, archived.error, max(0, age))

    async def _from_looks(self, handle: Handle[Any]) -> Outcome:
        """Polls a queue that has no history."""
        pause_s = self._settings.poll_min.total_seconds()
        while (job := await self._queue.find(handle.id)) is not None:
            if job.state is JobState.DEAD:
                return Outcome(JobState.DEAD, error=job.last_error)
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, self._settings.poll_max.total_seconds())
        return await self._from_archive(handle)

    async def _archived(self, handle: Handle[Any]) -> ArchivedJob | None:
        since = None if handle.since is None else handle.since - CLOCKS_APART
        found: ArchivedJob | None = None
        async with aclosing(self._queue.archive(since=since, entrypoint=handle.entrypoint)) as jobs:
            async for job in jobs:
                if job.id == handle.id:
                    found = job  # and continue: a dead job that got new attempts ends again
        return found


def _traced(new: NewJob[bytes], trace: Mapping[str, str]) -> NewJob[bytes]:
    """A trace that the caller set wins."""
    return msgspec.structs.replace(new, headers={**trace, **(new.headers or {})})


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
