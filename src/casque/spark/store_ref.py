"""A store as a Spark task can carry it: by URL and options, opened where it is used.

Blocking, because Spark is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from casque.errors import InvalidInputError
from casque.storage.port import Store
from casque.storage.url import open_store

R = TypeVar("R")


class StoreRef:
    """Where objects are. Its repr hides the options, which may be credentials.

    Raises:
        InvalidInputError: executors could not share this store.
    """

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        if url.startswith("memory:"):
            raise InvalidInputError(
                f"{url!r}: Spark's executors are processes of their own and do not share this one's memory; use "
                "file:// or a bucket"
            )
        self.url = url.rstrip("/")
        self.options = dict(options or {})

    def __repr__(self) -> str:
        return f"StoreRef({self.url.partition('?')[0]!r})"

    def run(self, work: Callable[[Store], Awaitable[R]]) -> R:
        """Open the store, run `work` with it, close it."""

        async def opened() -> R:
            store = open_store(self.url, options=self.options)
            try:
                return await work(store)
            finally:
                await store.close()

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(opened())
        # A notebook already runs a loop in this thread.
        with ThreadPoolExecutor(1) as beside:
            return beside.submit(asyncio.run, opened()).result()
