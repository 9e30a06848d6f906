from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from casque.storage.memory import MemoryStore
from casque.storage.port import Stored
from casque.storage.url import open_store
from casque.testing import StoreSuite
from casque.testing.contender import contend, read_tally
from casque.testing.store_suite import MakeStore, created


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        store = MemoryStore()
        return lambda: store


async def test_stores_of_one_name_are_one_store() -> None:
    etag = await created(open_store("memory://shared-by-name"), "key", b"body")

    assert await open_store("memory://shared-by-name").get("key") == Stored(b"body", etag)


async def test_threads_with_loops_of_their_own_lose_no_count() -> None:
    store = MemoryStore()

    with ThreadPoolExecutor(8) as threads:
        counting = [threads.submit(lambda: asyncio.run(contend(store, "tally", 200))) for _ in range(8)]
        acknowledged = sum(future.result() for future in counting)

    assert (await read_tally(store, "tally")).total == acknowledged == 8 * 200


async def test_a_buffer_that_its_owner_changes_later_does_not_change_the_object() -> None:
    store = MemoryStore()
    buffer = bytearray(b"before")
    etag = await created(store, "key", cast("bytes", buffer))

    buffer[:] = b"after!"

    assert await store.get("key") == Stored(b"before", etag)
