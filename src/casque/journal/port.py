"""The port between the engine and a layout."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import msgspec

from casque.state import State


class Landed(msgspec.Struct, frozen=True):
    """The commit is part of history. `state` is newer than the caller's if others committed after it."""

    state: State


class Conflict(msgspec.Struct, frozen=True):
    """Somebody else was first; the commit is not in history and never will be. Refresh, and decide again.

    `state` takes the place of the caller's if finding that out meant reading a newer one.
    """

    state: State | None = None


Appended: TypeAlias = Landed | Conflict


class Batch(msgspec.Struct, frozen=True):
    """What identifies a commit wherever it is met again: who made it, and which of theirs it is."""

    writer: str
    number: int
    at_ms: int


class Journal(Protocol):
    """One queue's history on a store. Not for concurrent use: the engine has one operation in flight."""

    async def load(self) -> State:
        """The state as of now, read in full.

        Raises:
            StorageError: the store did not answer.
            CorruptQueueError: what it holds is not this queue.
        """
        ...

    async def refresh(self, state: State) -> State:
        """The state including what others have committed; the same object if they have not."""
        ...

    async def append(self, state: State, batch: Batch) -> Appended:
        """Make the state's pending events durable. On `Landed` they are committed in the state that comes back.

        Raises:
            UnknownOutcomeError: the store failed for so long that nobody knows. The caller must `load` next.
            StorageError: it failed for so long, and surely nothing was written.
        """
        ...

    def undo(self, state: State) -> None:
        """The pending events of `state` did not land: roll them back."""
        ...
