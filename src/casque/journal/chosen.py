"""Opens a queue in its layout, or creates a new one in the requested layout."""

from __future__ import annotations

from collections.abc import Callable

from casque.codec.document import LAYOUT as DOCUMENT
from casque.codec.head import KEY, Head, Owner, check_layout, check_same_queue, check_single, read_layout
from casque.codec.log import LAYOUT as LOG
from casque.environment import Environment
from casque.errors import CorruptQueueError, QueueReplacedError
from casque.journal.document import DocumentJournal
from casque.journal.log import LogJournal
from casque.journal.port import Appended, Batch, Journal, Refreshed, Sighting, Work
from casque.state import State
from casque.storage.port import Store, Stored, locate

OPENINGS_MAX = 3

JOURNALS: dict[str, type[DocumentJournal | LogJournal]] = {DOCUMENT: DocumentJournal, LOG: LogJournal}


class ChosenJournal:
    """The journal for the layout in `queue.json`; `layout` applies to a queue that does not exist yet."""

    def __init__(self, store: Store, env: Environment, *, layout: str) -> None:
        self._store = store
        self._layout = layout
        self._env = env
        self._journal: Journal | None = None
        self._seen: Head | None = None
        """The head in `queue.json` when it was first seen."""

    @property
    def whole(self) -> bool:
        return self._chosen.whole

    async def load(self) -> State:
        for _ in range(OPENINGS_MAX):
            first = self._seen is None
            try:
                return await self._load()
            except QueueReplacedError:
                # Converted while it was opened for the first time: no caller has seen the old layout.
                if not first:
                    raise
                self._seen = None
        return await self._load()

    async def _load(self) -> State:
        read = await self._store.get(KEY)
        if not isinstance(read, Stored) and (leftover := await self._leftover()) is not None:
            # Another process may have created the queue since the first read.
            read = await self._store.get(KEY)
            if not isinstance(read, Stored):
                raise CorruptQueueError(
                    KEY, f"is missing although there is {leftover}: it was deleted. Restore it from a backup"
                )
        layout = self._layout
        if isinstance(read, Stored):
            head = check_single(read_layout(KEY, read.body, locate(self._store, KEY)))
            if self._seen is not None:
                # A restart after a failure continues with the same queue, or fails.
                check_layout(head, self._seen.layout)
                check_same_queue(head, self._seen.queue_id)
            self._seen, layout = head, head.layout
        if layout not in JOURNALS:
            raise CorruptQueueError(KEY, f"the layout {layout!r} is none that this release knows. Upgrade casque")
        journal = JOURNALS[layout](self._store, self._env)
        self._journal = journal
        return await journal.load(read if isinstance(read, Stored) else None)

    async def _leftover(self) -> str | None:
        """A segment of a queue without a head. Only looked for before a first commit."""
        async for key in self._store.list("log/"):
            return key
        return None

    async def refresh(self, state: State) -> Refreshed:
        return await self._chosen.refresh(state)

    def hesitation_s(self) -> float:
        return self._chosen.hesitation_s()

    @property
    def takes_hold(self) -> bool:
        return self._chosen.takes_hold

    async def hold(self, state: State, batch: Batch) -> Refreshed:
        return await self._chosen.hold(state, batch)

    async def append(self, state: State, batch: Batch) -> Appended:
        return await self._chosen.append(state, batch)

    def maintenance(self, state: State, writer: str) -> Work | None:
        return self._chosen.maintenance(state, writer)

    @property
    def sole(self) -> bool:
        return self._chosen.sole

    def sighting(self, state: State) -> Sighting:
        return self._chosen.sighting(state)

    async def lead(
        self, state: State, owner: Owner, batch: Batch, *, lease_ms: int, seen: Sighting | None
    ) -> Refreshed | None:
        return await self._chosen.lead(state, owner, batch, lease_ms=lease_ms, seen=seen)

    async def beat(self, state: State, batch: Batch) -> Refreshed:
        return await self._chosen.beat(state, batch)

    async def resign(self, state: State, batch: Batch) -> None:
        await self._chosen.resign(state, batch)

    def due_ms(self) -> int | None:
        return self._chosen.due_ms()

    def hurry(self, hurried: bool) -> None:
        self._chosen.hurry(hurried)

    def wants_a_commit(self, state: State) -> bool:
        return self._chosen.wants_a_commit(state)

    def listen(self, heard: Callable[[int], None]) -> Callable[[], None] | None:
        return self._chosen.listen(heard)

    def undo(self, state: State) -> None:
        self._chosen.undo(state)

    @property
    def _chosen(self) -> Journal:
        assert self._journal is not None, "load() comes first"
        return self._journal
