"""A store as a Spark task can carry it: by URL and options, opened where it is used.

Blocking, because Spark is. Reads are retried for as long as a queue would; objects are created under unique names, so a
create whose answer was lost is simply sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from casque.environment import Environment, Patience
from casque.errors import CASConflictError, InvalidInputError
from casque.journal.tries import Tries
from casque.storage.port import Read, Store, Stored, Won
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


def patience() -> Patience:
    return Environment().patience()


async def get(store: Store, key: str) -> Read:
    """
    Raises:
        StorageError: the store failed for too long.
    """
    return await patience().insist(lambda: store.get(key))


async def body_of(store: Store, key: str) -> bytes | None:
    read = await get(store, key)
    return read.body if isinstance(read, Stored) else None


async def create_new(store: Store, key: str, body: bytes) -> None:
    """Create an object under a unique name.

    Raises:
        StorageError, UnknownOutcomeError: the store failed for too long.
        CASConflictError: another object has this name.
    """
    tries = Tries(f"the creation of {key}", patience)
    while True:
        outcome = await tries.attempt(lambda: store.create(key, body))
        if isinstance(outcome, Won) or (outcome is not None and tries.sent):
            return  # lost after an attempt without an answer: that attempt had landed
        if outcome is not None:
            raise CASConflictError(f"{key} is there already, and nobody else should know this name")


async def swap(store: Store, key: str, body: bytes, *, expected: str | None) -> bool:
    """Replace a version, or create if `expected` is None, with a unique body; False if another writer was first.

    Raises:
        StorageError, UnknownOutcomeError: the store failed for too long.
    """
    tries = Tries(f"the change of {key}", patience)
    while True:
        outcome = await tries.attempt(
            lambda: store.create(key, body) if expected is None else store.replace(key, body, expected=expected)
        )
        if isinstance(outcome, Won):
            return True
        if outcome is not None and not tries.sent:
            return False
        if tries.sent:
            # An attempt went unanswered: the object itself shows whether ours landed.
            read = await get(store, key)
            if isinstance(read, Stored) and read.body == body:
                return True
            if outcome is not None:
                return False
