"""A store that counts its requests and times them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from casque.errors import StorageError, StoreAccessError
from casque.storage.port import Lost, Outcome, Read, Store, Unknown
from casque.storage.wrapped import WrappedStore
from casque.telemetry.metrics import Metrics, Spread

R = TypeVar("R")

OPERATIONS = ("get", "create", "replace", "delete", "list")
ANY = ("ok", "error", "denied")
OF_WRITES = ("lost", "unknown")


class MeteredStore(WrappedStore):
    """Another store, with numbers of its requests in `metrics`. Closing it closes the other store.

    >>> import asyncio
    >>> from casque.storage.memory import MemoryStore
    >>> metrics = Metrics()
    >>> asyncio.run(MeteredStore(MemoryStore(), metrics).create("queue.json", b"{}"))
    Won(etag='1')
    >>> 'casque_store_requests_total{operation="create",outcome="ok"} 1' in metrics.text()
    True
    """

    def __init__(self, store: Store, metrics: Metrics) -> None:
        super().__init__(store)
        self._requests = metrics.counter(
            "casque_store_requests_total",
            "Requests to the store, by outcome: ok, lost (another writer was first), unknown (no answer to a write), "
            "error, denied, cancelled, or failure.",
            ("operation", "outcome"),
        )
        seconds = metrics.histogram(
            "casque_store_request_duration_seconds", "How long requests to the store took.", ("operation",)
        )
        self._seconds: dict[str, Spread] = {operation: seconds.of(operation) for operation in OPERATIONS}
        for operation in OPERATIONS:
            for outcome in (*ANY, *(OF_WRITES if operation in ("create", "replace") else ())):
                self._requests.of(operation, outcome)  # 0 from the start, so that the first failure is a rise

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        return await self._timed("get", self._store.get(key, unless=unless))

    async def create(self, key: str, body: bytes) -> Outcome:
        return await self._timed("create", self._store.create(key, body))

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        return await self._timed("replace", self._store.replace(key, body, expected=expected))

    async def delete(self, key: str) -> None:
        await self._timed("delete", self._store.delete(key))

    async def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        """One request, however many pages the store reads. The time that the caller takes is not counted."""
        now = asyncio.get_running_loop().time
        resumed_s, elapsed_s = now(), 0.0
        outcome = "ok"
        try:
            async for key in self._store.list(prefix, after=after):
                elapsed_s += now() - resumed_s
                yield key
                resumed_s = now()
            elapsed_s += now() - resumed_s
        except GeneratorExit:
            raise  # the caller has seen enough
        except BaseException as error:
            outcome = _failure(error)
            raise
        finally:
            self._count("list", outcome, elapsed_s)

    async def _timed(self, operation: str, request: Awaitable[R]) -> R:
        now = asyncio.get_running_loop().time
        began_s = now()
        outcome = "ok"
        try:
            answer = await request
            outcome = _named(answer)
            return answer
        except BaseException as error:
            outcome = _failure(error)
            raise
        finally:
            self._count(operation, outcome, now() - began_s)

    def _count(self, operation: str, outcome: str, elapsed_s: float) -> None:
        self._requests.of(operation, outcome).add()
        self._seconds[operation].observe(elapsed_s)


def _named(answer: object) -> str:
    if isinstance(answer, Unknown):
        return "unknown"
    return "lost" if isinstance(answer, Lost) else "ok"


def _failure(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, StoreAccessError):
        return "denied"
    return "error" if isinstance(error, StorageError) else "failure"
