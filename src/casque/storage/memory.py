"""Objects in this process's memory: for tests, benchmarks, and queues that may vanish with the process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator
from typing import ClassVar

from casque.storage.port import LOST, MISSING, UNCHANGED, Outcome, Read, Stored, Won

_marks = itertools.count(1)


class MemoryStore:
    """A store that lives as long as the process. Safe to share between threads and event loops.

    >>> import asyncio
    >>> store = MemoryStore()
    >>> asyncio.run(store.create("greeting", b"hello"))
    Won(etag='1')
    >>> asyncio.run(store.create("greeting", b"hello again"))
    Lost()
    >>> MemoryStore.named("orders") is MemoryStore.named("orders")
    True
    """

    _named: ClassVar[dict[str, MemoryStore]] = {}

    def __init__(self) -> None:
        self._objects: dict[str, Stored] = {}
        self._versions = itertools.count(1)
        self._lock = threading.Lock()
        self._mark = f"memory-{next(_marks)}"

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """The store of this name in this process, which `memory://name` opens."""
        # setdefault is atomic: two threads that call it at once get the same store.
        return cls._named.setdefault(name, cls())

    async def place(self, *, make: bool) -> str:  # noqa: ARG002
        return self._mark

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        stored = self._objects.get(key)
        if stored is None:
            return MISSING
        return UNCHANGED if stored.etag == unless else stored

    async def create(self, key: str, body: bytes) -> Outcome:
        with self._lock:
            return LOST if key in self._objects else self._write(key, body)

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        with self._lock:
            current = self._objects.get(key)
            if current is None or current.etag != expected:
                return LOST
            return self._write(key, body)

    async def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(key, None)

    async def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        # Copied first: the caller may write or delete between two keys.
        keys = list(self._objects)
        for key in sorted(keys):
            if key.startswith(prefix) and (after is None or key > after):
                yield key

    async def close(self) -> None:
        """Does nothing: a named store outlives the queues that use it."""

    def _write(self, key: str, body: bytes) -> Won:
        etag = str(next(self._versions))
        # Copies a caller's bytearray, which could change later; bytes(b) of bytes is the same object and free.
        self._objects[key] = Stored(bytes(body), etag)
        return Won(etag)
