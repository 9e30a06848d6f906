"""The document layout: the whole queue is `queue.json`, rewritten by compare-and-set.

A writer that is alone never reads: it knows the version it wrote last and replaces that. A write whose outcome is
unknown is settled by reading back: the document names the last batch of each recent writer.
"""

from __future__ import annotations

from typing import assert_never

from casque.clock import Clock, Random, new_id
from casque.codec.document import LAYOUT, DocumentCodec
from casque.codec.head import KEY, read_layout
from casque.errors import CorruptQueueError, StorageError, StoreAccessError, UnknownOutcomeError, UnsafeStoreError
from casque.journal.patience import Patience
from casque.journal.port import Appended, Batch, Conflict, Landed, Refreshed
from casque.settings import QueueSettings
from casque.state import Limits, State
from casque.state.events import subject
from casque.storage.port import Lost, Missing, Outcome, Store, Stored, Unchanged, Unknown, Won


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

    async def load(self) -> State:
        return await self._read(None)

    async def refresh(self, state: State) -> Refreshed:
        return Refreshed(await self._read(state))

    def maintenance(self, state: State, writer: str) -> None:
        """Every commit writes the whole queue: nothing is ever left to tidy."""

    async def append(self, state: State, batch: Batch) -> Appended:
        appended = await self._append(state, batch)
        if isinstance(appended, Conflict):
            self.undo(state)
        return appended

    async def _append(self, state: State, batch: Batch) -> Appended:
        self._touch(state)
        writers = state.writers_with(batch.writer, batch.number)
        body = self._codec.encode(state, version=state.position + 1, writers=writers)
        patience: Patience | None = None
        sent = False
        while True:
            trouble: BaseException
            try:
                outcome = await self._write(body)
            except (StoreAccessError, UnsafeStoreError):
                raise
            except StorageError as error:
                trouble = error  # surely nothing was written by this attempt
            else:
                match outcome:
                    case Won(etag=etag):
                        self._etag = etag
                        self._queue_id = self._codec.queue_id
                        state.commit(writer=batch.writer, batch=batch.number, at_ms=batch.at_ms)
                        return Landed(state)
                    case Lost():
                        # Without an unanswered attempt there is time to read until after the back-off.
                        return await self._settle_lost(state, batch) if sent else Conflict()
                    case Unknown(cause=cause):
                        trouble, sent = cause, True
                    case _ as never:
                        assert_never(never)
            patience = patience or Patience(self._settings, self._clock, self._rng)
            if not await patience.wait():
                raise _gave_up(trouble, sent=sent) from trouble
            if sent and (settled := await self._settle_unknown(state, batch)) is not None:
                return settled

    def undo(self, state: State) -> None:
        self._touch(state)
        state.rollback()

    async def _write(self, body: bytes) -> Outcome:
        # The first write creates: two processes that start together must not both believe they were first.
        if self._etag is None:
            return await self._store.create(KEY, body)
        return await self._store.replace(KEY, body, expected=self._etag)

    async def _settle_lost(self, state: State, batch: Batch) -> Appended:
        """Somebody was first, and it may have been our own unanswered attempt."""
        fresh = await self._read_patiently()
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

    async def _settle_unknown(self, state: State, batch: Batch) -> Appended | None:
        """None if the document is as before: the write has not landed, or not yet, and may be sent again."""
        try:
            read = await self._store.get(KEY, unless=self._etag)
        except (StoreAccessError, UnsafeStoreError):
            raise
        except StorageError:
            return None  # sending the same bytes again is always safe
        if isinstance(read, Unchanged) or (isinstance(read, Missing) and self._etag is None):
            return None
        return await self._settle_lost(state, batch)

    async def _read_patiently(self) -> State:
        patience = Patience(self._settings, self._clock, self._rng)
        try:
            return await patience.insist(lambda: self._read(None))
        except StorageError as error:
            raise _gave_up(error, sent=True) from error

    async def _read(self, known: State | None) -> State:
        read = await self._store.get(KEY, unless=self._etag if known is not None else None)
        match read:
            case Unchanged():
                assert known is not None
                return known
            case Missing():
                if self._etag is not None:
                    raise CorruptQueueError(
                        KEY, "was there before and is gone: somebody deleted it. Restore it, or reopen the queue anew"
                    )
                return known if known is not None else State(self._limits)
            case Stored(body=body, etag=etag):
                head = read_layout(KEY, body)
                if head.layout != LAYOUT:
                    raise CorruptQueueError(KEY, f"this queue has the layout {head.layout!r}, not {LAYOUT!r}")
                if self._queue_id is not None and head.queue_id not in (None, self._queue_id):
                    raise CorruptQueueError(
                        KEY, f"another queue ({head.queue_id}) was put in the place of this one ({self._queue_id})"
                    )
                fresh = self._codec.decode(body, self._limits)
                self._etag = etag
                self._queue_id = head.queue_id
                return fresh
            case _ as never:
                assert_never(never)

    def _touch(self, state: State) -> None:
        self._codec.touch([job_id for event in state.events if (job_id := subject(event)) is not None])


def _gave_up(cause: BaseException, *, sent: bool) -> StorageError | UnknownOutcomeError:
    if sent:
        return UnknownOutcomeError(f"the store did not say whether a write to {KEY} landed: {cause}")
    return StorageError(f"the store keeps failing, and nothing was written: {cause}", cause)
