"""What a store around another one hands on as it is."""

from __future__ import annotations

from collections.abc import Callable

from casque.storage.port import Store, Watched, locate, place_of


class WrappedStore:
    """A base for stores that add something to each request of another one. Closing it closes the other store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def place(self, *, make: bool) -> str | None:
        return await place_of(self._store, make=make)

    def locate(self, key: str) -> str:
        return locate(self._store, key)

    def watch(self, folder: str, appeared: Callable[[str], None]) -> Callable[[], None] | None:
        return self._store.watch(folder, appeared) if isinstance(self._store, Watched) else None

    async def close(self) -> None:
        await self._store.close()
