"""The storage port: five verbs on keys and bytes, and the three outcomes of a conditional write."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from casque.errors import StorageError


class Stored(msgspec.Struct, frozen=True, gc=False):
    """An object's content and the token of this version."""

    body: bytes
    etag: str


class Missing(msgspec.Struct, frozen=True):
    """There is no object at this key."""


class Unchanged(msgspec.Struct, frozen=True):
    """The object still has the version that the caller named."""


class Won(msgspec.Struct, frozen=True):
    """The write landed; `etag` is the version that it made."""

    etag: str


class Lost(msgspec.Struct, frozen=True):
    """The condition did not hold when the store checked it. Usually another writer was first.

    After an earlier attempt with an unknown outcome the winner may be that attempt: read back and compare.
    """


class Unknown(msgspec.Struct, frozen=True):
    """The store gave no answer. The write may have landed, may not have, or may land later."""

    cause: BaseException


Read: TypeAlias = Stored | Missing | Unchanged
Outcome: TypeAlias = Won | Lost | Unknown

MISSING = Missing()
UNCHANGED = Unchanged()
LOST = Lost()


@runtime_checkable
class Store(Protocol):
    """Objects by key. Keys are `/`-separated, without a leading slash and without `.` or `..` segments.

    There is no plain put: every write names the state that it expects. Each write is one attempt; the caller decides
    whether to repeat it. Every body written to one key must be unique (carry a nonce), because some stores derive
    version tokens from the content alone.
    """

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        """Read an object; `Unchanged` without a body if its version is still `unless`.

        Raises:
            StorageError: the store could not answer now. Try again later.
            StoreAccessError: access denied. A retry does not help.
        """
        ...

    async def create(self, key: str, body: bytes) -> Outcome:
        """Write a new object only if there is none at this key.

        Raises:
            StorageError: the write failed and surely left nothing (a full disk, say). Try again later.
            StoreAccessError: access denied. Nothing was written.
        """
        ...

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        """Write a new version only if the current one is `expected`. A missing object is a lost race.

        Raises:
            StorageError: the write failed and surely left nothing (a full disk, say). Try again later.
            StoreAccessError: access denied. Nothing was written.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove an object. A missing one is no error."""
        ...

    def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        """Keys that start with `prefix`, sorted, only those after `after`. Never base a decision on a listing."""
        ...

    async def close(self) -> None: ...


UNMARKED = ""


async def place_of(store: Store, *, make: bool = False) -> str | None:
    """An id that distinguishes this place from its copies: the same for everyone who opens it, another one for a copy.

    `make`: mark the place if it needs a mark and has none, or has one that was copied from elsewhere; without `make`
    such a place is `UNMARKED`. None if the store has no such id.
    """
    marked = getattr(store, "place", None)
    return None if marked is None else await marked(make=make)


def locate(store: Store, key: str) -> str:
    """The path or URL of an object if the store knows it, else its key. For messages."""
    named = getattr(store, "locate", None)
    return key if named is None else str(named(key))


@runtime_checkable
class Watched(Protocol):
    """Optional for a store: reports new objects as they appear, so that callers poll less often."""

    def watch(self, folder: str, appeared: Callable[[str], None]) -> Callable[[], None] | None:
        """Call `appeared` with the keys of new objects directly below `folder`, on the running event loop, until the
        returned function is called. None if that is not possible now. Silence does not mean that nothing is new."""
        ...


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_full(error: StorageError) -> bool:
    """True if a disk, a quota or a limit on the size of files is used up: no retry helps until there is room."""
    return isinstance(error.cause, OSError) and error.cause.errno in _FULL
