"""Assembles a store, a journal and an engine into a queue that runs in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from casque.clock import Clock, Random, SystemClock, new_nonce, system_random
from casque.codec.document import LAYOUT as DOCUMENT
from casque.codec.head import Head
from casque.codec.log import LAYOUT as LOG
from casque.codec.ring import SHARDS_MAX, RingHead, shard_prefix
from casque.engine.blobs import Blobs
from casque.engine.committer import Committer
from casque.engine.direct import DirectCommit
from casque.engine.embedded import EmbeddedService
from casque.engine.group import GroupCommit
from casque.engine.history import History
from casque.engine.operation import Executor
from casque.engine.staging import Staging
from casque.environment import Environment
from casque.errors import InvalidInputError
from casque.journal.archive import forms_of
from casque.journal.opening import JOURNALS, open_journal
from casque.journal.port import Batch, Opened
from casque.request_budget import RequestBudget
from casque.ring.admissions import Books
from casque.ring.building import Builder
from casque.ring.local import LocalShard
from casque.ring.root import Root
from casque.ring.service import RingService
from casque.ring.shards import Opener, OwnShard, Shard, Shards
from casque.settings import QueueSettings
from casque.state import State
from casque.storage.adapted import SingleObjectStore
from casque.storage.budgeted import BudgetedStore
from casque.storage.port import Store
from casque.storage.prefixed import PrefixedStore
from casque.storage.url import as_store

__all__ = ["SHARDS_MAX", "Parts", "as_store"]


class Parts(Environment):
    """The environment of an embedded queue, its store, and what is assembled from them."""

    def __init__(
        self,
        store: Store,
        settings: QueueSettings,
        *,
        layout: str | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        budget: RequestBudget | None = None,
    ) -> None:
        """`budget`: of requests that this store counts already, as in a shard of a ring."""
        one_object = isinstance(store, SingleObjectStore)
        if layout is None:
            layout = DOCUMENT if one_object else LOG
        if layout not in JOURNALS:
            raise InvalidInputError(f"layout must be one of {', '.join(JOURNALS)}, not {layout!r}")
        if layout != DOCUMENT and one_object:
            raise InvalidInputError("a storage of one object holds only the document layout; open the queue by URL")
        # A single object has no room for an archive.
        fitting = replace(settings, archive=False) if one_object else settings
        clock = clock or SystemClock()
        if budget is None:
            budget = RequestBudget(settings, clock)
            store = _counted(store, budget)
        super().__init__(fitting, clock, rng or system_random(), budget)
        forms_of(self)  # refuse Parquet here, where the caller sees it, and not when the first range is due
        self.layout = layout
        self.store = store

    async def open_journal(self, before: Head | None = None) -> Opened:
        """`before`: the head of the queue that was open until now."""
        return await open_journal(self.store, self, before, layout=self.layout)

    def committer(self) -> Committer:
        return Committer(self.open_journal, self)

    async def read(self) -> State:
        """Read the stored state, independently of running operations. Read-only."""
        committer = self.committer()
        await committer.open()
        return committer.state

    async def create(self) -> None:
        """Make an empty queue, with a first commit that has no events. If another process is faster, its queue is as
        good."""
        opened = await self.open_journal()
        batch = Batch(writer=new_nonce(self.rng), number=1, at_ms=self.clock.wall_ms())
        await opened.journal.append(opened.state, batch)

    def group(self) -> GroupCommit:
        return GroupCommit(self.committer(), self)

    def history(self) -> History:
        return History(self.store, self)

    def blobs(self, *, tolerant: bool = False) -> Blobs | None:
        """None on a single-object store, which holds payloads of any size in that object."""
        if isinstance(self.store, SingleObjectStore):
            return None
        return Blobs(self.store, self, tolerant=tolerant)

    def staging(self) -> Staging | None:
        """None on a single-object store, for the same reason."""
        if isinstance(self.store, SingleObjectStore):
            return None
        return Staging(self.store, self)

    def shard(self, token: int) -> Parts:
        """The parts of one shard of this ring."""
        below = PrefixedStore(self.store, shard_prefix(token))
        return Parts(below, self.settings, layout=LOG, clock=self.clock, rng=self.rng, budget=self.budget)

    def root(self) -> Root:
        return Root(self.store, self)

    def ring(self, opener: Opener | None = None) -> RingService:
        shards = Shards(self.root(), opener or self._shard, clock=self.clock)
        return RingService(shards, self, books=self.books())

    def books(self) -> Books:
        """A ring's records of admissions."""

        def beside(token: int) -> Staging:
            staging = self.shard(token).staging()
            assert staging is not None, "shards lie on stores of many objects"
            return staging

        return Books(self.store, beside, self)

    def builder(self, led: Callable[[int], Shard] | None = None) -> Builder:
        """Creates a ring and changes its size; `led` connects to a shard through the broker that leads it."""
        if isinstance(self.store, SingleObjectStore):
            raise InvalidInputError("a storage of one object has no room for shards; give a URL")
        return Builder(self.root(), self._shard, self._read_shard, self, led=led)

    async def _read_shard(self, token: int) -> State:
        return await self.shard(token).read()

    def _shard(self, token: int) -> OwnShard:
        parts = self.shard(token)
        group = parts.group()
        return OwnShard(token, group, parts.shard_service(token, group, parts.history()))

    def shard_service(
        self,
        token: int,
        executor: Executor,
        history: History | None,
        root: Callable[[], Awaitable[RingHead]] | None = None,
    ) -> LocalShard:
        """The service of a shard; these parts are those of the shard."""
        return LocalShard(
            token, executor, self.settings, history, blobs=self.blobs(tolerant=True), staging=self.staging(), root=root
        )

    def service(self, executor: Executor, *, tolerant: bool = True) -> EmbeddedService:
        return EmbeddedService(
            executor,
            self.settings,
            self.history(),
            blobs=self.blobs(tolerant=tolerant),
            staging=self.staging(),
        )

    def direct(self) -> DirectCommit:
        return DirectCommit(self.committer())


def _counted(store: Store, budget: RequestBudget) -> Store:
    if not budget.limited:
        return store
    return store.counted(budget) if isinstance(store, SingleObjectStore) else BudgetedStore(store, budget)
