"""One object in memory, for tests."""

from __future__ import annotations

from casque.storage import single


class InMemoryStorage(single.InMemoryStorage):
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
        super().__init__(initial_content)
        self._first = self._version

    def _etag(self) -> str | None:
        return str(self._version - self._first) if self._version else None
