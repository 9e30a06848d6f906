"""A store whose requests count against a budget is a store, and counts what a store bills."""

from __future__ import annotations

from pathlib import Path

import pytest

from casque.request_budget import RequestBudget
from casque.settings import QueueSettings
from casque.storage.budgeted import BudgetedStore
from casque.storage.local import LocalStore
from casque.storage.memory import MemoryStore
from casque.storage.port import Watched, place_of
from casque.testing import StoreSuite
from casque.testing.store_suite import MakeStore, created


def a_budget() -> RequestBudget:
    return RequestBudget(QueueSettings(requests_per_day=1_000_000))


class TestBudgetedStore(StoreSuite):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        store = MemoryStore()
        return lambda: BudgetedStore(store, a_budget())


async def test_every_request_counts_and_a_list_counts_by_pages() -> None:
    budget = a_budget()
    store = BudgetedStore(MemoryStore(), budget)
    etag = await created(store, "a", b"1")
    await store.create("a", b"2")
    await store.replace("a", b"3", expected=etag)
    await store.get("a")
    await store.delete("a")
    assert budget.usage()[0].used == 5
    for number in range(1_500):
        await store.create(f"{number}", b"")
    before = budget.usage()[0].used
    assert len([key async for key in store.list()]) == 1_500
    assert budget.usage()[0].used == before + 2


async def test_it_is_where_the_other_store_is(tmp_path: Path) -> None:
    inner = LocalStore(tmp_path)
    store = BudgetedStore(inner, a_budget())
    assert isinstance(store, Watched)
    assert await place_of(store, make=True) == await place_of(inner, make=True)
    await store.close()
