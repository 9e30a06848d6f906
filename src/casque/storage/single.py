"""One object with `read` and `write`: all that a custom adapter has to provide.

`read` returns the content and its version token, `write` replaces exactly the version that the caller names. Here
`if_match=None` means "only if there is none yet": two processes that start at once must not overwrite each other.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol, assert_never, runtime_checkable

from casque.errors import CASConflictError, InvalidInputError, UnknownOutcomeError
from casque.storage.local import LocalStore, check_key
from casque.storage.port import Lost, Outcome, Stored, Unknown, Won


@runtime_checkable
class ObjectStoragePort(Protocol):
    """Any object with these two methods holds a queue; no base class, no registration.

    >>> class Mine:
    ...     async def read(self): ...
    ...     async def write(self, content, if_match=None): ...
    >>> isinstance(Mine(), ObjectStoragePort)
    True
    """

    async def read(self) -> tuple[bytes, str | None]:
        """The content and its token; `(b"", None)` if there is no object yet."""
        ...

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Write if the current token is `if_match`, or, for None, if there is no object yet. Returns the new token.

        Raises:
            CASConflictError: the condition does not hold. Nothing was written.
        """
        ...


class InMemoryStorage:
    """One object in memory, for tests. Safe for any number of tasks on one event loop.

    >>> import asyncio
    >>> storage = InMemoryStorage(initial_content=b"{}")
    >>> asyncio.run(storage.read())
    (b'{}', '1')
    >>> asyncio.run(storage.write(b"[]", if_match="1"))
    '2'
    """

    def __init__(self, initial_content: bytes = b"") -> None:
        self._content = bytes(initial_content)
        self._version = 1 if initial_content else 0

    async def read(self) -> tuple[bytes, str | None]:
        return self._content, self._etag()

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        # Nothing is awaited between the comparison and the change, so no other task comes between them.
        if if_match != self._etag():
            raise CASConflictError(f"the object is at {self._etag()}, not at {if_match}")
        self._content = bytes(content)
        self._version += 1
        return self._etag() or ""

    def _etag(self) -> str | None:
        return str(self._version) if self._version else None


class LocalFileSystemStorage:
    """One file, safe between the processes of one machine, and never half written. Its directory is created.

    Locks are kept in a hidden directory beside the file. An empty file counts as missing: a writer without these
    precautions leaves one when its disk is full.

    >>> import asyncio, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     storage = LocalFileSystemStorage(f"{directory}/queue.json")
    ...     print(asyncio.run(storage.read()))
    (b'', None)

    Raises:
        InvalidInputError: `path` is a directory.
    """

    failures_are_definite = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # A rename over a symbolic link would separate users of the link from users of the file.
        real = Path(path).resolve()
        if os.path.isdir(real):  # noqa: PTH112 (a path that may not be looked at is for `read` to report)
            raise InvalidInputError(f"{real} is a directory; name the file that shall hold the queue")
        check_key(real.name)
        self._store = LocalStore(real.parent)
        self._name = real.name
        self.location = str(real)
        """The path of the object, for messages."""

    async def read(self) -> tuple[bytes, str | None]:
        found = await self._store.get(self._name)
        return (found.body, found.etag) if isinstance(found, Stored) and found.body else (b"", None)

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        if if_match is None:
            outcome = await self._create(content)
        else:
            outcome = await self._store.replace(self._name, content, expected=if_match)
        return written(outcome, if_match)

    async def _create(self, content: bytes) -> Outcome:
        outcome = await self._store.create(self._name, content)
        if isinstance(outcome, Lost):
            found = await self._store.get(self._name)
            if isinstance(found, Stored) and not found.body:
                return await self._store.replace(self._name, content, expected=found.etag)
        return outcome


def written(outcome: Outcome, if_match: str | None) -> str:
    """Translate a keyed store's outcome to this port: a token, or an error."""
    match outcome:
        case Won(etag):
            return etag
        case Lost():
            expected = "the object exists already" if if_match is None else f"the object is no longer at {if_match}"
            raise CASConflictError(f"another writer was first: {expected}")
        case Unknown(cause):
            raise UnknownOutcomeError(f"the write may or may not have landed: {cause}") from cause
        case _:
            assert_never(outcome)
