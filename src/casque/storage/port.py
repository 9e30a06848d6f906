"""The port: five verbs on keys and bytes, and the three ways a conditional write can end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec


class Stored(msgspec.Struct, frozen=True, gc=False):
    """An object's content and the token of this very version of it."""

    body: bytes
    etag: str


class Missing(msgspec.Struct, frozen=True):
    """There is no object at this key."""


class Unchanged(msgspec.Struct, frozen=True):
    """The object still is the version that the caller named."""


class Won(msgspec.Struct, frozen=True):
    """The write landed; `etag` is the version it made."""

    etag: str


class Lost(msgspec.Struct, frozen=True):
    """The condition did not hold at the moment the store looked. Usually somebody else was first.

    After an earlier attempt with an unknown outcome it may have been one's own write: read back and compare.
    """


class Unknown(msgspec.Struct, frozen=True):
    """The store did not say. The write may have landed, may not have, or may land later."""

    cause: BaseException


Read: TypeAlias = Stored | Missing | Unchanged
Outcome: TypeAlias = Won | Lost | Unknown

MISSING = Missing()
UNCHANGED = Unchanged()
LOST = Lost()


@runtime_checkable
class Store(Protocol):
    """Objects by key. Keys are `/`-separated, without a leading slash and without `.` or `..` segments.

    There is no plain put: every write names the state it expects. Each write is one attempt; the caller
    decides whether to repeat it. Every body written to one key must be unique (carry a nonce), because some
    stores derive their version tokens from the content alone.
    """

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        """Read an object; `Unchanged` without a body if its version is still `unless`.

        Raises:
            StorageError: the store could not answer now. Try again later.
            StoreAccessError: it refused. Trying again will not help.
        """
        ...

    async def create(self, key: str, body: bytes) -> Outcome:
        """Write a new object only if there is none at this key.

        Raises:
            StorageError: it failed, and surely nothing was written (a full disk, say). Try again later.
            StoreAccessError: refused before anything was written.
        """
        ...

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        """Write a new version only if the current one is `expected`. A missing object is a lost race.

        Raises:
            StorageError: it failed, and surely nothing was written (a full disk, say). Try again later.
            StoreAccessError: refused before anything was written.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove an object; it is no error if there is none."""
        ...

    def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        """Keys that start with `prefix`, in order, only those after `after`. Never decide on a listing."""
        ...

    async def close(self) -> None: ...


UNMARKED = ""


async def place_of(store: Store, *, make: bool = False) -> str | None:
    """What tells this place from every copy of it: the same for all who open it, and another one for a copy.

    `make`: give the place a mark if it needs one and has none, or has one that was copied from elsewhere; without it
    such a place is `UNMARKED`. None if the store cannot tell.
    """
    marked = getattr(store, "place", None)
    return None if marked is None else await marked(make=make)


def locate(store: Store, key: str) -> str:
    """Where an object is, for people: its path or URL if the store can say so, else its key."""
    named = getattr(store, "locate", None)
    return key if named is None else str(named(key))


@runtime_checkable
class Watched(Protocol):
    """What some stores can do besides: tell of new objects as they appear, so that nobody has to ask all the time."""

    def watch(self, folder: str, appeared: Callable[[str], None]) -> Callable[[], None] | None:
        """Call `appeared` with the keys of new objects directly below `folder`, on the running event loop, until what
        comes back is called. None if that cannot be done now. Nothing may be concluded from silence."""
        ...
