"""A store whose replies get lost: what a network does, on demand and repeatably."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from enum import StrEnum
from typing import TypeAlias

from casque.clock import Random
from casque.errors import StorageError
from casque.storage.port import Outcome, Read, Store, Unknown


class Fault(StrEnum):
    """What happens to one request."""

    NONE = "none"
    BEFORE = "before"
    """Lost on its way to the store: nothing is done. A read fails."""
    AFTER = "after"
    """Carried out, but the reply is lost. A read fails."""


Decide: TypeAlias = Callable[[], Fault]


class LossyStore:
    """Any store, with faults. A write whose reply is lost ends in `Unknown`, whether it was applied or not.

    >>> import asyncio
    >>> from casque.storage.memory import MemoryStore
    >>> store = LossyStore(MemoryStore(), scripted(Fault.AFTER))
    >>> asyncio.run(store.create("key", b"mine"))
    Unknown(cause=StorageError('the reply was lost'))
    >>> asyncio.run(store.get("key")).body
    b'mine'
    """

    def __init__(self, store: Store, decide: Decide) -> None:
        self._store = store
        self._decide = decide
        self.faults = 0

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        if self._next() is not Fault.NONE:
            raise _lost()
        return await self._store.get(key, unless=unless)

    async def create(self, key: str, body: bytes) -> Outcome:
        fault = self._next()
        if fault is Fault.BEFORE:
            return Unknown(_lost())
        outcome = await self._store.create(key, body)
        return outcome if fault is Fault.NONE else Unknown(_lost())

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        fault = self._next()
        if fault is Fault.BEFORE:
            return Unknown(_lost())
        outcome = await self._store.replace(key, body, expected=expected)
        return outcome if fault is Fault.NONE else Unknown(_lost())

    async def delete(self, key: str) -> None:
        fault = self._next()
        if fault is not Fault.BEFORE:
            await self._store.delete(key)
        if fault is not Fault.NONE:
            raise _lost()

    async def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        if self._next() is not Fault.NONE:
            raise _lost()
        async for key in self._store.list(prefix, after=after):
            yield key

    async def close(self) -> None:
        await self._store.close()

    def _next(self) -> Fault:
        fault = self._decide()
        self.faults += fault is not Fault.NONE
        return fault


def scripted(*faults: Fault) -> Decide:
    """These faults, one per request, then none."""
    script = iter(faults)
    return lambda: next(script, Fault.NONE)


def by_chance(rng: Random, *, before: float = 0.1, after: float = 0.1) -> Decide:
    """Faults at these rates, the same ones for the same seed."""
    faults: Iterable[Fault] = (Fault.BEFORE, Fault.AFTER, Fault.NONE)
    weights = (before, after, 1 - before - after)
    return lambda: rng.choices(tuple(faults), weights)[0]


def _lost() -> StorageError:
    return StorageError("the reply was lost")
