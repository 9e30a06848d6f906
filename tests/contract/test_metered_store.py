"""A store whose requests are counted is a store, and its numbers are true."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from casque.errors import StorageError, StoreAccessError
from casque.storage.local import LocalStore
from casque.storage.memory import MemoryStore
from casque.storage.metered import MeteredStore
from casque.storage.port import Lost, Read, Unknown, Watched, place_of
from casque.telemetry.metrics import Metrics
from casque.testing import StoreSuite
from casque.testing.lossy import Fault, LossyStore, scripted
from casque.testing.store_suite import MakeStore, created
from tests.integration.over_http.prometheus import scrape


class TestMeteredStore(StoreSuite):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        store = MemoryStore()
        return lambda: MeteredStore(store, Metrics())


class Refusing(MemoryStore):
    error: Exception = StorageError("the store is down")

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        raise self.error


def count(metrics: Metrics, operation: str, outcome: str) -> float:
    return scrape(metrics.text()).value("casque_store_requests_total", operation=operation, outcome=outcome)


async def test_requests_are_counted_by_outcome_and_timed() -> None:
    metrics = Metrics()
    store = MeteredStore(MemoryStore(), metrics)
    etag = await created(store, "a", b"1")
    assert isinstance(await store.create("a", b"2"), Lost)
    await store.replace("a", b"3", expected=etag)
    await store.get("a")
    await store.get("missing")
    assert [key async for key in store.list()] == ["a"]
    await store.delete("a")

    assert count(metrics, "create", "ok") == count(metrics, "create", "lost") == count(metrics, "replace", "ok") == 1
    assert count(metrics, "get", "ok") == 2, "an object that is not there is an answer"
    assert count(metrics, "list", "ok") == count(metrics, "delete", "ok") == 1
    page = scrape(metrics.text())
    assert page.value("casque_store_request_duration_seconds_count", operation="create") == 2
    assert page.value("casque_store_request_duration_seconds_sum", operation="create") > 0


async def test_failures_have_names_and_are_zero_before_the_first_one() -> None:
    metrics, inner = Metrics(), Refusing()
    store = MeteredStore(inner, metrics)
    assert count(metrics, "get", "error") == count(metrics, "get", "denied") == count(metrics, "create", "unknown") == 0

    with pytest.raises(StorageError):
        await store.get("a")
    inner.error = StoreAccessError("not yours")
    with pytest.raises(StoreAccessError):
        await store.get("a")
    lossy = MeteredStore(LossyStore(MemoryStore(), scripted(Fault.AFTER)), metrics)
    assert isinstance(await lossy.create("a", b""), Unknown)

    assert count(metrics, "get", "error") == count(metrics, "get", "denied") == count(metrics, "create", "unknown") == 1


async def test_a_request_that_its_caller_leaves_is_counted_as_cancelled() -> None:
    class Hanging(MemoryStore):
        async def get(self, key: str, *, unless: str | None = None) -> Read:
            began.set()
            await asyncio.Event().wait()
            raise AssertionError

    began, metrics = asyncio.Event(), Metrics()
    asking = asyncio.create_task(MeteredStore(Hanging(), metrics).get("a"))
    await began.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert count(metrics, "get", "cancelled") == 1


async def test_a_listing_that_is_left_early_is_counted_once() -> None:
    metrics = Metrics()
    store = MeteredStore(MemoryStore(), metrics)
    for key in "abc":
        await created(store, key, b"")

    listing = store.list()
    assert await anext(listing) == "a"
    await listing.aclose()  # type: ignore[attr-defined]

    assert count(metrics, "list", "ok") == 1


async def test_it_can_do_what_the_store_below_can(tmp_path: Path) -> None:
    local = LocalStore(tmp_path)
    store = MeteredStore(local, Metrics())

    assert isinstance(store, Watched)
    assert store.locate("queue.json") == local.locate("queue.json")
    assert await place_of(store, make=True) == await place_of(local) is not None
    await store.close()
