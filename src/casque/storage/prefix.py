"""A store made of the objects below one prefix of another store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from casque.storage.port import Outcome, Read, Store, Watched, locate, place_of


class PrefixStore:
    """The objects below `prefix` in another store, named without the prefix. Closing it leaves the other one open.

    >>> import asyncio
    >>> from casque.storage.memory import MemoryStore
    >>> whole = MemoryStore()
    >>> asyncio.run(PrefixStore(whole, "shards/0003").create("queue.json", b"{}"))
    Won(etag='1')
    >>> asyncio.run(whole.get("shards/0003/queue.json"))
    Stored(body=b'{}', etag='1')
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = f"{prefix.strip('/')}/"

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        return await self._store.get(self._prefix + key, unless=unless)

    async def create(self, key: str, body: bytes) -> Outcome:
        return await self._store.create(self._prefix + key, body)

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        return await self._store.replace(self._prefix + key, body, expected=expected)

    async def delete(self, key: str) -> None:
        await self._store.delete(self._prefix + key)

    async def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        after = None if after is None else self._prefix + after
        async for key in self._store.list(self._prefix + prefix, after=after):
            yield key.removeprefix(self._prefix)

    async def place(self, *, make: bool) -> str | None:
        whole = await place_of(self._store, make=make)
        return f"{whole}/{self._prefix}" if whole else whole

    def locate(self, key: str) -> str:
        return locate(self._store, self._prefix + key)

    async def close(self) -> None:
        """The store belongs to whoever opened it."""

    def watch(self, folder: str, appeared: Callable[[str], None]) -> Callable[[], None] | None:
        if not isinstance(self._store, Watched):
            return None
        return self._store.watch(self._prefix + folder, lambda key: appeared(key.removeprefix(self._prefix)))
