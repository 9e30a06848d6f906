"""An enqueued job, from the caller's point of view."""

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
    """Time since the end, by the clock of this process; 0 if the end was waited for."""


class Connection(Protocol):
    """The queue as a handle needs it: an open one, or a stand-in in tests."""

    async def status(self, handle: Handle[Any]) -> JobState | None: ...

    async def progress(self, handle: Handle[Any]) -> Progress | None: ...

    async def cancel(self, handle: Handle[Any]) -> None: ...

    async def outcome(self, handle: Handle[Any], timeout: float | None) -> Outcome: ...

    def wait(self, call: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine for a caller that blocks."""
        ...


class Handle(msgspec.Struct, Generic[T], eq=False, gc=False):
    """One job. `function.handle(job_id)` makes a handle from an id."""

    # A struct without garbage collection: a bulk enqueue makes one for each job. Only apps make them.
    _connection: Callable[[], Connection]
    entrypoint: str
    id: str
    _decode: Callable[[bytes], T]
    since: datetime | None = None
    """When it was enqueued, if known: the archive is not searched further back."""
    _ttl_ms: int | None = None

    async def status(self) -> JobState | None:
        """The state of the job. None for a moment after it has finished, until it is in the archive, and for an unknown
        job."""
        return await self._connection().status(self)

    async def progress(self) -> Progress | None:
        """Progress of the running attempt, as its function reported with `context.progress(...)`; up to a few seconds
        old. None if the function reports none, and while the job is not running."""
        return await self._connection().progress(self)

    async def cancel(self) -> None:
        """Remove the job from the queue. If it is running, its worker notices with its next heartbeat.

        Raises:
            JobNotFoundError: the job has finished.
            JobStateError: the job is dead.
        """
        await self._connection().cancel(self)

    async def result(self, timeout: float | None = None) -> T:
        """Wait for the job to finish and return its result.

        Raises:
            JobFailedError: the job is dead, or was cancelled.
            NoResultError: there is no result, and waiting longer does not help: the job is unknown, results are not
                kept,
                or the result has expired because its function has a `result_ttl`.
            TimeoutError: the job was unfinished after `timeout` seconds. It continues.
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
    """A `Handle` whose calls block, as returned by `enqueue_sync`."""

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
