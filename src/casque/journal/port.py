"""The port between the engine and a layout."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import msgspec

from casque.codec.head import Head, Owner
from casque.state import Event, State


class Landed(msgspec.Struct, frozen=True):
    """The commit is part of history. `state` is newer than the caller's if others committed after it."""

    state: State


class Refreshed(msgspec.Struct, frozen=True):
    """A state that includes others' commits: the same object with their events applied, or another one."""

    state: State
    events: list[Event] = []
    certain: bool = True
    """False if it is only good enough to decide a write on, which then proves it right by winning."""


class Conflict(msgspec.Struct, frozen=True):
    """The slot is taken and the batch undone: refresh, and decide again unless the state then shows this very batch.

    It does if a retry inside a client library turned our own success into a lost race. `refreshed` is set if finding
    out required reading on already.
    """

    refreshed: Refreshed | None = None


Appended: TypeAlias = Landed | Conflict
Work: TypeAlias = Callable[[], Awaitable[None]]
"""Deferred work. Unlike a coroutine, which has to be awaited, it may be dropped before it starts."""


class Batch(msgspec.Struct, frozen=True):
    """Identifies a commit: its writer, and the number of the writer's batch."""

    writer: str
    number: int
    at_ms: int
    forgets: str | None = None
    """The last request id that this commit forgets."""


class Sighting(msgspec.Struct, frozen=True):
    """The observable state of a leadership. As long as it changes, the leader is alive."""

    epoch: int = 0
    version: int = 0
    position: int = 0
    owner: Owner | None = None
    """None if there is no leader."""


class Journal(Protocol):
    """One queue's history on a store, loaded. Not for concurrent use: the engine has one operation in flight."""

    @property
    def whole(self) -> bool:
        """True if a commit writes the whole queue, so that a writer that lost a race must read it all again."""
        ...

    async def refresh(self, state: State) -> Refreshed:
        """Read others' commits."""
        ...

    def hesitation_s(self) -> float:
        """How long to wait before deciding the next batch, to be fair to other writers; 0 for no wait."""
        ...

    @property
    def takes_hold(self) -> bool:
        """True if this writer has been alone for long enough to take the queue for itself with `hold`."""
        ...

    async def hold(self, state: State, batch: Batch) -> Refreshed:
        """Take the queue, between two commits; returns the state to decide the next batch on, whether it worked or not.
        Done before a large batch is decided, which would otherwise have to be decided again.

        Raises:
            StorageError, UnknownOutcomeError: the store failed. The caller must open it again.
        """
        ...

    async def append(self, state: State, batch: Batch) -> Appended:
        """Make the state's pending events durable. On `Landed` they are committed in the returned state.

        Raises:
            UnknownOutcomeError: the store failed for too long, and the outcome is unknown. The caller must
                open it again.
            StorageError: it failed for too long, and certainly nothing was written.
        """
        ...

    def maintenance(self, state: State, writer: str) -> Work | None:
        """Work that can run alongside later commits, if any is due. Called on a committed state."""
        ...

    # --- Leading: the part of brokers ---

    @property
    def sole(self) -> bool:
        """True if the state in memory is the latest: that of a leader whose leadership
        was confirmed recently enough."""
        ...

    def sighting(self, state: State) -> Sighting:
        """What the last read showed."""
        ...

    async def lead(
        self, state: State, owner: Owner, batch: Batch, *, lease_ms: int, seen: Sighting | None
    ) -> Refreshed | None:
        """Take the lead, unless the queue looks different from what was `seen`. None if another process was faster.

        Raises:
            StorageError: the store failed. Who leads is as open as before.
        """
        ...

    async def beat(self, state: State, batch: Batch) -> Refreshed:
        """Renew the leadership when there is nothing to commit.

        Raises:
            LeadershipLostError: another process leads.
            StorageError: the renewal was not written.
        """
        ...

    async def resign(self, state: State, batch: Batch) -> None:
        """Give up the lead. Nothing may be appended afterwards."""
        ...

    def due_ms(self) -> int | None:
        """When, on the monotonic clock, maintenance is due even if nothing else happens. None: never."""
        ...

    def hurry(self, hurried: bool) -> None:
        """The queue is about to be closed: work that would be due some time is due now. False takes that back."""
        ...

    def wants_a_commit(self, state: State) -> bool:
        """True if a commit is worth making although there are no events."""
        ...

    def listen(self, heard: Callable[[int], None]) -> Callable[[], None] | None:
        """Call `heard` with the positions of commits as they appear, our own included, until the returned function is
        called. None if the store cannot notify: then callers have to poll."""
        ...

    def undo(self, state: State) -> None:
        """The pending events of `state` did not land: roll them back."""
        ...


class Opened(msgspec.Struct, frozen=True):
    """A journal that was just opened."""

    journal: Journal
    state: State
    head: Head | None = None
    """None if the queue does not exist yet."""


Opener: TypeAlias = Callable[[Head | None], Awaitable[Opened]]
"""Opens a journal, for the first time or again: then with the head of the queue that was open until now."""
