"""One object in memory, for tests."""

from __future__ import annotations

from casque.errors import CASConflictError


class InMemoryStorage:
    """Etags count the writes; content given at the start has the etag "0".

    >>> import asyncio
    >>> storage = InMemoryStorage(initial_content=b"{}")
    >>> asyncio.run(storage.read())
    (b'{}', '0')
    >>> asyncio.run(storage.write(b"[]", if_match="0"))
    '1'
    """

    failures_are_definite = True

    def __init__(self, initial_content: bytes = b"") -> None:
        self._content = bytes(initial_content)
        self._writes = 0

    async def read(self) -> tuple[bytes, str | None]:
        return self._content, self._etag()

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        # Nothing is awaited between the comparison and the change, so no other task comes between them.
        if if_match != self._etag():
            raise CASConflictError(f"the object is at {self._etag()}, not at {if_match}")
        self._content = bytes(content)
        self._writes += 1
        return str(self._writes)

    def _etag(self) -> str | None:
        return str(self._writes) if self._content or self._writes else None
