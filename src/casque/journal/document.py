"""The document layout: the whole queue is `queue.json`, rewritten by compare-and-set.

A writer that is alone never reads: it knows the version it wrote last and replaces that. A write whose outcome is
unknown is settled by reading back: the document names the last batch of each recent writer.
"""

from __future__ import annotations

from typing import assert_never

from casque.clock import Clock, Random, new_id
from casque.codec.document import LAYOUT, DocumentCodec
from casque.codec.head import KEY, check_layout, check_same_queue, gone, read_layout
from casque.errors import StorageError, StoreAccessError, UnknownOutcomeError, UnsafeStoreError
from casque.journal.patience import Patience
from casque.journal.port import Appended, Batch, Conflict, Landed, Refreshed
from casque.journal.tries import Tries
from casque.settings import QueueSettings
from casque.state import Limits, State
from casque.state.events import subject
from casque.storage.port import Lost, Missing, Outcome, Store, Stored, Unchanged, Won


class DocumentJournal:
    """One `queue.json` on one store."""

    whole = True

    def __init__(
        self,
        store: Store,
        *,
        settings: QueueSettings,
        clock: Clock,
        rng: Random,
        limits: Limits | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._limits = limits or Limits()
        self._codec = DocumentCodec(KEY, new_id(rng))
        self._etag: str | None = None
        self._queue_id: str | None = None

    async def load(self, found: Stored | None = None) -> State:
        """`found` is the document, if somebody has just read it."""
        return await self._read(None) if found is None else self._adopt(found)

    async def refresh(self, state: State) -> Refreshed:
        return Refreshed(await self._read(state))

    def maintenance(self, state: State, writer: str) -> None:
        """Every commit writes the whole queue: nothing is ever left to tidy."""

    def hesitation_s(self) -> float:
        return 0  # whoever writes whole queues has more to be fair about: see the committer

    async def append(self, state: State, batch: Batch) -> Appended:
        appended = await self._append(state, batch)
        if isinstance(appended, Conflict):
            self.undo(state)
        return appended

    async def _append(self, state: State, batch: Batch) -> Appended:
        self._touch(state)
        writers = state.writers_with(batch.writer, batch.number)
        body = self._codec.encode(state, version=state.position + 1, writers=writers)
        tries = Tries(f"a write to {KEY}", self._patience)
        while True:
            match await tries.attempt(lambda: self._write(body)):
                case Won(etag=etag):
                    self._etag = etag
                    self._queue_id = self._codec.queue_id
                    state.commit(writer=batch.writer, batch=batch.number, at_ms=batch.at_ms)
                    return Landed(state)
                case Lost():
                    # Without an unanswered attempt there is time to read until after the back-off.
                    return await self._settle_lost(state, batch, tries) if tries.sent else Conflict()
                case None:
                    if tries.sent and (settled := await self._settle_unknown(state, batch, tries)) is not None:
                        return settled

    def undo(self, state: State) -> None:
        self._touch(state)
        state.rollback()

    async def _write(self, body: bytes) -> Outcome:
        # The first write creates: two processes that start together must not both believe they were first.
        if self._etag is None:
            return await self._store.create(KEY, body)
        return await self._store.replace(KEY, body, expected=self._etag)

    async def _settle_lost(self, state: State, batch: Batch, tries: Tries) -> Appended:
        """Somebody was first, and it may have been our own unanswered attempt."""
        try:
            fresh = await self._patience().insist(lambda: self._read(None))
        except StorageError as error:
            raise tries.gave_up(error) from error
        if fresh.writers.get(batch.writer) == batch.number:
            return Landed(fresh)
        moved = fresh.position - state.position
        if batch.writer not in fresh.writers and (moved > self._limits.writers_max or self._queue_id is None):
            # So many writers came by that our name may have been pushed out of the table, or jqueue dropped it.
            raise UnknownOutcomeError(
                f"a write to {KEY} went unanswered, and the document has moved on by {moved} commits since: "
                "it cannot be told whether the write landed"
            )
        return Conflict(Refreshed(fresh))

    async def _settle_unknown(self, state: State, batch: Batch, tries: Tries) -> Appended | None:
        """None if the document is as before: the write has not landed, or not yet, and may be sent again."""
        try:
            read = await self._store.get(KEY, unless=self._etag)
        except (StoreAccessError, UnsafeStoreError) as error:
            raise tries.gave_up(error) from error
        except StorageError:
            return None  # sending the same bytes again is always safe
        if isinstance(read, Unchanged) or (isinstance(read, Missing) and self._etag is None):
            return None
        return await self._settle_lost(state, batch, tries)

    def _patience(self) -> Patience:
        return Patience(self._settings, self._clock, self._rng)

    async def _read(self, known: State | None) -> State:
        read = await self._store.get(KEY, unless=self._etag if known is not None else None)
        match read:
            case Unchanged():
                assert known is not None
                return known
            case Missing():
                if self._etag is not None:
                    raise gone()
                return known if known is not None else State(self._limits)
            case Stored() as stored:
                return self._adopt(stored)
            case _ as never:
                assert_never(never)

    def _adopt(self, stored: Stored) -> State:
        head = read_layout(KEY, stored.body)
        check_layout(head, LAYOUT)
        check_same_queue(head, self._queue_id)
        fresh = self._codec.decode(stored.body, self._limits)
        self._etag = stored.etag
        self._queue_id = head.queue_id
        return fresh

    def _touch(self, state: State) -> None:
        self._codec.touch([job_id for event in state.events if (job_id := subject(event)) is not None])
