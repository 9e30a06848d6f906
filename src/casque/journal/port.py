"""The port between the engine and a layout."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import msgspec

from casque.codec.head import Owner
from casque.state import Event, State


class Landed(msgspec.Struct, frozen=True):
    """The commit is part of history. `state` is newer than the caller's if others committed after it."""

    state: State


class Refreshed(msgspec.Struct, frozen=True):
    """A state that includes what others have committed: the same object with their events applied, or another one."""

    state: State
    events: list[Event] = []
    certain: bool = True
    """False if it is good enough to decide a write on, which then proves it right by winning, and for nothing else."""


class Conflict(msgspec.Struct, frozen=True):
    """The slot is taken and the batch undone: refresh, and decide again unless the state then shows this very batch.

    It does after a retry that nobody asked for, inside a client library, turned one's own success into a lost race.
    `refreshed` is there if finding out meant reading on already.
    """

    refreshed: Refreshed | None = None


Appended: TypeAlias = Landed | Conflict
Work: TypeAlias = Callable[[], Awaitable[None]]
"""Something to do. It may be dropped before it is begun, unlike a coroutine, which has to be awaited."""


class Batch(msgspec.Struct, frozen=True):
    """What identifies a commit wherever it is met again: who made it, and which of theirs it is."""

    writer: str
    number: int
    at_ms: int
    forgets: str | None = None
    """The last request id that is forgotten with it."""


class Sighting(msgspec.Struct, frozen=True):
    """What can be seen of whoever leads. As long as it changes, the leader lives."""

    epoch: int = 0
    version: int = 0
    position: int = 0
    owner: Owner | None = None
    """None if nobody leads."""


class Journal(Protocol):
    """One queue's history on a store. Not for concurrent use: the engine has one operation in flight."""

    @property
    def whole(self) -> bool:
        """Whether a commit writes the whole queue, so that a writer who lost a race must read it all again."""
        ...

    async def load(self) -> State:
        """The state as of now, read in full.

        Raises:
            StorageError: the store did not answer.
            CorruptQueueError: what it holds is not this queue.
        """
        ...

    async def refresh(self, state: State) -> Refreshed:
        """Take in what others have committed."""
        ...

    def hesitation_s(self) -> float:
        """How long courtesy to other writers asks to wait before the next batch is decided; 0 for not at all."""
        ...

    @property
    def takes_hold(self) -> bool:
        """Whether this writer has been alone for so long that it should take the queue for itself with `hold`."""
        ...

    async def hold(self, state: State, batch: Batch) -> Refreshed:
        """Do that, between two commits: what comes back is the state to decide the next batch on, whether it worked or
        not. Before a large batch is decided, and not after it, when it would have to be decided again.

        Raises:
            StorageError, UnknownOutcomeError: the store failed. The caller must `load` next.
        """
        ...

    async def append(self, state: State, batch: Batch) -> Appended:
        """Make the state's pending events durable. On `Landed` they are committed in the state that comes back.

        Raises:
            UnknownOutcomeError: the store failed for so long that nobody knows. The caller must `load` next.
            StorageError: it failed for so long, and surely nothing was written.
        """
        ...

    def maintenance(self, state: State, writer: str) -> Work | None:
        """Work that may go on beside later commits, if any is due. Called on a committed state."""
        ...

    # --- Leading: the part of brokers ---

    @property
    def sole(self) -> bool:
        """Whether the state in memory is the latest there is: that of a leader who knows that it was one just now."""
        ...

    def sighting(self, state: State) -> Sighting:
        """What the last read showed."""
        ...

    async def lead(
        self, state: State, owner: Owner, batch: Batch, *, lease_ms: int, seen: Sighting | None
    ) -> Refreshed | None:
        """Take the lead, unless the queue looks different from what was `seen`. None if somebody else was faster.

        Raises:
            StorageError: the store failed. Who leads is as open as before.
        """
        ...

    async def beat(self, state: State, batch: Batch) -> Refreshed:
        """Show that the leader lives although there is nothing to commit.

        Raises:
            LeadershipLostError: somebody else leads.
            StorageError: nobody was shown anything.
        """
        ...

    async def resign(self, state: State, batch: Batch) -> None:
        """Leave the lead to whoever wants it. Nothing may be appended afterwards."""
        ...

    def due_ms(self) -> int | None:
        """When, on the monotonic clock, maintenance would be welcome also if nothing else happens. None: never."""
        ...

    def hurry(self, hurried: bool) -> None:
        """The queue is about to be closed: what would be due some time is due now. Or it was, and is not any more."""
        ...

    def wants_a_commit(self, state: State) -> bool:
        """Whether a commit is worth making although there are no events."""
        ...

    def listen(self, heard: Callable[[int], None]) -> Callable[[], None] | None:
        """Be told the positions of commits as they appear, one's own included, until what comes back is called. None
        if the store cannot tell: then whoever waits has to look."""
        ...

    def undo(self, state: State) -> None:
        """The pending events of `state` did not land: roll them back."""
        ...
