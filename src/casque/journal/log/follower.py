"""Follows a log from any position on without ever writing: the change feed.

From a verified position, reads some of the next slots, and then the head. Only the head shows whether those slots are
the history: a slot that was collected, or collected and won again by a process that overslept, is at or below its
floor.
"""

from __future__ import annotations

from casque.codec.head import KEY, check_single, read_layout
from casque.codec.log import LAYOUT, START, LogHead, Segment, digest, previous, segment_key
from casque.environment import Environment
from casque.errors import CorruptQueueError, HistoryGoneError, InvalidInputError, NoHistoryError, StorageError
from casque.journal.log.reader import READ_AHEAD, Bodies, Reader, linked, lost
from casque.journal.log.register import HeadRegister
from casque.storage.port import Store, Stored

STAGED_MAX = 100_000
"""Staged jobs in one read, beyond which the next read is a small one."""
READ_BYTES = 1024 * 1024
"""Bytes in one read, beyond which the next read is smaller."""
STARTS_MAX = 20
"""How often a start is retried because the log was collected meanwhile."""


class Follower:
    """Yields the commits of a log in order, each of them once, and tracks the position."""

    def __init__(self, store: Store, env: Environment) -> None:
        self._store = store
        self._env = env
        self._head = HeadRegister(store, env.patience)
        self._reader = Reader(store, env.patience)
        self._ahead = 1
        self._chain: str | None = None
        """The digest of the segment at `position`; None if that one is collected: then the next one names it."""
        self.position = 0
        """Everything up to here was yielded, or was not requested."""
        self.read_bytes = 0
        """Stored size of the last read."""

    async def start(self, position: int | None) -> bool:
        """Start at this position, or at the end of the log; False if there is no queue yet.

        Raises:
            NoHistoryError: the queue is not a log.
            HistoryGoneError: the commits after the position are collected.
            InvalidInputError: the position is beyond the end of the log.
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
            # The head is read last, as always: slots at or below its floor may hold anything.
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
            CorruptQueueError: a segment is missing or invalid.
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
        """Go back to a position that was yielded before. `chain` is the digest of its segment, as the next one names
        it."""
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
        """Reads more at once the more there are, but never more than fit into memory."""
        read = await self._reader.window(self.position, self._ahead)
        if sum(len(jobs) for jobs in read.staged.values() if not isinstance(jobs, CorruptQueueError)) > STAGED_MAX:
            self._ahead = 1  # admissions are large: one at a time is enough
        elif sum(map(len, read.bodies)) > READ_BYTES:
            self._ahead = max(1, self._ahead // 2)
            _cut(read)
        elif len(read.bodies) == self._ahead:
            self._ahead = min(self._ahead * 2, READ_AHEAD)
        else:
            self._ahead = 1 if read.gap is None else 2  # at a gap, read what follows it once more
        return read

    async def _check_gap(self, slot: int) -> None:
        """An empty slot before a full one: either momentary, or damage."""
        if isinstance(await self._reader.get(segment_key(slot)), Stored):
            return
        if (floor := (await self._head.read()).floor) > self.position:
            raise HistoryGoneError(f"what followed position {self.position}", floor)
        raise lost(slot)

    async def _chain_at(self, position: int, head: LogHead) -> str | None:
        if not position:
            return START
        # The slot at the floor may hold anything, or nothing.
        if position <= head.floor:
            return None
        read = await self._reader.get(segment_key(position))
        return digest(read.body) if isinstance(read, Stored) else None

    async def _end(self, head: LogHead) -> int:
        """The last full slot. Above the floor there are no gaps, so a few reads find it in a log of any length."""
        low = max(head.snapshot.position if head.snapshot is not None else 0, head.floor)
        return await self._reader.end(low)


def _cut(read: Bodies) -> None:
    """Keep the first slot, and as many more as fit into one read: the reader may be slow, and the rest is read again
    later."""
    size = 0
    for count, body in enumerate(read.bodies):
        size += len(body)
        if size > READ_BYTES and count:
            del read.bodies[count:]
            read.gap = None
            return


def _reaches_beyond(head: LogHead, position: int) -> bool:
    """True if the next slot must be full, because the head builds on it."""
    return head.snapshot is not None and head.snapshot.position > position
