"""The storages with `read` and `write`, by themselves and as the one key of a keyed store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from casque.errors import (
    CASConflictError,
    InvalidInputError,
    StorageError,
    StoreAccessError,
    UnknownOutcomeError,
)
from casque.storage.adapted import KEY, SingleObjectStore
from casque.storage.port import LOST, MISSING, UNCHANGED, Store, Stored, Unknown, Won
from casque.storage.single import InMemoryStorage, LocalFileSystemStorage, ObjectStoragePort
from casque.testing.contender import contend, read_tally
from casque.testing.store_suite import created, keys

Make = Callable[[], ObjectStoragePort]


@pytest.fixture(params=["memory", "file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Each call gives another client of the same object."""
    if request.param == "file":
        return lambda: LocalFileSystemStorage(tmp_path / "deep" / "er" / "queue.json")
    storage = InMemoryStorage()
    return lambda: storage


class TestEveryStorage:
    async def test_is_the_port(self, make: Make) -> None:
        assert isinstance(make(), ObjectStoragePort)

    async def test_reads_as_absent_before_the_first_write(self, make: Make) -> None:
        assert await make().read() == (b"", None)

    async def test_gives_back_what_was_written(self, make: Make) -> None:
        etag = await make().write(b"first")
        assert await make().read() == (b"first", etag)

        newer = await make().write(b"second", if_match=etag)

        assert newer != etag
        assert await make().read() == (b"second", newer)

    async def test_refuses_a_first_write_when_there_is_an_object(self, make: Make) -> None:
        etag = await make().write(b"first")

        with pytest.raises(CASConflictError):
            await make().write(b"second")

        assert await make().read() == (b"first", etag)

    async def test_refuses_a_write_over_another_version(self, make: Make) -> None:
        old = await make().write(b"first")
        etag = await make().write(b"second", if_match=old)

        with pytest.raises(CASConflictError):
            await make().write(b"third", if_match=old)

        assert await make().read() == (b"second", etag)

    async def test_refuses_a_version_of_nothing(self, make: Make) -> None:
        with pytest.raises(CASConflictError):
            await make().write(b"first", if_match="some-etag")

        assert await make().read() == (b"", None)

    async def test_has_one_winner_among_many_first_writes(self, make: Make) -> None:
        results = await asyncio.gather(*(make().write(b"client %d" % n) for n in range(16)), return_exceptions=True)

        assert sum(isinstance(result, str) for result in results) == 1
        assert sum(isinstance(result, CASConflictError) for result in results) == 15

    async def test_loses_no_count_as_the_one_key_of_a_store(self, make: Make) -> None:
        stores = [SingleObjectStore(make()) for _ in range(8)]

        acknowledged = await asyncio.gather(*(contend(store, KEY, 20) for store in stores))

        assert (await read_tally(stores[0], KEY)).total == sum(acknowledged) == 8 * 20


class TestInMemory:
    async def test_starts_with_the_initial_content(self) -> None:
        storage = InMemoryStorage(initial_content=b'{"version":0,"jobs":[]}')

        content, etag = await storage.read()

        assert content == b'{"version":0,"jobs":[]}'
        await storage.write(b"next", if_match=etag)


class TestLocalFile:
    async def test_shows_nothing_beside_the_file_but_a_hidden_directory(self, tmp_path: Path) -> None:
        storage = LocalFileSystemStorage(str(tmp_path / "queue.json"))
        etag = await storage.write(b"first")
        await storage.write(b"second", if_match=etag)

        assert _names(tmp_path) == [".casque", "queue.json"]

    async def test_takes_an_empty_file_for_none(self, tmp_path: Path) -> None:
        # What jqueue leaves behind when a write fails.
        (tmp_path / "queue.json").touch()
        storage = LocalFileSystemStorage(tmp_path / "queue.json")
        assert await storage.read() == (b"", None)

        results = await asyncio.gather(
            *(LocalFileSystemStorage(tmp_path / "queue.json").write(b"client %d" % n) for n in range(8)),
            return_exceptions=True,
        )

        assert sum(isinstance(result, str) for result in results) == 1
        assert (await storage.read())[0].startswith(b"client")

    async def test_writes_through_a_symbolic_link(self, tmp_path: Path) -> None:
        link = tmp_path / "link.json"
        link.symlink_to(tmp_path / "queue.json")
        etag = await LocalFileSystemStorage(link).write(b"first")

        await LocalFileSystemStorage(tmp_path / "queue.json").write(b"second", if_match=etag)

        assert link.is_symlink()
        assert (await LocalFileSystemStorage(link).read())[0] == b"second"

    async def test_keeps_the_permissions_of_the_file(self, tmp_path: Path) -> None:
        storage = LocalFileSystemStorage(tmp_path / "queue.json")
        etag = await storage.write(b"first")
        (tmp_path / "queue.json").chmod(0o600)

        await storage.write(b"second", if_match=etag)

        assert (tmp_path / "queue.json").stat().st_mode & 0o777 == 0o600

    async def test_refuses_a_directory(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match="is a directory"):
            LocalFileSystemStorage(tmp_path)

    async def test_says_so_when_a_write_may_have_landed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        storage = LocalFileSystemStorage(tmp_path / "queue.json")
        etag = await storage.write(b"first")
        with monkeypatch.context() as patch:
            patch.setattr("casque.storage.local.sync_directory", _broken_disk)

            with pytest.raises(UnknownOutcomeError) as raised:
                await storage.write(b"second", if_match=etag)
            with pytest.raises(StorageError):
                await storage.read()

        assert isinstance(raised.value.__cause__, OSError)
        assert (await storage.read())[0] == b"second"


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def _broken_disk(path: str) -> None:
    raise OSError(5, os.strerror(5), path)


class Custom:
    """A user's adapter, as the two-method contract describes it: the first write is unconditional."""

    def __init__(self) -> None:
        self.content = b""
        self.etag: str | None = None
        self.failure: Exception | None = None

    async def read(self) -> tuple[bytes, str | None]:
        return self.content, self.etag

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        if if_match is not None and if_match != self.etag:
            raise CASConflictError("changed")
        self.content = content
        self.etag = f"v{len(content)}"
        if self.failure is not None:
            raise self.failure
        return self.etag


class TestAdapted:
    @pytest.fixture
    def custom(self) -> Custom:
        return Custom()

    @pytest.fixture
    def store(self, custom: Custom) -> SingleObjectStore:
        return SingleObjectStore(custom)

    async def test_is_a_store(self, store: SingleObjectStore) -> None:
        assert isinstance(store, Store)

    async def test_reads_and_writes_the_one_key(self, store: SingleObjectStore) -> None:
        assert await store.get(KEY) == MISSING
        assert await keys(store, "") == []

        etag = await created(store, KEY, b"first")

        assert await store.get(KEY) == Stored(b"first", etag)
        assert await store.get(KEY, unless=etag) == UNCHANGED
        assert await keys(store, "") == [KEY]
        assert await store.replace(KEY, b"second!", expected=etag) == Won("v7")
        assert await store.replace(KEY, b"third", expected=etag) == LOST

    async def test_creates_nothing_over_an_object_though_the_adapter_would(
        self, store: SingleObjectStore, custom: Custom
    ) -> None:
        await created(store, KEY, b"first")

        assert await store.create(KEY, b"second") == LOST

        assert custom.content == b"first"

    @pytest.mark.parametrize("failure", [StorageError("reset"), RuntimeError("bug"), TimeoutError()])
    async def test_takes_every_other_error_for_an_open_outcome(
        self, store: SingleObjectStore, custom: Custom, failure: Exception
    ) -> None:
        custom.failure = failure

        assert await store.create(KEY, b"first") == Unknown(failure)

    async def test_passes_a_refusal_on(self, store: SingleObjectStore, custom: Custom) -> None:
        custom.failure = StoreAccessError("no credentials")

        with pytest.raises(StoreAccessError):
            await store.create(KEY, b"first")

    async def test_creates_over_an_empty_object_by_its_token(self) -> None:
        storage = InMemoryStorage()
        await storage.write(b"")

        etag = await created(SingleObjectStore(storage), KEY, b"first")

        assert await storage.read() == (b"first", etag)

    async def test_holds_only_the_document_layout(self, store: SingleObjectStore) -> None:
        assert await store.get("log/00000000000000000001") == MISSING
        with pytest.raises(StorageError, match="only the document layout"):
            await store.create("log/00000000000000000001", b"commit")
        with pytest.raises(StorageError, match="only the document layout"):
            await store.replace("log/00000000000000000001", b"commit", expected="v1")
