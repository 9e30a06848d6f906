"""An enqueued job, as whoever enqueued it sees it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from casque.errors import JobFailedError, NoResultError
from casque.types import JobState, Progress

T = TypeVar("T")
R = TypeVar("R")


class Outcome(msgspec.Struct, frozen=True):
    """How a job ended."""

    state: JobState
    result: bytes | None = None
    error: str | None = None
    age_ms: int = 0
    """How long ago that was, by the clock of whoever asks; 0 if it was waited for."""


class Connection(Protocol):
    """What a handle needs of the queue: one that is open, or what stands for it in a test."""

    async def status(self, handle: Handle[Any]) -> JobState | None: ...

    async def progress(self, handle: Handle[Any]) -> Progress | None: ...

    async def cancel(self, handle: Handle[Any]) -> None: ...

    async def outcome(self, handle: Handle[Any], timeout: float | None) -> Outcome: ...

    def wait(self, call: Coroutine[Any, Any, R]) -> R:
        """Carry out a call for a caller that blocks."""
        ...


class Handle(msgspec.Struct, Generic[T], eq=False, gc=False):
    """One job. It can be made again from its id with `function.handle(job_id)`."""

    # A struct that the garbage collector leaves alone: a bulk gives one for each of its jobs. Apps make them.
    _connection: Callable[[], Connection]
    entrypoint: str
    id: str
    _decode: Callable[[bytes], T]
    since: datetime | None = None
    """When it was enqueued, if that is known: how far back the archive is searched."""
    _ttl_ms: int | None = None

    async def status(self) -> JobState | None:
        """Where the job stands. None for a moment after it has finished, until the archive has it, and for a job
        that never was."""
        return await self._connection().status(self)

    async def progress(self) -> Progress | None:
        """How far the attempt that is under way has come, as its function said with `context.progress(...)`. The queue
        is told every few seconds. None if it does not say, and when nobody is at it."""
        return await self._connection().progress(self)

    async def cancel(self) -> None:
        """Take it out of the queue. If it is running, its worker learns of it with its next heartbeat.

        Raises:
            JobNotFoundError: it has finished.
            JobStateError: it is dead.
        """
        await self._connection().cancel(self)

    async def result(self, timeout: float | None = None) -> T:
        """What the function returned, once it has.

        Raises:
            JobFailedError: the job is dead, or was cancelled.
            NoResultError: it cannot be had, however long one waits: the job is unknown, results are not kept, or this
                one has expired, because its function has a `result_ttl`.
            TimeoutError: it had not finished after so many seconds. It goes on.
        """
        outcome = await self._connection().outcome(self, timeout)
        if outcome.state is not JobState.DONE:
            raise JobFailedError(self.id, outcome.state.value, outcome.error)
        if self._ttl_ms == 0:
            raise NoResultError(self.id, f"{self.entrypoint} has result_ttl=0, so that its results are not kept")
        if self._ttl_ms is not None and outcome.age_ms > self._ttl_ms:
            raise NoResultError(
                self.id,
                f"it has expired: {self.entrypoint} has a result_ttl of {self._ttl_ms / 1000:,g} s, and was done "
                f"{outcome.age_ms / 1000:,.0f} s ago",
            )
        return self._decode(b"null" if outcome.result is None else outcome.result)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.entrypoint!r}, {self.id!r})"


class SyncHandle(Generic[T]):
    """A `Handle` whose calls block: what `enqueue_sync` returns."""

    def __init__(self, handle: Handle[T], wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.handle = handle
        self._wait = wait

    @property
    def id(self) -> str:
        return self.handle.id

    @property
    def entrypoint(self) -> str:
        return self.handle.entrypoint

    def status(self) -> JobState | None:
        """As `Handle.status`."""
        state: JobState | None = self._wait(self.handle.status())
        return state

    def progress(self) -> Progress | None:
        """As `Handle.progress`."""
        progress: Progress | None = self._wait(self.handle.progress())
        return progress

    def cancel(self) -> None:
        """As `Handle.cancel`."""
        self._wait(self.handle.cancel())

    def result(self, timeout: float | None = None) -> T:
        """As `Handle.result`."""
        found: T = self._wait(self.handle.result(timeout))
        return found

    def __repr__(self) -> str:
        return f"Sync{self.handle!r}"
