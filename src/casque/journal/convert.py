"""Converts a queue from one layout to the other, with everything in it.

`queue.json` is the one switch. The objects of the new layout are written and read back before it, those of the old one
are removed after it, and a concurrent writer wins the compare-and-set on it. A conversion that ends anywhere, by a
crash or by a store that does not answer, leaves a whole queue in one layout or the other. docs/decisions/0009 explains
why a process that sleeps through all of this cannot harm the queue.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from casque.clock import new_id, new_nonce
from casque.codec.digest import state_digest
from casque.codec.document import LAYOUT as DOCUMENT
from casque.codec.document import DocumentCodec
from casque.codec.head import FORMAT, KEY, RING, Owner, read_layout
from casque.codec.log import LAYOUT as LOG
from casque.codec.log import (
    LogHead,
    Mode,
    SnapshotRef,
    Tip,
    View,
    decode_head,
    digest,
    encode_head,
)
from casque.environment import Environment
from casque.errors import (
    CASConflictError,
    CorruptQueueError,
    InvalidInputError,
    QueueReplacedError,
    RingError,
    StorageError,
)
from casque.journal.cleanup import find_fences, sweep
from casque.journal.discovery import refusal
from casque.journal.log import LogJournal
from casque.journal.log.reader import Reader
from casque.journal.log.snapshots import SnapshotWriter
from casque.journal.port import Batch
from casque.journal.tries import Tries
from casque.state import Limits, State
from casque.storage.port import Store, Stored, Won, locate
from casque.types import Finished

Say = Callable[[str], None]
LIMITS = Limits(finished=True)

REFUSED = "another process wrote to the queue; nothing was changed. Stop every process that uses it and try again"


class Converted(msgspec.Struct, frozen=True):
    """A converted queue, read back and compared."""

    layout: str
    position: int
    jobs: int
    digest: str
    """Digest of the state: the same before and after."""
    changed: bool = True
    """False if it had this layout already."""
    removed: int = 0
    """Number of removed objects of the old layout."""


class _Content(msgspec.Struct, frozen=True):
    """Everything that must be the same before and after."""

    digest: str
    finished: tuple[Finished, ...]
    """Jobs that are not archived yet."""

    @classmethod
    def of(cls, state: State) -> _Content:
        return cls(state_digest(state), tuple(state.finished))


class Converter:
    """For a queue that is not in use: a process that uses it gets an error at its next call, and loses nothing."""

    def __init__(self, store: Store, env: Environment, *, say: Say) -> None:
        self._store = store
        self._env = env
        self._say = say

    async def convert(self, layout: str) -> Converted:
        """
        Raises:
            CASConflictError: another process wrote meanwhile; the queue is unchanged.
            UnknownOutcomeError: the store did not say whether the switch landed. The queue is whole either way.
            QueueLedError: a broker leads the queue.
        """
        if layout not in (LOG, DOCUMENT):
            raise InvalidInputError(f"layout must be {LOG} or {DOCUMENT}, not {layout!r}")
        found = await self._read()
        now = read_layout(KEY, found.body, locate(self._store, KEY)).layout
        try:
            if now == layout:
                return await self._tidy_only(layout, found)
            if now == DOCUMENT:
                return await self._to_log(found)
            if now == LOG:
                return await self._to_document(found)
        except (CorruptQueueError, QueueReplacedError, StorageError) as error:
            # Missing or different objects may have been removed or written by another converter: then nothing is
            # damaged, and the store is not to blame.
            if await self._is_another(found):
                raise CASConflictError(REFUSED) from error
            raise
        if now == RING:
            raise RingError("its shards are always logs, and it cannot be converted")
        raise CorruptQueueError(KEY, f"the layout {now!r} is none that this release knows. Upgrade casque")

    # --- From a document to a log ---

    async def _to_log(self, found: Stored) -> Converted:
        self._say("reading the document")
        state = DocumentCodec(KEY, "").decode(found.body, LIMITS)
        before = _Content.of(state)
        # No object left below log/ may ever count as part of the new log: it begins above all of them.
        self._say("looking for what an earlier log left")
        fences, highest = await find_fences(self._store, self._env.patience)
        state.position = max(state.position, highest, 1)  # a floor of 0 would mean that the log starts empty
        queue_id = new_id(self._env.rng)
        tip = Tip(chain=digest(found.body), fences=fences)
        self._say("writing the snapshot")
        ref = await self._write_snapshot(queue_id, View.of(state, tip))
        self._say("reading the snapshot back")
        self._compare(before, await self._read_snapshot(ref, queue_id), ref.key)
        head = LogHead(
            format=FORMAT,
            queue_id=queue_id,
            version=1,
            writer=new_nonce(self._env.rng),
            snapshot=ref,
            floor=ref.position,
            # Jobs not archived yet are in the snapshot, and a range that was begun stays that range.
            archived=state.archived,
            archiving=state.archiving,
        )
        self._say("switching")
        await self._switch(encode_head(head), queue_id, expected=found.etag)
        return Converted(LOG, ref.position, len(state.jobs), before.digest)

    async def _write_snapshot(self, queue_id: str, view: View) -> SnapshotRef:
        ref = await SnapshotWriter(self._store, self._env).write(queue_id, view)
        if ref is None:
            raise StorageError("the store did not take the snapshot; nothing was changed. Try again")
        return ref

    async def _read_snapshot(self, ref: SnapshotRef, queue_id: str) -> State:
        restored = await Reader(self._store, self._env.patience).restore(ref, queue_id=queue_id, limits=LIMITS)
        if restored is None:
            raise CorruptQueueError(ref.key, "was written and is not there; nothing was changed. Run `casque doctor`")
        return restored[0]

    # --- From a log to a document ---

    async def _to_document(self, found: Stored) -> Converted:
        head = decode_head(KEY, found.body)
        if head.mode is Mode.LED and head.owner is not None:
            raise await refusal(self._store, head.owner)
        self._say("reading the log")
        journal = LogJournal(self._store, self._env, limits=LIMITS)
        state = await self._env.patience().insist(journal.load)
        if state.ring is not None:
            raise InvalidInputError("a shard of a ring is always a log; nothing was changed")
        owner = Owner(new_nonce(self._env.rng), new_nonce(self._env.rng))
        # From here on a commit has to change the head first, and then the switch fails.
        self._say("closing the log with a fence")
        batch = Batch(owner.id, 1, self._env.clock.wall_ms())
        taken = await journal.claim(state, owner, batch, Mode.EXCLUSIVE)
        closed = await self._read()
        if taken is None or (head := decode_head(KEY, closed.body)).owner != owner:
            raise CASConflictError(REFUSED)
        self._say("writing the document")
        state = taken.state
        state.shed(head.archived_to)
        before = _Content.of(state)
        codec = DocumentCodec(KEY, new_id(self._env.rng))
        codec.touch(job.spec.id for job in state.listed())
        body = codec.encode(state, version=state.position, writers=state.writers, archiving=head.archiving)
        self._compare(before, DocumentCodec(KEY, "").decode(body, LIMITS), KEY)
        self._say("switching")
        await self._switch(body, codec.queue_id, expected=closed.etag)
        self._say("reading the document back")
        await self._check_document(codec.queue_id, state.position, before)
        self._say("removing the log")
        removed = await sweep(self._store, self._env.patience)
        return Converted(DOCUMENT, state.position, len(state.jobs), before.digest, removed=removed)

    async def _check_document(self, queue_id: str, position: int, before: _Content) -> None:
        read = await self._read()
        if read_layout(KEY, read.body).queue_id != queue_id:
            raise CASConflictError("the queue was converted, and another process has converted it again since")
        now = DocumentCodec(KEY, "").decode(read.body, LIMITS)
        if now.position == position:  # otherwise the queue is in use already
            self._compare(before, now, KEY)

    # --- Both ways ---

    async def _tidy_only(self, layout: str, found: Stored) -> Converted:
        """Nothing to convert. An earlier conversion may have ended before it removed the old log."""
        if layout == DOCUMENT:
            state = DocumentCodec(KEY, "").decode(found.body, Limits())
            removed = await sweep(self._store, self._env.patience)
        else:
            journal = LogJournal(self._store, self._env)
            state, removed = await self._env.patience().insist(journal.load), 0
        return Converted(layout, state.position, len(state.jobs), state_digest(state), changed=False, removed=removed)

    async def _switch(self, body: bytes, queue_id: str, *, expected: str) -> None:
        """Replace the old `queue.json` with the new one, unless it has changed."""
        tries = Tries("the conversion", self._env.patience)
        while (outcome := await tries.attempt(lambda: self._store.replace(KEY, body, expected=expected))) is None:
            pass
        if isinstance(outcome, Won):
            return
        # Lost, or our own success seen by a retry; and another process may have built on it. The id decides.
        if read_layout(KEY, (await self._read()).body).queue_id != queue_id:
            raise CASConflictError(REFUSED)

    async def _is_another(self, found: Stored) -> bool:
        """True if another process wrote `queue.json` since: the claim of this conversion keeps the id."""
        before = read_layout(KEY, found.body)
        later = await self._read()
        now = read_layout(KEY, later.body)
        if before.layout == DOCUMENT:
            return later.etag != found.etag
        return (now.layout, now.queue_id) != (before.layout, before.queue_id)

    async def _read(self) -> Stored:
        read = await self._env.patience().insist(lambda: self._store.get(KEY))
        if not isinstance(read, Stored):
            raise InvalidInputError(f"there is no queue here: {KEY} is missing")
        return read

    def _compare(self, before: _Content, after: State, key: str) -> None:
        if _Content.of(after) != before:
            raise CorruptQueueError(
                key, "what was written does not read back as the queue that was; the old data is still there"
            )
