"""A store that counts its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

from casque.storage.port import Outcome, Read, Store


class CountingStore:
    """Passes requests on to another store, and counts them."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.requests: Counter[str] = Counter()

    @property
    def puts(self) -> int:
        return self.requests["create"] + self.requests["replace"] + self.requests["list"]

    @property
    def gets(self) -> int:
        return self.requests["get"]

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        self.requests["get"] += 1
        return await self._inner.get(key, unless=unless)

    async def create(self, key: str, body: bytes) -> Outcome:
        self.requests["create"] += 1
        return await self._inner.create(key, body)

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        self.requests["replace"] += 1
        return await self._inner.replace(key, body, expected=expected)

    async def delete(self, key: str) -> None:
        self.requests["delete"] += 1
        await self._inner.delete(key)

    async def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        self.requests["list"] += 1
        async for key in self._inner.list(prefix, after=after):
            yield key

    async def close(self) -> None:
        await self._inner.close()
