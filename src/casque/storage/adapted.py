"""A user's single-object adapter as a keyed store that holds one key.

Any exception of such an adapter, other than a conflict or a refusal, leaves the outcome unknown: the port promises
nothing finer. With `failures_are_definite = True`, as in casque's own adapters, a StorageError means that nothing was
written. The adapter itself must make `write(..., if_match=None)` conditional: otherwise two processes that create the
queue at the same moment overwrite each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from casque.errors import CASConflictError, StorageError, StoreAccessError, UnknownOutcomeError
from casque.request_budget import RequestBudget
from casque.storage.port import LOST, MISSING, UNCHANGED, Missing, Outcome, Read, Stored, Unknown, Won
from casque.storage.single import ObjectStoragePort

KEY = "queue.json"


class SingleObjectStore:
    """A store with the single key `queue.json`, on top of an object with `read` and `write`.

    >>> import asyncio
    >>> from casque.storage.single import InMemoryStorage
    >>> store = SingleObjectStore(InMemoryStorage())
    >>> asyncio.run(store.create("queue.json", b"{}"))
    Won(etag='1')
    """

    def __init__(self, port: ObjectStoragePort, budget: RequestBudget | None = None) -> None:
        self._port = port
        self._budget = budget
        self._empty_etag: str | None = None

    def counted(self, budget: RequestBudget) -> SingleObjectStore:
        """The same store, with its requests counted against a budget."""
        return SingleObjectStore(self._port, budget)

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        if key != KEY:
            return MISSING
        self._count()
        try:
            body, etag = await self._port.read()
        except StorageError:
            raise
        except Exception as error:
            raise StorageError(f"{self._name()} could not read: {error}", error) from error
        if not body:
            # Some adapters give an empty object a token; the first write then has to name it.
            self._empty_etag = etag
            return MISSING
        if etag is None:
            raise StorageError(f"{self._name()}.read gave content without an etag")
        return UNCHANGED if etag == unless else Stored(body, etag)

    async def create(self, key: str, body: bytes) -> Outcome:
        # Read first, because an adapter may take None for "overwrite whatever is there".
        if not isinstance(await self.get(key), Missing):
            return LOST
        return await self._write(key, body, if_match=self._empty_etag)

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        return await self._write(key, body, if_match=expected)

    async def delete(self, key: str) -> None:
        raise StorageError(f"{key!r}: {self._name()} has no way to delete; remove the object by hand")

    async def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        wanted = KEY.startswith(prefix) and (after or "") < KEY
        if wanted and not isinstance(await self.get(KEY), Missing):
            yield KEY

    def locate(self, key: str) -> str:
        return str(getattr(self._port, "location", key))

    async def close(self) -> None:
        """Does nothing: the adapter belongs to the caller."""

    async def _write(self, key: str, body: bytes, *, if_match: str | None) -> Outcome:
        if key != KEY:
            raise StorageError(
                f"{key!r}: {self._name()} holds a single object, {KEY!r}, and so only the document layout; "
                "for the log layout open the queue on a store by URL"
            )
        self._count()
        try:
            etag: object = await self._port.write(body, if_match=if_match)
        except CASConflictError:
            return LOST
        except StoreAccessError:
            raise
        except UnknownOutcomeError as error:
            return Unknown(error)
        except StorageError as error:
            if getattr(self._port, "failures_are_definite", False):
                raise
            return Unknown(error)
        except Exception as error:  # noqa: BLE001 (a stranger's code: it may have written before it failed)
            return Unknown(error)
        if not isinstance(etag, str):
            return Unknown(StorageError(f"{self._name()}.write gave {etag!r} instead of an etag"))
        return Won(etag)

    def _count(self) -> None:
        if self._budget is not None:
            self._budget.spend()

    def _name(self) -> str:
        return type(self._port).__name__
