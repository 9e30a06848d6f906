"""Follows a log from any position on without ever writing: the change feed.

At a position that was verified, some of the next slots are read, and then the head. Only the head can tell whether
those slots are the history: one that was collected, or collected and won again by somebody who overslept, lies at or
below its floor.
"""

from __future__ import annotations

from casque.clock import Clock, Random
from casque.codec.head import KEY, check_single, read_layout
from casque.codec.log import LAYOUT, START, LogHead, Segment, digest, previous, segment_key
from casque.errors import CorruptQueueError, HistoryGoneError, InvalidInputError, NoHistoryError, StorageError
from casque.journal.log.reader import READ_AHEAD, Bodies, Reader, linked, lost
from casque.journal.log.register import HeadRegister
from casque.journal.patience import Patience
from casque.settings import QueueSettings
from casque.storage.port import Store, Stored

STAGED_MAX = 100_000
"""Staged jobs in one read, beyond which the next is a small one."""
READ_BYTES = 1024 * 1024
"""Bytes in one read, beyond which the next is smaller."""
STARTS_MAX = 20
"""How often a start is tried again because the log was collected meanwhile."""


class Follower:
    """Hands out the commits of a log in order, each of them once, and knows how far it has come."""

    def __init__(self, store: Store, *, settings: QueueSettings, clock: Clock, rng: Random) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._head = HeadRegister(store, self._patience)
        self._reader = Reader(store, self._patience)
        self._ahead = 1
        self._chain: str | None = None
        """The digest of the segment at `position`; None if that one is collected: then the next one names it."""
        self.position = 0
        """Everything up to here was handed out, or was not asked for."""
        self.read_bytes = 0
        """Of what was read last, as it is stored."""

    async def start(self, position: int | None) -> bool:
        """Stand at this position, or at the end of the log; False if there is no queue yet.

        Raises:
            NoHistoryError: the queue is no log.
            HistoryGoneError: what follows the position is collected.
            InvalidInputError: the log has not come so far.
        """
        if not await self._is_log():
            return False
        for _ in range(STARTS_MAX):
            head = await self._head.read()
            at = await self._end(head) if position is None else position
            if at < head.floor:
                if position is not None:
                    raise HistoryGoneError(f"what followed position {at}", head.floor)
                continue
            chain = await self._chain_at(at, head)
            # As always the head comes last: what lies at or below its floor may be anything.
            later = await self._head.read()
            if chain is None and at > later.floor:
                if position is None:
                    continue
                raise InvalidInputError(
                    f"position {at} is in the future: the last commit of this queue is {await self._end(later)}"
                )
            if at >= later.floor:
                self.position, self._chain = at, chain if at > later.floor or not at else None
                return True
        raise StorageError("the log was collected faster than it could be read; try again")

    async def read(self) -> list[Segment]:
        """The next commits, some at a time; none if this is the end for now.

        Raises:
            HistoryGoneError: they were collected before they were read. Nothing was skipped silently.
            QueueReplacedError: the queue was converted.
            CorruptQueueError: a segment is missing or is not what it must be.
        """
        read = await self._bodies()
        head = await self._head.read()
        if head.floor > self.position:
            raise HistoryGoneError(f"what followed position {self.position}", head.floor)
        chain = self._chain
        if chain is None:
            chain = previous(read.bodies[0]) if read.bodies else START
        tail = linked(self._head.queue_id, self.position, chain, read)
        if not read.bodies and (read.gap is not None or _reaches_beyond(head, self.position)):
            await self._check_gap(self.position + 1)
        if tail.broken is not None and not tail.found:
            raise tail.broken
        for placed in tail.found:
            self.position, self._chain = placed.segment.position, placed.digest
        self.read_bytes = sum(placed.size for placed in tail.found)
        return [placed.segment for placed in tail.found]

    def stand_at(self, position: int, chain: str) -> None:
        """Go back to a position that was handed out. `chain` is the digest of its segment, as the next one names it."""
        self.position, self._chain = position, chain
        self._ahead = 1

    async def _is_log(self) -> bool:
        read = await self._reader.get(KEY)
        if not isinstance(read, Stored):
            return False
        if check_single(read_layout(KEY, read.body)).layout != LAYOUT:
            raise NoHistoryError
        self._head.adopt(read)
        return True

    async def _bodies(self) -> Bodies:
        """More at once the more there turn out to be, and never more than fit into memory."""
        read = await self._reader.window(self.position, self._ahead)
        if sum(len(jobs) for jobs in read.staged.values() if not isinstance(jobs, CorruptQueueError)) > STAGED_MAX:
            self._ahead = 1  # admissions: one of them is enough at a time
        elif sum(map(len, read.bodies)) > READ_BYTES:
            self._ahead = max(1, self._ahead // 2)
            _cut(read)
        elif len(read.bodies) == self._ahead:
            self._ahead = min(self._ahead * 2, READ_AHEAD)
        else:
            self._ahead = 1 if read.gap is None else 2  # at a gap, look once more at what lies behind it
        return read

    async def _check_gap(self, slot: int) -> None:
        """An empty slot before a full one: only a moment's, or damage."""
        if isinstance(await self._reader.get(segment_key(slot)), Stored):
            return
        if (floor := (await self._head.read()).floor) > self.position:
            raise HistoryGoneError(f"what followed position {self.position}", floor)
        raise lost(slot)

    async def _chain_at(self, position: int, head: LogHead) -> str | None:
        if not position:
            return START
        # At the floor itself there may be anything, or nothing.
        if position <= head.floor:
            return None
        read = await self._reader.get(segment_key(position))
        return digest(read.body) if isinstance(read, Stored) else None

    async def _end(self, head: LogHead) -> int:
        """The last full slot. Above the floor they are full without a gap, so that a few reads find it in a log of any
        length."""
        low = max(head.snapshot.position if head.snapshot is not None else 0, head.floor)
        return await self._reader.end(low)

    def _patience(self) -> Patience:
        return Patience(self._settings, self._clock, self._rng)


def _cut(read: Bodies) -> None:
    """Keep the first slot, and as many more as stay within the bytes of one read: the rest is read again later, by a
    reader who may be slow."""
    size = 0
    for count, body in enumerate(read.bodies):
        size += len(body)
        if size > READ_BYTES and count:
            del read.bodies[count:]
            read.gap = None
            return


def _reaches_beyond(head: LogHead, position: int) -> bool:
    """Whether the next slot must be full, because somebody has applied it."""
    return head.snapshot is not None and head.snapshot.position > position
