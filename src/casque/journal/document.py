"""The document layout: the whole queue is `queue.json`, rewritten by compare-and-set.

A writer that is alone never reads: it knows the version it wrote last and replaces that. A write whose outcome is
unknown is settled by reading back: the document names the last batch of each recent writer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

import msgspec

from casque.clock import new_id
from casque.codec.archive import Range
from casque.codec.document import LAYOUT, DocumentCodec, Leadership
from casque.codec.head import KEY, Owner, check_layout, check_same_queue, gone, read_layout
from casque.environment import Environment
from casque.errors import (
    CorruptQueueError,
    LeadershipLostError,
    StorageError,
    StoreAccessError,
    UnknownOutcomeError,
    UnsafeStoreError,
)
from casque.journal.archive import ArchivePace, ArchiveRetention, forms_of, write_range
from casque.journal.discovery import refusal
from casque.journal.leader_lease import surely_leads
from casque.journal.port import Appended, Batch, Conflict, Landed, Refreshed, Sighting, Work
from casque.journal.sweeper import Sweeper
from casque.journal.tries import Tries
from casque.state import Limits, State
from casque.state.events import subject
from casque.storage.port import Lost, Missing, Outcome, Store, Stored, Unchanged, Won
from casque.types import Finished

ARCHIVE_JOBS = 500
"""This many finished jobs do not wait for the interval: until they are archived, every commit writes them again."""
DROP_MS = 1_000
"""How long archived jobs may stay in the document of an idle queue, to keep extra commits rare."""

REQUESTS_MAX = 4096


class DocumentJournal:
    """One `queue.json` on one store."""

    whole = True

    def __init__(
        self,
        store: Store,
        env: Environment,
        *,
        limits: Limits | None = None,
    ) -> None:
        self._store = store
        self._env = env
        self._clock = env.clock
        # Every commit contains all of them here.
        self._limits = limits or Limits(requests_max=REQUESTS_MAX, finished=env.settings.archive)
        self._pace = ArchivePace(env, jobs_max=ARCHIVE_JOBS)
        self._sweeper = Sweeper(store, env.clock)
        self._retention = ArchiveRetention(store, env)
        self._forms = forms_of(env)
        self._claimed: Range | None = None
        """The last range that this process claimed."""
        self._written: Range | None = None
        """The last range whose objects certainly exist."""
        self._drop_at_ms: int | None = None
        self._codec = DocumentCodec(KEY, new_id(env.rng))
        self._etag: str | None = None
        self._queue_id: str | None = None
        self._mine: Leadership | None = None
        """The leadership of this process, while it leads."""
        self._lease_ms = 0
        self._seen_ms = 0
        """When this leader last began a write that then landed. A read confirms nothing for later: a standby that has
        waited for a whole lease may take over right after it."""

    async def load(self, found: Stored | None = None) -> State:
        """`found` is the document, if it was just read."""
        # A process that starts again has no privileges, whatever it was before.
        self._mine = None
        return await self._read(None) if found is None else self._adopt(found)

    async def refresh(self, state: State) -> Refreshed:
        fresh = await self._read(state)
        self._check_lead()
        return Refreshed(fresh)

    # --- Beside the commits: finished jobs, from the document to the archive ---

    # Three steps, each done by the first process to get there. A commit claims a range, `archived` to `archiving`, in
    # the document itself. Then its objects are written. Then a commit drops the jobs that they hold. Ordinary commits
    # carry the first and the last step with them; an idle queue gets commits of its own.

    def maintenance(self, state: State, writer: str) -> Work | None:  # noqa: ARG002
        self._pace.observe(state)
        range_ = _range(state)
        if range_ is None or self._written != range_:
            self._drop_at_ms = None
        mine, self._claimed = self._claimed, None
        is_due = self._pace.is_due
        if is_due and (range_ is not None or self._is_led_by_others):
            self._pace.restart()
        # Another process writes the range that it claimed, unless it takes too long.
        if range_ is None or range_ == self._written or (range_ != mine and not is_due):
            return partial(self._sweeper.apply, state) if self._sweeper.is_due else None
        return partial(self._upkeep, state, range_, tuple(state.finished))

    async def _upkeep(self, state: State, range_: Range, finished: Sequence[Finished]) -> None:
        await self._write_range(range_, finished)
        await self._retention.apply()
        await self._sweeper.apply(state)

    async def _write_range(self, range_: Range, finished: Sequence[Finished]) -> None:
        await write_range(self._store, self._env.patience, range_, finished, self._forms)
        self._written = range_
        self._drop_at_ms = self._clock.monotonic_ms() + DROP_MS

    def due_ms(self) -> int | None:
        moments = [m for m in (self._pace.due_ms(), self._drop_at_ms) if m is not None]
        return min(moments, default=None)

    def hurry(self, hurried: bool) -> None:
        self._pace.hurried = hurried

    def listen(self, heard: Callable[[int], None]) -> None:
        """Small queues are polled: a new version of the document does not reveal its position."""

    def wants_a_commit(self, state: State) -> bool:
        self._pace.observe(state)
        if self._is_led_by_others:
            return False
        if (range_ := _range(state)) is None:
            return self._pace.is_due
        is_time = self._pace.is_due or self._clock.monotonic_ms() >= (self._drop_at_ms or 0)
        return range_ == self._written and is_time

    @property
    def _is_led_by_others(self) -> bool:
        return self._mine is None and self._codec.leadership.owner is not None

    def _marks(self, state: State) -> tuple[int, int | None]:
        """The `archived` and `archiving` marks of the next document."""
        if not self._limits.finished:
            return state.position + 1, None  # this writer does not archive
        archived, archiving = state.archived, state.archiving
        if archiving is not None and _range(state) == self._written:
            archived, archiving = archiving, None
        if archiving is not None:
            return archived, archiving
        version = state.position + 1
        if not state.finished or state.finished[-1].position <= archived:
            return version, None  # nothing is left, so no marks are needed
        # The range includes the jobs that this commit finishes.
        return archived, version if self._pace.is_due else None

    def _marked(self, state: State, archived: int, archiving: int | None) -> None:
        """The document has these marks now."""
        if archiving is not None and archiving != state.archiving:
            self._claimed = Range(archived + 1, archiving)
            self._pace.restart()
        state.shed(archived)
        state.unname(state.position)  # the jobs are in the document
        state.facets.finished.archiving = archiving

    def hesitation_s(self) -> float:
        return 0  # fairness of writers that write whole queues is up to the committer

    takes_hold = False  # a commit costs one write, alone or not

    async def hold(self, state: State, batch: Batch) -> Refreshed:  # noqa: ARG002
        return Refreshed(state)

    async def append(self, state: State, batch: Batch) -> Appended:
        """
        Raises:
            QueueLedError: a broker leads this queue, and it is not this one.
            LeadershipLostError: this broker led it until just now.
        """
        leader = self._codec.leadership.owner
        if self._mine is None and leader is not None:
            raise await refusal(self._store, leader)
        began_ms = self._clock.monotonic_ms()
        if self._mine is not None:
            self._codec.leadership = msgspec.structs.replace(self._mine, heartbeat_ms=batch.at_ms)
        appended = await self._append(state, batch)
        if isinstance(appended, Conflict):
            self.undo(state)
            if self._mine is not None:
                # The only ones to overwrite a leader's document are its successor, and a writer that knows nothing of
                # leaders.
                fresh = await self._env.patience().insist(lambda: self._read(None))
                self._check_lead()
                return Conflict(Refreshed(fresh))
        elif self._mine is not None and appended.state is state:
            self._seen_ms = began_ms
        else:
            # It landed, as reading back showed; but the document read may be that of a successor, who built on it.
            self._check_lead()
        return appended

    # --- Leading ---

    @property
    def sole(self) -> bool:
        if self._mine is None:
            return False
        return surely_leads(self._clock.monotonic_ms() - self._seen_ms, lease_ms=self._lease_ms)

    def sighting(self, state: State) -> Sighting:
        leadership = self._codec.leadership
        return Sighting(leadership.epoch, state.position, state.position, leadership.owner)

    async def lead(
        self, state: State, owner: Owner, batch: Batch, *, lease_ms: int, seen: Sighting | None
    ) -> Refreshed | None:
        began_ms = self._clock.monotonic_ms()
        state = await self._env.patience().insist(lambda: self._read(state))
        if seen is not None and self.sighting(state) != seen:
            return None  # the process that changed it is alive
        claim = Leadership(self._codec.leadership.epoch + 1, owner, batch.at_ms)
        landed = await self._sign(state, batch, claim)
        if landed is None or self._codec.leadership.owner != owner:
            return None
        self._mine, self._lease_ms, self._seen_ms = claim, lease_ms, began_ms
        return Refreshed(landed)

    async def beat(self, state: State, batch: Batch) -> Refreshed:
        assert self._mine is not None, "only a leader shows signs of life"
        began_ms = self._clock.monotonic_ms()
        landed = await self._sign(state, batch, msgspec.structs.replace(self._mine, heartbeat_ms=batch.at_ms))
        fresh = landed if landed is not None else await self._env.patience().insist(lambda: self._read(None))
        self._check_lead()
        if landed is not None:  # otherwise the heartbeat was not written
            self._seen_ms = began_ms
        return Refreshed(fresh)

    async def resign(self, state: State, batch: Batch) -> None:
        if self._mine is not None:
            epoch, self._mine = self._mine.epoch, None
            await self._sign(state, batch, Leadership(epoch + 1))

    async def _sign(self, state: State, batch: Batch, leadership: Leadership) -> State | None:
        """A commit that changes only who leads; None if another process was faster."""
        assert not state.events
        before, self._codec.leadership = self._codec.leadership, leadership
        try:
            appended = await self._append(state, batch)
        except BaseException:
            self._codec.leadership = before
            raise
        return appended.state if isinstance(appended, Landed) else None

    def _check_lead(self) -> None:
        """Check who leads according to the document just read.

        Raises:
            LeadershipLostError: this process led, and no longer does. A document written by jqueue names no leader.
        """
        if self._mine is None:
            return
        now = self._codec.leadership
        if (now.epoch, now.owner) != (self._mine.epoch, self._mine.owner):
            self._mine = None
            raise LeadershipLostError(now.owner.address if now.owner is not None else None)

    # --- Writing ---

    async def _append(self, state: State, batch: Batch) -> Appended:
        state.carry_out(batch.at_ms)
        self._touch(state)
        writers, forgotten = state.writers_with(batch.writer, batch.number)
        archived, archiving = self._marks(state)
        body = self._codec.encode(
            state,
            version=state.position + 1,
            writers=writers,
            writers_forgotten=forgotten,
            requests=state.requests_after(batch.forgets),
            archived=archived,
            archiving=archiving,
        )
        tries = Tries(f"a write to {KEY}", self._env.patience)
        while True:
            match await tries.attempt(lambda: self._write(body)):
                case Won(etag=etag):
                    self._etag = etag
                    self._queue_id = self._codec.queue_id
                    state.commit(writer=batch.writer, batch=batch.number, at_ms=batch.at_ms, forgets=batch.forgets)
                    state.facets.writers.forgotten = max(state.writers_forgotten, self._codec.dropped)
                    self._codec.dropped = 0
                    self._marked(state, archived, archiving)
                    return Landed(state)
                case Lost():
                    # Without an unanswered attempt, reading can wait until after the back-off.
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
        """Another write was first, and it may have been our own unanswered attempt."""
        try:
            fresh = await self._env.patience().insist(lambda: self._read(None))
        except (StorageError, CorruptQueueError) as error:
            raise tries.gave_up(error) from error
        landed = fresh.fate(batch.writer, batch.number, tried=state.position + 1)
        if landed:
            return Landed(fresh)
        if landed is None or (batch.writer not in fresh.writers and self._codec.dropped):
            # Other writers have pushed this writer out of the table, or jqueue dropped it.
            raise UnknownOutcomeError(
                f"a write to {KEY} went unanswered, and the document has moved on by "
                f"{fresh.position - state.position} commits since: it is unknown whether the write has landed"
            )
        return Conflict(Refreshed(fresh))

    async def _settle_unknown(self, state: State, batch: Batch, tries: Tries) -> Appended | None:
        """None if the document is unchanged: the write has not landed, or not yet, and may be sent again."""
        try:
            read = await self._store.get(KEY, unless=self._etag)
        except (StoreAccessError, UnsafeStoreError) as error:
            raise tries.gave_up(error) from error
        except StorageError:
            return None  # sending the same bytes again is always safe
        if isinstance(read, Unchanged) or (isinstance(read, Missing) and self._etag is None):
            return None
        return await self._settle_lost(state, batch, tries)

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


def _range(state: State) -> Range | None:
    """The range that is being archived."""
    return None if state.archiving is None else Range(state.archived + 1, state.archiving)
