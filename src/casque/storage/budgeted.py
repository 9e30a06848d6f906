"""A store whose requests count against a budget."""

from __future__ import annotations

from collections.abc import AsyncIterator

from casque.request_budget import RequestBudget
from casque.storage.port import Outcome, Read, Store
from casque.storage.wrapped import WrappedStore

PAGE_KEYS = 1000
"""Stores list this many objects per request."""


class BudgetedStore(WrappedStore):
    """Another store. It delays no request: the callers ask the budget. Closing it closes the other store.

    >>> import asyncio
    >>> from casque.settings import QueueSettings
    >>> from casque.storage.memory import MemoryStore
    >>> budget = RequestBudget(QueueSettings(requests_per_day=1000))
    >>> asyncio.run(BudgetedStore(MemoryStore(), budget).create("queue.json", b"{}"))
    Won(etag='1')
    >>> budget.usage()
    [Usage(window='day', limit=1000, used=1)]
    """

    def __init__(self, store: Store, budget: RequestBudget) -> None:
        super().__init__(store)
        self._budget = budget

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        self._budget.spend()
        return await self._store.get(key, unless=unless)

    async def create(self, key: str, body: bytes) -> Outcome:
        self._budget.spend()
        return await self._store.create(key, body)

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        self._budget.spend()
        return await self._store.replace(key, body, expected=expected)

    async def delete(self, key: str) -> None:
        self._budget.spend()
        await self._store.delete(key)

    async def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        self._budget.spend()
        listed = 0
        async for key in self._store.list(prefix, after=after):
            listed += 1
            if listed % PAGE_KEYS == 0:
                self._budget.spend()
            yield key
