"""Appends to a log and follows it.

Several writers may append (open mode): losing a slot is ordinary, the winner's segment is applied and the next slot
tried. After a win the head is read, because a process that overslept can win a slot that had been collected.

A writer that finds itself alone takes the queue for itself (exclusive mode) and saves that read: it raises the epoch in
the head and puts a fence into the log. Another writer raises the epoch again, back to open mode, and puts a fence in
the holder's way. No process waits for another: a dead holder is bypassed like a live one.

A leader among brokers (led mode) commits like a holder, but steps down for good when it loses a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import msgspec

from casque.clock import new_id, new_nonce, yield_once
from casque.codec.head import FORMAT, Owner
from casque.codec.log import (
    SEGMENTS,
    LogHead,
    Mode,
    View,
    decode_segment,
    digest,
    encode_segment,
    replay,
    segment_position,
)
from casque.environment import Environment
from casque.errors import (
    CasqueError,
    CorruptQueueError,
    LeadershipLostError,
    QueueReplacedError,
    StorageError,
    UnknownOutcomeError,
)
from casque.journal.archive import ArchivePace, ArchiveRetention, forms_of
from casque.journal.discovery import refusal
from casque.journal.leader_lease import surely_leads
from casque.journal.log.archiver import Archiver
from casque.journal.log.collector import collect
from casque.journal.log.contention import Contention
from casque.journal.log.pace import Pace
from casque.journal.log.reader import Placed, Tail
from casque.journal.log.replica import Replica, Stance
from casque.journal.log.slot import place
from casque.journal.log.snapshots import SnapshotWriter, naming
from casque.journal.port import Appended, Batch, Conflict, Landed, Refreshed, Sighting, Work
from casque.journal.sweeper import Sweeper
from casque.settings import milliseconds
from casque.state import Event, Limits, State
from casque.storage.port import Store, Stored, Watched
from casque.telemetry import logger
from casque.types import Finished

log = logger("journal")

HOLDS_MAX = 3
"""How often a writer that is alone tries to take the queue for itself, if the head was changed just then."""


class LogJournal(Replica):
    """Segments, snapshots and a head under one root of a store."""

    whole = False

    def __init__(self, store: Store, env: Environment, *, limits: Limits | None = None) -> None:
        super().__init__(store, env, limits=limits)
        self._archiver = Archiver(store, self._head, env.patience, forms_of(env))
        self._sweeper = Sweeper(store, env.clock)
        self._archive_retention = ArchiveRetention(store, env)
        self._archive_pace = ArchivePace(env)
        self._snapshots = SnapshotWriter(store, env)
        self._pace = Pace(env)
        self._contention = Contention(env)
        self._lease_ms = 0

    # --- Following ---

    async def load(self, found: Stored | None = None) -> State:
        self._pace.restart()
        state = await super().load(found)
        self._pace.opened(self._head.known)
        return state

    async def refresh(self, state: State) -> Refreshed:
        position = state.position
        refreshed = await super().refresh(state)
        if refreshed.state.position != position:
            self._contention.met_other_writer()
        return refreshed

    def _advance(self, placed: Placed) -> None:
        super()._advance(placed)
        self._pace.grew(placed.size)

    def _heed(self, head: LogHead) -> None:
        held = self._stance is Stance.HOLDING
        super()._heed(head)
        if held and self._stance is Stance.OPEN:
            self._contention.disturbed()

    # --- Committing ---

    async def append(self, state: State, batch: Batch) -> Appended:
        await self._be_there(batch)
        if self._stance is Stance.OPEN or self._contention.epoch_raised:
            prepared = await self._prepare(state, batch)
            if prepared is not None:
                return prepared
        position, epoch, began_ms = state.position + 1, self._epoch, self._clock.monotonic_ms()
        body = self._encode(position, batch, state.stored_events())
        others = await self._place(position, body)
        if others is not None:
            return await self._lost(state, others)
        if self._stance is Stance.OPEN and not await self._confirmed(position):
            return await self._overslept(state, batch)
        for _ in state.carrying_out(batch.at_ms):
            await yield_once()
        state.commit(writer=batch.writer, batch=batch.number, at_ms=batch.at_ms, forgets=batch.forgets)
        self._tip.chain, self._tip.epoch = digest(body), epoch
        self._pace.grew(len(body) + _named_bytes(state))
        self._verified, self._seen_ms = position, began_ms
        self._contention.committed(began_ms)
        return Landed(state)

    async def _be_there(self, batch: Batch) -> None:
        if self._head.known is None:
            head = LogHead(format=FORMAT, queue_id=new_id(self._env.rng), version=1, writer=batch.writer)
            self._heed(await self._head.create(head))

    def undo(self, state: State) -> None:
        state.rollback()

    def _encode(self, position: int, batch: Batch, events: list[Event]) -> bytes:
        return encode_segment(
            queue_id=self._head.queue_id,
            position=position,
            epoch=self._epoch,
            writer=batch.writer,
            batch=batch.number,
            prev=self._tip.chain,
            at_ms=batch.at_ms,
            events=events,
            forgets=batch.forgets if events else None,
        )

    async def _place(self, position: int, body: bytes) -> Tail | None:
        return await place(
            self._store,
            self._reader,
            self._env.patience,
            queue_id=self._head.queue_id,
            position=position,
            chain=self._tip.chain,
            body=body,
        )

    async def _confirmed(self, position: int) -> bool:
        """A process that overslept can win a slot that was used and collected long ago.
        The head, read now, shows it."""
        try:
            head = await self._head.read()
        except (StorageError, CorruptQueueError) as error:
            raise _unconfirmed(position, error) from error
        self._heed(head)
        return head.floor < position

    async def _overslept(self, state: State, batch: Batch) -> Appended:
        """The slot had been collected: its new content will never be read. An unanswered attempt may be the very
        segment
        that was collected, so the table of writers decides."""
        self.undo(state)
        try:
            fresh = await self._env.patience().insist(self.load)
        except (StorageError, CorruptQueueError) as error:
            raise _unconfirmed(state.position + 1, error) from error
        landed = fresh.fate(batch.writer, batch.number, tried=state.position + 1)
        if landed is None:
            raise UnknownOutcomeError(
                f"the answer to commit {state.position + 1} was slept over while other writers committed and the log "
                "was collected: the queue no longer remembers whether it landed"
            )
        return Landed(fresh) if landed else Conflict(Refreshed(fresh))

    async def _lost(self, state: State, others: Tail) -> Conflict:
        self.undo(state)
        if self._stance is Stance.LEADING:
            raise LeadershipLostError(None)
        newer = any(placed.segment.epoch > self._epoch for placed in others.found)
        if self._stance is Stance.OPEN and not newer and others.broken is None:
            self._contention.met_other_writer()
            return Conflict(Refreshed(state, self._apply(state, others.found), certain=False))
        # The permission to write has changed, or the base of this state was collected: read the head first.
        try:
            return Conflict(await self._env.patience().insist(lambda: self.refresh(state)))
        except StorageError as error:
            raise _unconfirmed(state.position + 1, error) from error

    # --- Before a commit in open mode ---

    async def _prepare(self, state: State, batch: Batch) -> Conflict | None:
        """Work that must happen before anything else is written. The batch is then decided again.

        Raises:
            QueueLedError: a broker leads this queue.
            StorageError: nothing of the batch was written.
        """
        if self._mode is Mode.LED:
            owner = self._head.known.owner if self._head.known is not None else None
            raise await refusal(self._store, owner)
        work: Coroutine[Any, Any, Refreshed]
        if self._stance is Stance.HOLDING:
            self._contention.epoch_raised = False
            work = self.refresh(state)  # the epoch was raised: continue in open mode
        elif self._mode is Mode.EXCLUSIVE:
            work = self._flip(state, batch)
        elif self._tip.epoch < self._epoch:
            work = self._fence(state, batch)
        else:
            return None
        self.undo(state)
        try:
            return Conflict(await work)
        except QueueReplacedError:
            raise
        except UnknownOutcomeError as error:
            raise StorageError(f"the queue could not be opened for writing; nothing was written: {error}") from error

    async def _flip(self, state: State, batch: Batch) -> Refreshed:
        """Another process holds the queue: make it open again. The fence follows with the next attempt."""
        head = await self._head.read()
        if head.mode is Mode.EXCLUSIVE:
            await self._head.replace(head.next(batch.writer, epoch=head.epoch + 1, mode=Mode.OPEN, owner=None))
        return await self.refresh(state)

    async def _fence(self, state: State, batch: Batch) -> Refreshed:
        """An epoch begins with a fence: the previous holder must lose its next slot, and every one after."""
        position = state.position + 1
        body = self._encode(position, batch, [])
        others = await self._place(position, body)
        if others is not None:
            conflict = await self._lost(state, others)
            assert conflict.refreshed is not None
            return conflict.refreshed
        if not await self._confirmed(position):
            return Refreshed(await self.load())
        self._pass(state, body)
        self._verified = position
        return Refreshed(state)

    def _pass(self, state: State, fence: bytes) -> None:
        """Our own fence has landed."""
        position = state.position + 1
        segment = decode_segment(fence, queue_id=self._head.queue_id, position=position, prev=self._tip.chain)
        replay(state, segment)
        self._advance(Placed(segment, fence, digest(fence)))

    @property
    def takes_hold(self) -> bool:
        is_open = self._stance is Stance.OPEN and self._mode is Mode.OPEN and self._tip.epoch == self._epoch
        return is_open and self._contention.is_alone

    async def hold(self, state: State, batch: Batch) -> Refreshed:
        """Alone for a while: take the queue exclusively, unless that turns out to be difficult."""
        self._contention.claimed()
        owner = Owner(batch.writer, new_nonce(self._env.rng))
        for _ in range(HOLDS_MAX):
            began_ms = self._clock.monotonic_ms()
            claim = await self._claim_head(owner, batch, Mode.EXCLUSIVE)
            if claim is not None:
                taken = await self._take_over(state, claim, batch, began_ms)
                return taken if taken is not None else Refreshed(await self.load())
            if self._head.known is None or self._head.known.epoch != self._epoch:
                break  # another writer wants to write; otherwise it was maintenance
        return await self.refresh(state)

    # --- Leading ---

    @property
    def sole(self) -> bool:
        if self._stance is not Stance.LEADING:
            return False
        return surely_leads(self._clock.monotonic_ms() - self._seen_ms, lease_ms=self._lease_ms)

    def sighting(self, state: State) -> Sighting:
        head = self._head.known
        if head is None:
            return Sighting()
        return Sighting(head.epoch, head.version, state.position, head.owner if head.mode is Mode.LED else None)

    async def lead(
        self, state: State, owner: Owner, batch: Batch, *, lease_ms: int, seen: Sighting | None
    ) -> Refreshed | None:
        self._lease_ms = lease_ms
        return await self.claim(state, owner, batch, Mode.LED, seen)

    async def claim(
        self, state: State, owner: Owner, batch: Batch, mode: Mode, seen: Sighting | None = None
    ) -> Refreshed | None:
        """Claim the head, follow the log to its end, put a fence there, read the head again.

        None if another process was faster: `load` next, and wait before trying again.
        """
        await self._be_there(batch)
        began_ms = self._clock.monotonic_ms()
        claim = await self._claim_head(owner, batch, mode, seen)
        return None if claim is None else await self._take_over(state, claim, batch, began_ms)

    async def _claim_head(self, owner: Owner, batch: Batch, mode: Mode, seen: Sighting | None = None) -> LogHead | None:
        """The head first: from now on the previous leader can neither publish a snapshot nor raise the floor."""
        head = await self._head.read()
        # A new queue begins with version 1. Otherwise a changed head shows that its writer is alive.
        if seen is not None and (head.epoch, head.version) != (seen.epoch, max(seen.version, 1)):
            return None
        # A broker may lead since this writer was alone, and answer from memory: only a lease deposes it.
        if mode is Mode.EXCLUSIVE and head.epoch != self._epoch:
            return None
        claim = head.next(batch.writer, epoch=head.epoch + 1, mode=mode, owner=owner)
        return claim if await self._head.replace(claim) else None

    async def _take_over(self, state: State, claim: LogHead, batch: Batch, began_ms: int) -> Refreshed | None:
        """The head is claimed; None if another process claimed it after that."""
        events: list[Event] = []
        mode = claim.mode
        if claim.floor > self._verified or state.position != self._verified:
            state = await self.load()
        self._epoch, self._mode = claim.epoch, mode
        fence = await self._fence_at_the_end(state, claim.epoch, batch, events)
        if fence is None or (await self._head.read()).epoch != claim.epoch:
            return None
        self._pass(state, fence)
        self._verified = state.position
        self._stance = Stance.LEADING if mode is Mode.LED else Stance.HOLDING
        self._seen_ms = began_ms
        return Refreshed(state, events)

    async def _fence_at_the_end(self, state: State, epoch: int, batch: Batch, events: list[Event]) -> bytes | None:
        """Follow the log to its end and put a fence there; None if a later claim got further."""
        while self._tip.epoch < epoch:
            fence = self._encode(state.position + 1, batch, [])
            others = await self._place(state.position + 1, fence)
            if others is None:
                return fence
            if others.broken is not None:
                return None
            events += self._apply(state, others.found)
        return None

    async def beat(self, state: State, batch: Batch) -> Refreshed:
        began_ms = self._clock.monotonic_ms()
        head = await self._head.read()
        self._heed(head)
        if not await self._head.replace(head.next(batch.writer)):
            # A successor's claim was faster, or maintenance of this leader. The latter renews the leadership as well.
            self._heed(await self._head.read())
        self._seen_ms = began_ms
        return Refreshed(state)

    async def resign(self, state: State, batch: Batch) -> None:  # noqa: ARG002  one port for all layouts
        head = await self._head.read()
        if self._stance is Stance.LEADING and head.epoch == self._epoch:
            self._stance = Stance.OPEN
            # Open to every writer, brokers or not. In a new epoch, so that the next writer puts a fence first: a
            # request of this leader may still be on its way.
            await self._head.replace(head.next(batch.writer, epoch=head.epoch + 1, mode=Mode.OPEN, owner=None))

    # --- Alongside the commits ---

    def hesitation_s(self) -> float:
        return self._contention.hesitation_ms() / 1000 if self._stance is Stance.OPEN else 0

    def due_ms(self) -> int | None:
        return self._archive_pace.due_ms()

    def listen(self, heard: Callable[[int], None]) -> Callable[[], None] | None:
        if not isinstance(self._store, Watched):
            return None

        def appeared(key: str) -> None:
            if (position := segment_position(key)) is not None:
                heard(position)

        return self._store.watch(SEGMENTS, appeared)

    def hurry(self, hurried: bool) -> None:
        self._archive_pace.hurried = hurried

    def wants_a_commit(self, state: State) -> bool:  # noqa: ARG002
        return False  # everything besides commits is in the head

    def maintenance(self, state: State, writer: str) -> Work | None:
        head = self._head.known
        if head is not None:
            state.shed(head.archived_to)
            state.unname(head.floor)
        self._archive_pace.observe(state)
        if archive_is_due := self._archive_pace.is_due:
            self._archive_pace.restart()
        if head is None or state.position != self._verified:
            return None
        if self._pace.snapshot_is_due(state.position, head):
            self._pace.restart(state.position)
            return partial(self._archive_and_keep, state, View.of(state, self._tip), writer)
        if archive_is_due:
            # Jobs that finish from here on are for the next pass: they may not be history yet when this one gets there.
            return partial(self._archive, state, tuple(state.finished), state.position, writer)
        if self._stance is Stance.HOLDING and self._contention.look_is_due():
            return self._look
        return partial(self._sweeper.apply, state) if self._sweeper.is_due else None

    async def _archive(self, state: State, finished: Sequence[Finished], position: int, writer: str) -> None:
        await self._archiver.archive(state, finished, position, writer=writer, may_write=self._may_archive)
        await self._archive_retention.apply()
        await self._sweeper.apply(state)

    def _may_archive(self, head: LogHead) -> bool:
        """Verified commits are history, so every process may archive them unless that affects the owner: a change of
        the
        head renews a leader's lease, and a deposed holder or leader has to find that out by its next commit."""
        return head.mode is not Mode.LED if self._stance is Stance.OPEN else head.epoch == self._epoch

    async def _archive_and_keep(self, state: State, view: View, writer: str) -> None:
        """Archive first: archived jobs need not be in the snapshot."""
        if view.finished:
            try:
                await self._archive(state, view.finished, view.position, writer)
            except CasqueError as error:
                log.warning("finished jobs could not be archived; the snapshot keeps them: %s", error)
            head = self._head.known
            archived = head.archived_to if head is not None else 0
            left = [one for one in view.finished if one.position > archived]
            view = msgspec.structs.replace(view, finished=left)
        await self._keep(view, writer)
        await self._sweeper.apply(state)

    async def _keep(self, view: View, writer: str) -> None:
        """Write a snapshot, name it in the head, and collect what it replaces."""
        ref = await self._snapshots.write(self._head.queue_id, view)
        head = await self._head.read()
        # Only into a head of our own epoch: the log of another epoch may have diverged.
        mine = head.epoch == self._epoch and (head.mode is Mode.OPEN or self._stance is not Stance.OPEN)
        if ref is None or not mine:
            return
        newer = naming(
            head,
            ref,
            writer=writer,
            retention_ms=milliseconds(self._env.settings.retention),
            archived=self._archived_at(head, view),
        )
        if newer is not None and await self._head.replace(newer):
            await collect(self._store, newer, fences=view.tip.fences)

    def _archived_at(self, head: LogHead, view: View) -> int:
        """The position up to which this snapshot leaves nothing to archive: if no job finished there is no pass."""
        if not self._limits.finished:
            return max(head.archived_to, view.position)
        left = next((one.position for one in view.finished if one.position > head.archived_to), view.position + 1)
        return head.archived_to if head.archiving is not None else max(head.archived_to, left - 1)

    async def _look(self) -> None:
        """Check whether another process wants to write, so that a busy holder does not keep it out slot by slot."""
        try:
            head = await self._head.read()
        except CorruptQueueError:
            self._contention.epoch_raised = True  # the next commit checks for itself, and reports to its callers
            raise
        if head.epoch != self._epoch:
            self._contention.epoch_raised = True


def _named_bytes(state: State) -> int:
    """Size of the staged objects that the last commit names."""
    last = takewhile(lambda one: one.position == state.position, reversed(state.staged))
    return sum(one.bytes for one in last)


def _unconfirmed(position: int, cause: BaseException) -> UnknownOutcomeError:
    return UnknownOutcomeError(f"the store cannot be read to confirm commit {position}: {cause}")
