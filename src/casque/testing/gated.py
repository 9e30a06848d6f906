"""A store whose writes wait until a test lets them through, and which counts what it is asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

from casque.errors import StorageError
from casque.storage.port import Outcome, Read, Store


class GatedStore:
    """Any store, with a gate before its writes. Open at first; `shut` it to hold writes in flight."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open = asyncio.Event()
        self._open.set()
        self.arrived = asyncio.Event()
        """Set when a write has come to the shut gate."""
        self.requests: Counter[str] = Counter()
        self.fail: StorageError | None = None
        """What every read and write ends with, while it is set; nothing is written then."""

    @property
    def writes(self) -> int:
        return self.requests["create"] + self.requests["replace"]

    def shut(self) -> None:
        self._open.clear()
        self.arrived.clear()

    def open(self) -> None:
        self._open.set()

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        self.requests["get"] += 1
        self._fail()
        return await self._store.get(key, unless=unless)

    async def create(self, key: str, body: bytes) -> Outcome:
        await self._pass("create")
        return await self._store.create(key, body)

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        await self._pass("replace")
        return await self._store.replace(key, body, expected=expected)

    async def delete(self, key: str) -> None:
        self.requests["delete"] += 1
        await self._store.delete(key)

    def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        self.requests["list"] += 1
        return self._store.list(prefix, after=after)

    async def close(self) -> None:
        await self._store.close()

    async def _pass(self, verb: str) -> None:
        self.requests[verb] += 1
        self._fail()
        if not self._open.is_set():
            self.arrived.set()
            await self._open.wait()

    def _fail(self) -> None:
        if self.fail is not None:
            raise self.fail
