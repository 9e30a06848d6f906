"""The log layout: a commit is one conditional create of the next numbered object.

Its cost is that of its events, however deep the queue. Several writers may append (open mode): losing a slot is
ordinary, the winner's segment is applied and the next slot tried. The same bytes go to the same slot until it is known
who won it, and after a win the head is read, because a slot that had been collected can be won by somebody who
overslept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, assert_never

import msgspec

from casque.clock import Clock, Random, new_id, new_nonce, yield_once
from casque.codec.head import KEY, read_layout
from casque.codec.log import (
    LAYOUT,
    START,
    LogHead,
    Segment,
    SnapshotRef,
    View,
    decode_head,
    decode_segment,
    decode_snapshot,
    digest,
    encode_head,
    encode_segment,
    encode_snapshot,
    segment_key,
    snapshot_key,
)
from casque.errors import CorruptQueueError, StorageError, StoreAccessError, UnknownOutcomeError, UnsafeStoreError
from casque.journal.patience import Patience
from casque.journal.port import Appended, Batch, Conflict, Landed, Refreshed
from casque.settings import QueueSettings
from casque.state import Event, Limits, State
from casque.storage.port import Lost, Missing, Read, Store, Stored, Unchanged, Unknown, Won

READ_AHEAD = 16
"""Segments asked for at once when a whole tail has to be read."""
SNAPSHOT_BYTES = 4 * 1024 * 1024
SNAPSHOT_SEGMENTS = 512


class LogJournal:
    """Segments, snapshots and a head under one root of a store."""

    whole = False

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
        self._head: LogHead | None = None
        self._head_etag: str | None = None
        self._chain = START
        """The digest of the segment that the state ends with."""
        self._bytes_since = 0
        self._segments_since = 0

    # --- Reading ---

    async def load(self) -> State:
        while True:
            head = await self._read_head()
            if head is None:
                self._chain = START
                return State(self._limits)
            state = await self._load_snapshot(head)
            base = state.position
            self._apply(state, await self._read_tail(base, self._chain, ahead=READ_AHEAD))
            # Segments on the way may have been collected while they were read: the head tells.
            await self._read_head()
            if self._known_head().floor <= base:
                return state

    async def refresh(self, state: State) -> Refreshed:
        if self._head is None and await self._read_head() is None:
            return Refreshed(state)
        base = state.position
        found = await self._read_tail(base, self._chain)
        # The head comes last: only it can tell whether the slots just read are still the ones that were written first.
        await self._read_head()
        if self._known_head().floor > base:
            return Refreshed(await self.load())
        return Refreshed(state, self._apply(state, found))

    async def _read_tail(self, position: int, chain: str, *, ahead: int = 1) -> list[tuple[Segment, bytes]]:
        """The segments after `position` up to the first missing slot; more at once the more there turn out to be."""
        found: list[tuple[Segment, bytes]] = []
        queue_id = self._queue_id()
        while True:
            first = position + len(found) + 1
            reads = await asyncio.gather(*(self._get(segment_key(first + n)) for n in range(ahead)))
            for n, read in enumerate(reads):
                if not isinstance(read, Stored):
                    if any(isinstance(later, Stored) for later in reads[n:]):
                        await self._check_gap(first + n)
                        break  # it has been written since: go on from there
                    return found
                segment = decode_segment(read.body, queue_id=queue_id, position=first + n, prev=chain)
                chain = digest(read.body)
                found.append((segment, read.body))
            ahead = min(ahead * 2, READ_AHEAD)

    async def _check_gap(self, position: int) -> None:
        """A slot was missing although a later one is there: written in between, collected, or lost.

        Raises:
            CorruptQueueError: lost. Going on from here would fork the history.
        """
        if isinstance(await self._get(segment_key(position)), Stored):
            return
        await self._read_head()
        if self._known_head().floor < position:
            raise CorruptQueueError(
                segment_key(position), "the segment is missing while later ones are there. Restore it from a backup"
            )
        raise StorageError(f"{segment_key(position)} was collected while it was being read; read again")

    async def _get(self, key: str) -> Read:
        # One by one: of many reads at once, one or other always fails on a bad day.
        return await self._patience().insist(lambda: self._store.get(key))

    def _apply(self, state: State, found: list[tuple[Segment, bytes]]) -> list[Event]:
        events: list[Event] = []
        for segment, body in found:
            try:
                state.replay(segment.events, writer=segment.writer, batch=segment.batch, at_ms=segment.at)
            except (KeyError, AssertionError) as error:
                raise CorruptQueueError(
                    segment_key(segment.position), f"its events do not fit the queue as it was before it ({error!r})"
                ) from error
            events += segment.events
            self._advance(body)
        return events

    def _advance(self, body: bytes) -> None:
        self._chain = digest(body)
        self._bytes_since += len(body)
        self._segments_since += 1

    # --- Committing ---

    async def append(self, state: State, batch: Batch) -> Appended:
        if self._head is None:
            await self._create_head(batch.writer)
        head = self._known_head()
        position = state.position + 1
        body = encode_segment(
            queue_id=self._queue_id(),
            position=position,
            epoch=head.epoch,
            writer=batch.writer,
            batch=batch.number,
            prev=self._chain,
            at_ms=batch.at_ms,
            events=state.events,
        )
        if (others := await self._place(position, body, batch)) is not None:
            self.undo(state)
            return Conflict(Refreshed(state, self._apply(state, others)))
        # Whoever overslept can win a slot that was used and collected long ago. The head, read now, tells.
        try:
            await self._patience().insist(self._read_head)
            if self._known_head().floor >= position:
                fresh = await self._patience().insist(self.load)
                return Landed(fresh) if fresh.writers.get(batch.writer) == batch.number else Conflict(Refreshed(fresh))
        except StorageError as error:
            raise _gave_up(position, error, sent=True) from error
        state.commit(writer=batch.writer, batch=batch.number, at_ms=batch.at_ms)
        self._advance(body)
        return Landed(state)

    def undo(self, state: State) -> None:
        state.rollback()

    def maintenance(self, state: State, writer: str) -> Coroutine[Any, Any, None] | None:
        if not self._snapshot_due():
            return None
        self._bytes_since = self._segments_since = 0
        return self._write_snapshot(View.of(state, self._chain), writer)

    async def _place(self, position: int, body: bytes, batch: Batch) -> list[tuple[Segment, bytes]] | None:
        """Put these bytes, never others, into this slot, never another, until it is known whose it is.

        None if it is ours; otherwise what others have written there and after it.
        """
        patience: Patience | None = None
        sent = False
        while True:
            trouble: BaseException
            try:
                outcome = await self._store.create(segment_key(position), body)
            except (StoreAccessError, UnsafeStoreError):
                raise
            except StorageError as error:
                trouble = error  # surely nothing was written by this attempt
            else:
                match outcome:
                    case Won():
                        return None
                    case Lost():
                        try:
                            there = await self._read_tail(position - 1, self._chain, ahead=2)
                        except StorageError as error:
                            raise _gave_up(position, error, sent=True) from error  # it may be ours
                        if there:
                            # Ours after a lost reply, or after a retry below us that nobody asked for.
                            segment = there[0][0]
                            return None if (segment.writer, segment.batch) == (batch.writer, batch.number) else there
                        # Refused, and yet nothing is there: nothing can be concluded from that. Again.
                        trouble, sent = StorageError(f"{segment_key(position)} is neither there nor free"), True
                    case Unknown(cause=cause):
                        trouble, sent = cause, True
                    case _ as never:
                        assert_never(never)
            patience = patience or self._patience()
            if not await patience.wait():
                raise _gave_up(position, trouble, sent=sent) from trouble

    # --- The head ---

    async def _read_head(self) -> LogHead | None:
        read = await self._store.get(KEY, unless=self._head_etag)
        match read:
            case Unchanged():
                return self._head
            case Missing():
                if self._head is not None:
                    raise CorruptQueueError(
                        KEY, "was there before and is gone: somebody deleted it. Restore it, or reopen the queue anew"
                    )
                return None
            case Stored(body=body, etag=etag):
                layout = read_layout(KEY, body)
                if layout.layout != LAYOUT:
                    raise CorruptQueueError(KEY, f"this queue has the layout {layout.layout!r}, not {LAYOUT!r}")
                head = decode_head(KEY, body)
                if self._head is not None and head.queue_id != self._head.queue_id:
                    raise CorruptQueueError(
                        KEY, f"another queue ({head.queue_id}) was put in the place of this one ({self._head.queue_id})"
                    )
                if head.mode != "open":
                    raise CorruptQueueError(KEY, f"the queue is in mode {head.mode!r}, which this release cannot join")
                if self._head is None or head.version >= self._head.version:
                    self._head, self._head_etag = head, etag
                return self._head
            case _ as never:
                assert_never(never)

    def _known_head(self) -> LogHead:
        assert self._head is not None, "the head is read or created first"
        return self._head

    def _queue_id(self) -> str:
        assert self._head is not None
        assert self._head.queue_id is not None
        return self._head.queue_id

    async def _create_head(self, writer: str) -> None:
        """The first object of a new queue. Two processes that start together agree on one."""
        head = LogHead(format=1, queue_id=new_id(self._rng), version=1, writer=writer)
        patience = self._patience()
        while True:
            try:
                outcome = await self._store.create(KEY, encode_head(head))
            except (StoreAccessError, UnsafeStoreError):
                raise
            except StorageError as error:
                outcome = Unknown(error)
            # Won, lost or unknown: whatever stands there now is the head.
            if await patience.insist(self._read_head) is not None:
                return
            if not await patience.wait():
                cause = outcome.cause if isinstance(outcome, Unknown) else None
                raise StorageError(f"{KEY} could not be created: {cause}", cause)

    # --- Snapshots ---

    def _snapshot_due(self) -> bool:
        """Whether enough has been written since the last one to be worth another."""
        if self._head is None:
            return False
        last_bytes = self._head.snapshot.bytes if self._head.snapshot is not None else 0
        return self._segments_since >= SNAPSHOT_SEGMENTS or self._bytes_since >= max(SNAPSHOT_BYTES, last_bytes)

    async def _write_snapshot(self, view: View, writer: str) -> None:
        """Write the state and name it in the head, beside the commits that go on meanwhile."""
        pieces: list[bytes] = []
        for piece in encode_snapshot(self._queue_id(), view):
            pieces.append(piece)
            await yield_once()  # nobody waits for more than one piece
        body = b"".join(pieces)
        key = snapshot_key(view.position, new_nonce(self._rng))
        ref = SnapshotRef(view.position, key, digest(body), len(body))
        outcome = await self._store.create(key, body)
        if not isinstance(outcome, Won):
            return  # its name is nobody else's; a lost answer costs an orphan, and the next one comes soon
        head = await self._read_head()
        if head is None or (head.snapshot is not None and head.snapshot.position >= view.position):
            return  # somebody else's is newer
        floor = max(head.floor, head.snapshot.position if head.snapshot is not None else 0)
        newer = msgspec.structs.replace(head, version=head.version + 1, writer=writer, snapshot=ref, floor=floor)
        assert self._head_etag is not None
        await self._store.replace(KEY, encode_head(newer), expected=self._head_etag)
        await self._read_head()

    async def _load_snapshot(self, head: LogHead) -> State:
        self._bytes_since = self._segments_since = 0
        if head.snapshot is None:
            self._chain = START
            return State(self._limits)
        read = await self._store.get(head.snapshot.key)
        if not isinstance(read, Stored):
            raise CorruptQueueError(
                head.snapshot.key, "the snapshot that the head names is missing. Restore it from a backup"
            )
        state, self._chain = decode_snapshot(head.snapshot, read.body, queue_id=self._queue_id(), limits=self._limits)
        return state

    def _patience(self) -> Patience:
        return Patience(self._settings, self._clock, self._rng)


def _gave_up(position: int, cause: BaseException, *, sent: bool) -> StorageError | UnknownOutcomeError:
    if sent:
        return UnknownOutcomeError(f"the store did not say whether commit {position} landed: {cause}")
    return StorageError(f"the store keeps failing, and commit {position} was not written: {cause}", cause)
