"""What every store has to do, as tests that an adapter's author inherits.

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda: MyStore(tmp_path)

Every call of `make_store` gives another client of the same place. If child processes can open that place by
URL, override `spawn_url` (and `spawn_options`) too, and the races are run between processes. The place need
not be empty: each test works below a root of its own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack
from typing import ClassVar, TypeAlias

import msgspec
import pytest
import pytest_asyncio

from casque.clock import Random, SystemClock, new_nonce, system_random
from casque.errors import StorageError
from casque.storage.port import LOST, MISSING, UNCHANGED, Lost, Store, Stored, Unknown, Won
from casque.testing.contender import contend, read_tally
from casque.testing.lossy import Fault, LossyStore, by_chance, scripted

MakeStore: TypeAlias = Callable[[], Store]
BreakSyncs: TypeAlias = Callable[[], AbstractContextManager[None]]


class StoreSuite:
    """Subclass it, say how to make a store, and run pytest."""

    pytestmark = pytest.mark.asyncio

    contenders: ClassVar[int] = 16
    rounds: ClassVar[int] = 50
    """How often each contender counts. Fewer for a store that limits writes to one key."""

    # --- What a subclass provides ---

    @pytest.fixture
    def make_store(self) -> MakeStore:
        raise NotImplementedError("give the suite a `make_store` fixture")

    @pytest.fixture
    def spawn_url(self) -> str | None:
        """The same place as a URL that another process can open, if there is one."""
        return None

    @pytest.fixture
    def spawn_options(self) -> Mapping[str, str]:
        return {}

    @pytest.fixture
    def break_syncs(self) -> BreakSyncs | None:
        """For a store that makes its writes durable itself: a context in which the system refuses to, below the
        adapter. None for a store whose server answers for that."""
        return None

    # --- What the tests use ---

    @pytest.fixture
    def root(self) -> str:
        """A key prefix that no other test and no earlier run has used."""
        return f"suite-{new_nonce(system_random())}"

    @pytest_asyncio.fixture
    async def new_client(self, make_store: MakeStore) -> AsyncIterator[MakeStore]:
        async with AsyncExitStack() as stack:

            def make() -> Store:
                store = make_store()
                stack.push_async_callback(store.close)
                return store

            yield make

    @pytest.fixture
    def store(self, new_client: MakeStore) -> Store:
        return new_client()

    # --- Reading ---

    async def test_a_key_that_was_never_written_is_missing(self, store: Store, root: str) -> None:
        assert await store.get(f"{root}/nothing") == MISSING
        assert await store.get(f"{root}/nothing", unless="some-etag") == MISSING

    async def test_a_read_gives_the_body_and_the_etag_of_the_write(self, store: Store, root: str) -> None:
        etag = await created(store, f"{root}/key", b"body")

        assert await store.get(f"{root}/key") == Stored(b"body", etag)

    async def test_a_read_of_a_known_version_gives_no_body(self, store: Store, root: str) -> None:
        etag = await created(store, f"{root}/key", b"first")
        assert await store.get(f"{root}/key", unless=etag) == UNCHANGED

        newer = await replaced(store, f"{root}/key", b"second", expected=etag)

        assert await store.get(f"{root}/key", unless=etag) == Stored(b"second", newer)
        assert await store.get(f"{root}/key", unless=newer) == UNCHANGED

    async def test_other_clients_see_a_write_at_once(self, new_client: MakeStore, root: str) -> None:
        one, other = new_client(), new_client()
        etag = await created(one, f"{root}/key", b"first")
        assert await other.get(f"{root}/key") == Stored(b"first", etag)

        newer = await replaced(one, f"{root}/key", b"second", expected=etag)

        assert await other.get(f"{root}/key", unless=etag) == Stored(b"second", newer)

    @pytest.mark.parametrize("size", [0, 1, 5 * 1024 * 1024], ids=["empty", "one byte", "5 MB"])
    async def test_bodies_of_any_size_come_back_as_they_were(self, store: Store, root: str, size: int) -> None:
        body = Random(size).randbytes(size)
        etag = await created(store, f"{root}/key", body)
        assert await store.get(f"{root}/key") == Stored(body, etag)

        turned = body[::-1] + b"."
        newer = await replaced(store, f"{root}/key", turned, expected=etag)

        assert await store.get(f"{root}/key") == Stored(turned, newer)

    @pytest.mark.parametrize(
        "name",
        [
            "plain",
            "a/b/c/d/e/f/g/h/i/j",
            "log/00000000000000000042",
            "snapshots/00000000000000000040-9f86d081884c7d65",
            "archive/2026-02-15T10/1-2.jsonl",
            "UPPER_lower-0.9",
            "x" * 200,
        ],
    )
    async def test_any_ordinary_name_can_be_a_key(self, store: Store, root: str, name: str) -> None:
        etag = await created(store, f"{root}/{name}", name.encode())

        assert await store.get(f"{root}/{name}") == Stored(name.encode(), etag)
        assert await keys(store, f"{root}/") == [f"{root}/{name}"]

    # --- Conditional writes ---

    async def test_a_second_create_loses_and_changes_nothing(self, store: Store, root: str) -> None:
        etag = await created(store, f"{root}/key", b"first")

        assert await store.create(f"{root}/key", b"second") == LOST

        assert await store.get(f"{root}/key") == Stored(b"first", etag)

    async def test_a_replace_of_an_old_version_loses_and_changes_nothing(self, store: Store, root: str) -> None:
        old = await created(store, f"{root}/key", b"first")
        etag = await replaced(store, f"{root}/key", b"second", expected=old)

        assert await store.replace(f"{root}/key", b"third", expected=old) == LOST

        assert await store.get(f"{root}/key") == Stored(b"second", etag)

    async def test_a_replace_of_nothing_loses_and_creates_nothing(self, store: Store, root: str) -> None:
        etag = await created(store, f"{root}/other", b"body")

        assert await store.replace(f"{root}/key", b"body", expected=etag) == LOST

        assert await store.get(f"{root}/key") == MISSING

    async def test_every_version_has_its_own_etag(self, store: Store, root: str) -> None:
        etags = [await created(store, f"{root}/key", b"version 0")]
        for n in range(1, 20):
            etags.append(await replaced(store, f"{root}/key", b"version %d" % n, expected=etags[-1]))

        assert len(set(etags)) == 20

    async def test_keys_do_not_touch_each_other(self, store: Store, root: str) -> None:
        etag = await created(store, f"{root}/a", b"a")
        await created(store, f"{root}/ab", b"ab")
        await replaced(store, f"{root}/a", b"a, again", expected=etag)
        await store.delete(f"{root}/a")

        found = await store.get(f"{root}/ab")

        assert isinstance(found, Stored)
        assert found.body == b"ab"

    # --- Deleting and listing ---

    async def test_a_deleted_key_is_missing_and_deleting_again_is_fine(self, store: Store, root: str) -> None:
        await created(store, f"{root}/key", b"body")

        await store.delete(f"{root}/key")
        await store.delete(f"{root}/key")

        assert await store.get(f"{root}/key") == MISSING
        assert await keys(store, f"{root}/") == []

    async def test_a_deleted_version_cannot_be_replaced(self, store: Store, root: str) -> None:
        etag = await created(store, f"{root}/key", b"first")
        await store.delete(f"{root}/key")
        assert await store.replace(f"{root}/key", b"second", expected=etag) == LOST

        newer = await created(store, f"{root}/key", b"third")

        assert await store.replace(f"{root}/key", b"fourth", expected=etag) == LOST
        assert await store.get(f"{root}/key") == Stored(b"third", newer)

    async def test_a_listing_is_in_the_order_of_the_keys(self, store: Store, root: str) -> None:
        # A dot sorts before a slash, and a slash before a digit: directories must not be listed as a block.
        names = [f"{root}/{name}" for name in ("b", "a/2", "a/10", "a.b", "a0", "a/b/c", "B")]
        for name in names:
            await created(store, name, name.encode())

        assert await keys(store, f"{root}/") == sorted(names)

    async def test_a_prefix_is_text_and_not_a_directory(self, store: Store, root: str) -> None:
        for name in ("log/10", "log/11", "log/20", "logs/10", "lo"):
            await created(store, f"{root}/{name}", name.encode())

        assert await keys(store, f"{root}/log/1") == [f"{root}/log/10", f"{root}/log/11"]
        assert len(await keys(store, f"{root}/log")) == 4
        assert await keys(store, f"{root}/log/10/") == []
        assert await keys(store, f"{root}/none") == []

    async def test_a_listing_starts_after_the_named_key(self, store: Store, root: str) -> None:
        names = [f"{root}/log/{n:020d}" for n in range(12)]
        for name in names:
            await created(store, name, name.encode())

        assert await keys(store, f"{root}/log/", after=names[8]) == names[9:]
        assert await keys(store, f"{root}/log/", after=names[8] + "0") == names[9:]
        assert await keys(store, f"{root}/log/", after=names[-1]) == []
        assert await keys(store, f"{root}/log/", after=f"{root}/a") == names
        assert await keys(store, f"{root}/log/", after=f"{root}/z") == []

    async def test_a_listing_may_start_at_a_folder(self, store: Store, root: str) -> None:
        names = [
            f"{root}/{name}" for name in ("archive/04/a", "archive/05/a", "archive/05/b", "archive/06/c", "x-/a", "x/b")
        ]
        for name in names:
            await created(store, name, name.encode())

        for after in ("archive/05", "archive/05/"):
            assert await keys(store, f"{root}/archive/", after=f"{root}/{after}") == names[1:4]
        assert await keys(store, f"{root}/archive/", after=f"{root}/archive/04/a") == names[1:4]
        assert await keys(store, f"{root}/x", after=f"{root}/x-") == names[4:]
        assert await keys(store, f"{root}/x", after=f"{root}/x") == names[4:]
        assert await keys(store, f"{root}/archive/", after=f"{root}/archive/0") == names[:4]

    # --- Races ---

    async def test_every_acknowledged_count_is_in_the_total(
        self,
        new_client: MakeStore,
        root: str,
        spawn_url: str | None,
        spawn_options: Mapping[str, str],
    ) -> None:
        key = f"{root}/tally"
        if spawn_url is None:
            clients = [new_client() for _ in range(self.contenders)]
            acknowledged = await asyncio.gather(*(contend(one, key, self.rounds) for one in clients))
        else:
            acknowledged = await run_contenders(spawn_url, key, self.contenders, self.rounds, spawn_options)

        tally = await read_tally(new_client(), key)

        assert acknowledged == [self.rounds] * self.contenders
        assert tally.total == self.contenders * self.rounds

    @pytest.mark.parametrize("attempt", range(5))
    async def test_one_of_many_creates_wins(self, new_client: MakeStore, root: str, attempt: int) -> None:
        clients = [new_client() for _ in range(8)]
        key = f"{root}/key-{attempt}"

        outcomes = await asyncio.gather(*(clients[n % 8].create(key, b"client %d" % n) for n in range(64)))

        found = await clients[0].get(key)
        assert isinstance(found, Stored)
        author = int(found.body.split()[1])
        assert [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Won)] in ([author], [])
        # A store may leave a raced write open, but it must not tell the author that it lost.
        assert not isinstance(outcomes[author], Lost)

    async def test_a_reader_never_sees_half_a_version(self, new_client: MakeStore, root: str) -> None:
        writer, reader = new_client(), new_client()
        key = f"{root}/key"
        etag = await created(writer, key, b"\0" * 1_000_000)
        writing = asyncio.create_task(_rewrite(writer, key, etag))

        seen: set[bytes] = set()
        while not writing.done():
            found = await reader.get(key)
            assert isinstance(found, Stored)
            assert len(found.body) == 1_000_000
            assert len(set(found.body[:: 4096 - 1])) == 1
            seen.add(found.body[:1])
            await SystemClock().sleep(0)

        await writing
        assert seen

    async def test_a_cancelled_write_leaves_the_old_version_or_the_new_one(self, store: Store, root: str) -> None:
        etag = await created(store, f"{root}/key", b"old" * 100_000)
        writing = asyncio.create_task(store.replace(f"{root}/key", b"new" * 100_000, expected=etag))
        await SystemClock().sleep(0)
        writing.cancel()
        await asyncio.wait([writing])

        found = await store.get(f"{root}/key")

        assert isinstance(found, Stored)
        assert found.body in (b"old" * 100_000, b"new" * 100_000)

    # --- Syncs that fail ---

    async def test_a_create_that_could_not_be_synced_is_not_believed_until_it_is(
        self, new_client: MakeStore, root: str, break_syncs: BreakSyncs | None
    ) -> None:
        if break_syncs is None:
            pytest.skip("the server of this store answers for that")
        one, other = new_client(), new_client()
        await created(one, f"{root}/before", b"body")
        with break_syncs():
            assert isinstance(await one.create(f"{root}/key", b"nonce-1"), Unknown)

            for client in (one, other):
                # Neither that it landed nor that it was lost to itself, not even by another client.
                assert isinstance(await client.create(f"{root}/key", b"nonce-1"), Unknown)
                with pytest.raises(StorageError):
                    await client.get(f"{root}/key")
                with pytest.raises(StorageError):
                    await client.get(f"{root}/key", unless="some-etag")

        for client in (one, other):
            found = await client.get(f"{root}/key")
            assert isinstance(found, Stored)
            assert found.body == b"nonce-1"
            assert await client.create(f"{root}/key", b"nonce-1") == LOST

    async def test_a_replace_that_could_not_be_synced_is_not_believed_until_it_is(
        self, new_client: MakeStore, root: str, break_syncs: BreakSyncs | None
    ) -> None:
        if break_syncs is None:
            pytest.skip("the server of this store answers for that")
        one, other = new_client(), new_client()
        etag = await created(one, f"{root}/key", b"first")
        with break_syncs():
            assert isinstance(await one.replace(f"{root}/key", b"second", expected=etag), Unknown)

            for client in (one, other):
                assert isinstance(await client.replace(f"{root}/key", b"second", expected=etag), Unknown)
                with pytest.raises(StorageError):
                    await client.get(f"{root}/key", unless=etag)

        for client in (one, other):
            found = await client.get(f"{root}/key", unless=etag)
            assert isinstance(found, Stored)
            assert found.body == b"second"
            assert await client.get(f"{root}/key", unless=found.etag) == UNCHANGED
        assert await one.replace(f"{root}/key", b"third", expected=etag) == LOST

    async def test_a_delete_that_could_not_be_synced_is_not_believed_until_it_is(
        self, new_client: MakeStore, root: str, break_syncs: BreakSyncs | None
    ) -> None:
        if break_syncs is None:
            pytest.skip("the server of this store answers for that")
        one, other = new_client(), new_client()
        await created(one, f"{root}/key", b"first")
        with break_syncs():
            for client in (one, other, one):
                with pytest.raises(StorageError):
                    await client.delete(f"{root}/key")
            with pytest.raises(StorageError):
                await one.get(f"{root}/key")

        await one.delete(f"{root}/key")
        assert await one.get(f"{root}/key") == MISSING

    # --- Lost replies ---

    async def test_a_write_that_got_lost_can_be_told_by_reading_back(self, store: Store, root: str) -> None:
        lossy = LossyStore(store, scripted(Fault.BEFORE))

        assert isinstance(await lossy.create(f"{root}/key", b"nonce-1"), Unknown)

        assert await lossy.get(f"{root}/key") == MISSING
        assert isinstance(await lossy.create(f"{root}/key", b"nonce-1"), Won)

    async def test_a_write_whose_reply_got_lost_can_be_told_by_reading_back(self, store: Store, root: str) -> None:
        lossy = LossyStore(store, scripted(Fault.AFTER, Fault.NONE, Fault.BEFORE))

        assert isinstance(await lossy.create(f"{root}/key", b"nonce-1"), Unknown)

        # Repeated blindly it looks like a lost race; the nonce shows that the winner was oneself.
        assert await lossy.create(f"{root}/key", b"nonce-1") == LOST
        with pytest.raises(StorageError):
            await lossy.get(f"{root}/key")
        found = await lossy.get(f"{root}/key")
        assert isinstance(found, Stored)
        assert found.body == b"nonce-1"

    @pytest.mark.parametrize("seed", [1, 2])
    async def test_lost_replies_neither_lose_nor_double_a_count(
        self, new_client: MakeStore, root: str, seed: int
    ) -> None:
        key = f"{root}/tally"
        rng = Random(seed)
        clients = [LossyStore(new_client(), by_chance(rng, before=0.15, after=0.15)) for _ in range(4)]

        acknowledged = await asyncio.gather(*(contend(client, key, 15) for client in clients))

        assert sum(client.faults for client in clients) > 0
        assert (await read_tally(new_client(), key)).total == sum(acknowledged) == 4 * 15


# --- Helpers that adapters' own tests may use, too ---


async def created(store: Store, key: str, body: bytes) -> str:
    outcome = await store.create(key, body)
    assert isinstance(outcome, Won), outcome
    return outcome.etag


async def replaced(store: Store, key: str, body: bytes, *, expected: str) -> str:
    outcome = await store.replace(key, body, expected=expected)
    assert isinstance(outcome, Won), outcome
    return outcome.etag


async def keys(store: Store, prefix: str, after: str | None = None) -> list[str]:
    return [key async for key in store.list(prefix, after=after)]


async def run_contenders(url: str, key: str, contenders: int, rounds: int, options: Mapping[str, str]) -> list[int]:
    """Let processes count on one key at the same time; how many rounds each of them saw acknowledged."""
    processes = [await _start_contender(url, key, rounds) for _ in range(contenders)]
    try:
        # They start at very different moments: let none begin before all are there.
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        line = msgspec.json.encode(options) + b"\n"
        results = await asyncio.gather(*(process.communicate(line) for process in processes))
        return [int(output) for output, _ in results]
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _start_contender(url: str, key: str, rounds: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "casque.testing.contender", url, key, str(rounds),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def _rewrite(store: Store, key: str, etag: str) -> None:
    for n in range(1, 21):
        etag = await replaced(store, key, bytes([n]) * 1_000_000, expected=etag)
