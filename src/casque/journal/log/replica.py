"""An in-memory copy of a log queue that follows the log."""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from casque.codec.log import LogHead, Mode, Tip, replay, segment_key
from casque.environment import Environment
from casque.errors import LeadershipLostError, StorageError
from casque.journal.log.reader import READ_AHEAD, Placed, Reader, Tail, linked, lost
from casque.journal.log.register import HeadRegister
from casque.journal.port import Refreshed
from casque.state import Event, Limits, State
from casque.storage.port import Store, Stored

LOADS_MAX = 20
"""How often opening restarts because the log was collected meanwhile."""


class Stance(Enum):
    """What winning a slot means: in open mode the head decides, otherwise the slot itself."""

    OPEN = auto()
    HOLDING = auto()
    LEADING = auto()


class Replica:
    """Loads a log and follows it. A segment counts as history only once the head was read after it."""

    def __init__(self, store: Store, env: Environment, *, limits: Limits | None = None) -> None:
        self._store = store
        self._env = env
        self._clock = env.clock
        self._limits = limits or Limits(finished=env.settings.archive)
        self._head = HeadRegister(store, env.patience)
        self._reader = Reader(store, env.patience)
        # The standing of this process. Changed only by the operation in flight, never by maintenance.
        self._stance = Stance.OPEN
        self._mode = Mode.OPEN
        self._epoch = 0
        """Epoch of the head as the operation in flight last read it, or as it claimed it."""
        self._tip = Tip()
        self._verified = 0
        """The position up to which the state is known to be history."""
        self._seen_ms = 0
        """When this leader last began a write that then landed: the head, or a slot. A read confirms nothing for later:
        a
        standby that has waited for a whole lease may claim the head right after it."""

    async def load(self, found: Stored | None = None) -> State:
        """`found` is the head, if it was just read."""
        # A process that starts again has no privileges, whatever it was before.
        self._stance = Stance.OPEN
        for _ in range(LOADS_MAX):
            head = self._head.adopt(found) if found is not None else await self._env.patience().insist(self._head.find)
            found = None
            if head is None:
                self._tip, self._verified = Tip(), 0
                return State(self._limits)
            base = head.snapshot.position if head.snapshot is not None else 0
            # Both at once: the reads are independent.
            restored, bodies = await asyncio.gather(self._restored(head), self._reader.bodies(base, ahead=READ_AHEAD))
            # These objects may have been collected meanwhile, or replace collected ones: the head decides.
            later = await self._head.read()
            if later.floor > base or (restored is None and later.snapshot != head.snapshot):
                continue
            if restored is None:
                assert head.snapshot is not None
                raise await self._reader.missing_of(head.snapshot, queue_id=self._head.queue_id)
            state, self._tip = restored
            tail = linked(self._head.queue_id, base, self._tip.chain, bodies)
            if tail.broken is not None:
                raise tail.broken
            if not await self._whole(tail, later):
                continue
            self._heed(later)
            self._apply(state, tail.found)
            self._verified = state.position
            state.shed(later.archived_to)
            state.unname(later.floor)
            return state
        raise StorageError("the log was collected faster than it could be read; open the queue again")

    async def _restored(self, head: LogHead) -> tuple[State, Tip] | None:
        if head.snapshot is None:
            return State(self._limits), Tip()
        return await self._reader.restore(head.snapshot, queue_id=self._head.queue_id, limits=self._limits)

    async def refresh(self, state: State) -> Refreshed:
        if self._head.known is None and await self._head.find() is None:
            return Refreshed(state)
        # Segments applied without reading the head are not certain yet.
        base = self._verified
        tail = await self._reader.tail(self._head.queue_id, state.position, self._tip.chain)
        # The head is read last: only it shows whether the slots just read are still those that were written first.
        head = await self._head.read()
        self._heed(head)
        if head.floor > base or tail.broken is not None or not await self._whole(tail, head):
            return Refreshed(await self.load())
        events = self._apply(state, tail.found)
        self._verified = state.position
        state.shed(head.archived_to)
        state.unname(head.floor)
        return Refreshed(state, events)

    async def _whole(self, tail: Tail, head: LogHead) -> bool:
        """True if an empty slot in the middle was only momentary; False if it has been collected since.

        Raises:
            CorruptQueueError: it is lost. Going on from here would fork the history.
        """
        if tail.gap is None or isinstance(await self._reader.get(segment_key(tail.gap)), Stored):
            return True
        if (await self._head.read()).floor > head.floor:
            return False
        raise lost(tail.gap)

    def _apply(self, state: State, found: list[Placed]) -> list[Event]:
        events: list[Event] = []
        for placed in found:
            replay(state, placed.segment)
            self._advance(placed)
            events += placed.segment.events
        return events

    def _advance(self, placed: Placed) -> None:
        self._tip.advance(placed.segment, placed.digest)

    def _heed(self, head: LogHead) -> None:
        """Act on the head that the operation in flight has read.

        Raises:
            LeadershipLostError: this process led, and another one leads now.
        """
        if self._stance is not Stance.OPEN and head.epoch != self._epoch:
            if self._stance is Stance.LEADING:
                raise LeadershipLostError(head.owner.address if head.owner is not None else None)
            self._stance = Stance.OPEN
        self._epoch, self._mode = head.epoch, head.mode
