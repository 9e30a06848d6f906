"""What lies below a prefix of a store is a store, and has nothing to do with its neighbours."""

from __future__ import annotations

import pytest

from casque.storage.memory import MemoryStore
from casque.storage.port import MISSING
from casque.storage.prefixed import PrefixedStore
from casque.testing import StoreSuite
from casque.testing.store_suite import MakeStore, created


class TestPrefixedStore(StoreSuite):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        store = MemoryStore()
        return lambda: PrefixedStore(store, "shards/0003")


async def test_neighbours_see_nothing_of_each_other() -> None:
    whole = MemoryStore()
    one, other = PrefixedStore(whole, "shards/0001"), PrefixedStore(whole, "shards/0010")
    await created(one, "log/1", b"body")

    assert await other.get("log/1") == MISSING
    assert [key async for key in other.list()] == []
    assert [key async for key in one.list()] == ["log/1"]
    assert [key async for key in whole.list()] == ["shards/0001/log/1"]
