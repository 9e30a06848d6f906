"""What every cloud store has to do beyond `StoreSuite`: tell won, lost and unknown apart on a bad line.

A subclass says which server there is (`server`), and how credentials look that it refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import AsyncIterator, Mapping
from typing import ClassVar

import pytest
import pytest_asyncio

from casque.clock import new_nonce, system_random
from casque.errors import InvalidInputError, StorageError, StoreAccessError
from casque.storage.port import LOST, MISSING, Lost, Store, Stored, Unknown, Won
from casque.storage.url import open_store
from casque.testing.contender import contend, read_tally
from casque.testing.store_suite import MakeStore, StoreSuite, created, keys
from tests.support.proxy import Fault, Proxy
from tests.support.servers import Server

BEFORE = [
    Fault.DROP_BEFORE,
    Fault.INTERNAL_ERROR,
    Fault.UNAVAILABLE,
    Fault.TOO_MANY,
]


class CloudSuite(StoreSuite):
    """The store suite on a real server, and the same server behind a line that fails on request."""

    wrong_credentials: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture
    def server(self) -> Server:
        raise NotImplementedError("give the suite a `server` fixture")

    @pytest.fixture
    def spawn_url(self, server: Server) -> str:
        return server.fresh_url()

    @pytest.fixture
    def spawn_options(self, server: Server) -> Mapping[str, str]:
        return server.options

    @pytest.fixture
    def make_store(self, spawn_url: str, spawn_options: Mapping[str, str]) -> MakeStore:
        return lambda: open_store(spawn_url, options=spawn_options)

    @pytest_asyncio.fixture
    async def proxy(self, server: Server) -> AsyncIterator[Proxy]:
        async with Proxy(server.endpoint) as proxy:
            yield proxy

    @pytest.fixture
    def shaky(self, server: Server, proxy: Proxy, spawn_url: str) -> Store:
        """The same place as `store`, through the proxy."""
        return open_store(spawn_url, options=server.through(proxy.endpoint).options)

    @pytest.fixture
    def hasty(self, server: Server, proxy: Proxy, spawn_url: str) -> Store:
        """Through the proxy, and not willing to wait."""
        options = {**server.through(proxy.endpoint).options, "timeout": "0.3"}
        return open_store(spawn_url, options=options)

    # --- Outcomes of conditional writes ---

    async def test_a_create_whose_answer_is_lost_is_unknown_and_has_landed(
        self, store: Store, shaky: Store, proxy: Proxy, root: str
    ) -> None:
        proxy.inject(Fault.DROP_AFTER, methods={"PUT"})

        outcome = await shaky.create(f"{root}/key", b"body")

        assert isinstance(outcome, Unknown)
        assert isinstance(await store.get(f"{root}/key"), Stored)
        assert proxy.requests["PUT"] == 1

    async def test_a_replace_whose_answer_is_lost_is_unknown_and_has_landed(
        self, store: Store, shaky: Store, proxy: Proxy, root: str
    ) -> None:
        etag = await created(store, f"{root}/key", b"first")
        proxy.inject(Fault.DROP_AFTER, methods={"PUT"})

        outcome = await shaky.replace(f"{root}/key", b"second", expected=etag)

        assert isinstance(outcome, Unknown)
        found = await store.get(f"{root}/key")
        assert isinstance(found, Stored)
        assert found.body == b"second"
        assert proxy.requests["PUT"] == 1

    @pytest.mark.parametrize("fault", BEFORE)
    async def test_a_write_that_failed_is_unknown_and_is_not_repeated(
        self, store: Store, shaky: Store, proxy: Proxy, root: str, fault: Fault
    ) -> None:
        etag = await created(store, f"{root}/there", b"first")
        proxy.inject(fault, methods={"PUT"})

        assert isinstance(await shaky.create(f"{root}/key", b"body"), Unknown)
        assert isinstance(await shaky.replace(f"{root}/there", b"second", expected=etag), Unknown)

        assert proxy.requests["PUT"] == 2
        assert await store.get(f"{root}/key") == MISSING
        assert await store.get(f"{root}/there") == Stored(b"first", etag)

    async def test_a_write_refused_as_raced_is_lost_although_nobody_was_there(
        self, store: Store, shaky: Store, proxy: Proxy, root: str
    ) -> None:
        etag = await created(store, f"{root}/there", b"first")
        proxy.inject(Fault.CONFLICT, methods={"PUT"})

        assert await shaky.create(f"{root}/key", b"body") == LOST
        assert await shaky.replace(f"{root}/there", b"second", expected=etag) == LOST

        assert await store.get(f"{root}/key") == MISSING
        assert await store.get(f"{root}/there") == Stored(b"first", etag)

    @pytest.mark.parametrize(("fault", "landed"), [(Fault.HANG, False), (Fault.HANG_AFTER, True)])
    async def test_a_write_that_takes_too_long_is_unknown(
        self, store: Store, hasty: Store, proxy: Proxy, root: str, fault: Fault, landed: bool
    ) -> None:
        proxy.inject(fault, methods={"PUT"})

        assert isinstance(await hasty.create(f"{root}/key", b"body"), Unknown)

        assert isinstance(await store.get(f"{root}/key"), Stored) is landed

    async def test_a_cancelled_write_says_so_and_leaves_the_store_usable(
        self, store: Store, shaky: Store, proxy: Proxy, root: str
    ) -> None:
        proxy.inject(Fault.HANG_AFTER, methods={"PUT"}, times=1)
        writing = asyncio.create_task(shaky.create(f"{root}/key", b"body"))
        await proxy.requested("PUT")
        writing.cancel()

        with pytest.raises(asyncio.CancelledError):
            await writing

        assert isinstance(await shaky.create(f"{root}/other", b"body"), Won)
        # Cancelled is not undone: here the request had been sent.
        assert isinstance(await store.create(f"{root}/key", b"again"), Lost | Won)

    @pytest.mark.parametrize("seed", [3])
    async def test_no_count_is_lost_or_doubled_on_a_bad_line(
        self, server: Server, proxy: Proxy, spawn_url: str, root: str, seed: int
    ) -> None:
        proxy.rng.seed(seed)
        for fault in (Fault.DROP_AFTER, Fault.DROP_BEFORE, Fault.UNAVAILABLE):
            proxy.inject(fault, chance=0.1, methods={"PUT"})
        clients = [open_store(spawn_url, options=server.through(proxy.endpoint).options) for _ in range(4)]

        acknowledged = await asyncio.gather(*(contend(client, f"{root}/tally", 10) for client in clients))

        assert proxy.faults[Fault.DROP_AFTER] > 0
        assert sum(acknowledged) == 40
        assert (await read_tally(clients[0], f"{root}/tally")).total == 40

    async def test_a_token_that_the_server_would_take_for_a_wildcard_loses(self, store: Store, root: str) -> None:
        etag = await created(store, f"{root}/key", b"body")

        for wildcard in ("*", "0"):
            assert await store.replace(f"{root}/key", b"other", expected=wildcard) == LOST
            assert await store.replace(f"{root}/none", b"other", expected=wildcard) == LOST
            assert await store.get(f"{root}/key", unless=wildcard) == Stored(b"body", etag)
        assert await store.get(f"{root}/none") == MISSING

    # --- Reads, lists and deletes ---

    async def test_reads_lists_and_deletes_get_over_a_short_failure(
        self, store: Store, shaky: Store, proxy: Proxy, root: str
    ) -> None:
        etag = await created(store, f"{root}/key", b"body")

        for fault in (Fault.UNAVAILABLE, Fault.DROP_BEFORE, Fault.DROP_AFTER):
            proxy.inject(fault, times=1)
            assert await shaky.get(f"{root}/key") == Stored(b"body", etag)
            proxy.inject(fault, times=1)
            assert await keys(shaky, f"{root}/") == [f"{root}/key"]
        proxy.inject(Fault.UNAVAILABLE, times=1)
        await shaky.delete(f"{root}/key")

        assert await store.get(f"{root}/key") == MISSING

    async def test_a_read_that_keeps_failing_is_a_storage_error(self, shaky: Store, proxy: Proxy, root: str) -> None:
        proxy.inject(Fault.UNAVAILABLE)

        with pytest.raises(StorageError, match="503") as caught:
            await shaky.get(f"{root}/key")

        assert not isinstance(caught.value, StoreAccessError)
        assert caught.value.cause is not None

    # --- Refusals ---

    @pytest.mark.parametrize("verb", ["get", "create", "replace", "delete", "list"])
    async def test_wrong_credentials_are_an_access_error(
        self, server: Server, spawn_url: str, root: str, verb: str
    ) -> None:
        store = open_store(spawn_url, options={**server.options, **self.wrong_credentials})

        with pytest.raises(StoreAccessError, match="credentials"):
            await _call(store, verb, f"{root}/key")

    @pytest.mark.parametrize("verb", ["get", "create", "replace", "delete", "list"])
    async def test_a_missing_bucket_is_named(self, server: Server, root: str, verb: str) -> None:
        bucket = f"absent-{new_nonce(system_random())}"
        store = open_store(f"{server.scheme}://{bucket}/{root}", options=server.options)

        with pytest.raises(StoreAccessError, match=bucket):
            await _call(store, verb, "key")

    async def test_a_server_that_is_not_there_is_a_storage_error(self, server: Server, root: str) -> None:
        async with Proxy(server.endpoint) as gone:
            pass
        store = open_store(f"{server.url}/{root}", options=server.through(gone.endpoint).options)

        assert isinstance(await store.create("key", b"body"), Unknown)
        with pytest.raises(StorageError):
            await store.get("key")

    @pytest.mark.parametrize("key", ["", "/a", "a//b", "a/", "../a", "a/./b", "a\0b"])
    async def test_what_is_not_a_key_is_refused(self, store: Store, key: str) -> None:
        with pytest.raises(InvalidInputError):
            await store.create(key, b"body")

    # --- What a store shows and carries ---

    async def test_the_text_of_a_store_shows_no_secret(self, server: Server, store: Store) -> None:
        secrets = [v for name, v in server.options.items() if "key" in name or "token" in name]

        assert server.endpoint in repr(store)
        assert not [secret for secret in secrets if secret in repr(store)]

    async def test_a_store_works_after_pickling(self, store: Store, root: str) -> None:
        etag = await created(store, f"{root}/key", b"body")

        copy: Store = pickle.loads(pickle.dumps(store))

        assert await copy.get(f"{root}/key") == Stored(b"body", etag)

    async def test_a_closed_store_opens_again_when_used(self, store: Store, root: str) -> None:
        etag = await created(store, f"{root}/key", b"body")

        await store.close()
        await store.close()

        assert await store.get(f"{root}/key") == Stored(b"body", etag)


async def _call(store: Store, verb: str, key: str) -> None:
    with contextlib.suppress(StopAsyncIteration):
        match verb:
            case "get":
                await store.get(key)
            case "create":
                await store.create(key, b"body")
            case "replace":
                await store.replace(key, b"body", expected="1")
            case "delete":
                await store.delete(key)
            case _:
                await keys(store, "")
