"""Read-only access to one queue's objects: where its history begins and ends, and the commits in between.

The head decides, as everywhere: a segment counts only if a head read after it puts it above the floor. Below the floor
the object may be gone, or be a different one by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

import msgspec

from casque.clock import yield_once
from casque.codec import parquet
from casque.codec.archive import ARCHIVE, Form, choose, form_of, hour_of, no_archive, parse_hour, parse_key, require_for
from casque.codec.head import KEY, UNREADABLE, Head, check_same_queue, check_single, not_a_queue, read_layout
from casque.codec.log import LAYOUT, LogHead, previous, segment_key
from casque.environment import Environment
from casque.errors import HistoryGoneError, InvalidInputError, NoHistoryError
from casque.journal.log.reader import READ_AHEAD, Bodies, Placed, Reader, linked, lost
from casque.journal.log.register import HeadRegister
from casque.scan.splits import ArchiveObject, Extent
from casque.storage.port import Read, Store, Stored

HANDFUL_BYTES = 512 * 1024


class _DocumentMarks(Head, frozen=True):
    """The history fields of a document, without its jobs."""

    version: int = 0
    archived: int | None = None


class _When(msgspec.Struct):
    at: int


_marks_decoder = msgspec.json.Decoder(_DocumentMarks)
_when_decoder = msgspec.json.Decoder(_When)


class Bucket:
    """Reads with retries, as far as the settings allow, and never writes."""

    def __init__(self, store: Store, env: Environment) -> None:
        self.store = store
        self.clock = env.clock
        self._env = env
        self.head = HeadRegister(store, env.patience)
        self.reader = Reader(store, env.patience)
        self._end: tuple[str | None, int] = None, 0
        """Queue id and last known end of its log."""

    # --- What there is ---

    async def find(self) -> Stored:
        """`queue.json`, in any layout.

        Raises:
            InvalidInputError: there is no queue.
        """
        read = await self.get(KEY)
        if not isinstance(read, Stored):
            raise InvalidInputError(
                f"there is no queue here: {KEY} is missing. A queue is there once something was enqueued"
            )
        return read

    async def log_head(self, queue_id: str | None = None) -> LogHead:
        """The head of a log.

        Raises:
            NoHistoryError: the queue is a document.
            QueueReplacedError: the queue there has another id.
        """
        found = await self.find()
        if (layout := check_single(read_layout(KEY, found.body))).layout != LAYOUT:
            raise NoHistoryError
        check_same_queue(layout, queue_id)
        return self.head.adopt(found)

    async def extent(self) -> Extent:
        found = await self.find()
        layout = check_single(read_layout(KEY, found.body))
        if layout.layout == LAYOUT:
            head = self.head.adopt(found)
            return Extent(head.queue_id, LAYOUT, head.floor, await self.end(head), head.archived_to)
        try:
            marks = _marks_decoder.decode(found.body)
        except UNREADABLE as error:
            raise not_a_queue(KEY, error) from error
        # A document without this mark has nothing to archive.
        archived = marks.version if marks.archived is None else marks.archived
        return Extent(marks.queue_id, marks.layout, marks.version, marks.version, archived)

    async def end(self, head: LogHead) -> int:
        """The last commit. Above the floor there are no gaps, so a few reads find it in a log of any length."""
        low = max(head.snapshot.position if head.snapshot is not None else 0, head.floor)
        if self._end[0] == head.queue_id:
            low = max(low, self._end[1])  # a log only grows
        low = await self.reader.end(low)
        self._end = head.queue_id, low
        return low

    async def crossing(self, at_ms: int, floor: int, end: int) -> int:
        """A position whose commit was made before `at_ms` while the next one was not; the floor or the end if there is
        none. If the clocks of all committers agree, there is exactly one."""
        low, high = floor, end + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if await self.time_of(middle) < at_ms else (low, middle)
        return low

    async def time_of(self, position: int) -> int:
        """When a commit was made, by the committer's clock."""
        read = await self.get(segment_key(position))
        if not isinstance(read, Stored):
            raise await self._missing(position)
        return _time(position, read.body)

    async def archive_objects(
        self, *, upto: int, after: int = 0, since_ms: int | None = None, until_ms: int | None = None
    ) -> list[ArchiveObject]:
        """Archive objects for the positions after `after` and up to `upto`, in the order of positions.

        A range that is still being written lies above the head's `archived` mark: it may not be complete.
        """
        through_ms = None if until_ms is None else until_ms - 1
        objects = list_archive(self.store, since_ms=since_ms, through_ms=through_ms)
        found = [one async for one in objects if after < one.last <= upto]
        return sorted(found, key=lambda one: (one.first, one.hour))

    # --- Reading ---

    async def get(self, key: str) -> Read:
        return await self.reader.get(key)

    async def segments(
        self, queue_id: str, first: int, last: int, *, chain: str | None = None
    ) -> AsyncGenerator[list[Placed]]:
        """The commits between two positions, in batches, prefetching the next ones.

        Raises:
            HistoryGoneError: they were collected before they were read.
            QueueReplacedError: another queue is there now.
            CorruptQueueError: one is missing or invalid.
        """
        await self.log_head(queue_id)
        position = first - 1
        ahead = self._window(position, last)
        try:
            while position < last:
                read = await ahead
                head = await self.head.read()
                if head.floor > position:
                    raise _gone(position, head.floor)
                if not read.bodies:
                    raise await self._missing(position + 1)
                before, position = position, position + len(read.bodies)
                ahead = self._window(position, last)
                await yield_once()  # start the requests before decoding
                for bodies in _handfuls(read.bodies):
                    chain = chain if chain is not None else previous(bodies[0])
                    tail = linked(queue_id, before, chain, Bodies(bodies, staged=read.staged))
                    if tail.broken is not None:
                        raise tail.broken
                    before, chain = before + len(bodies), tail.found[-1].digest
                    yield tail.found
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    async def times(self, first: int, last: int) -> AsyncGenerator[tuple[int, int]]:
        """Position and time of each commit between two positions."""
        position = first - 1
        while position < last:
            read = await self.reader.slots(position, min(READ_AHEAD, last - position))
            if not read.bodies:
                raise await self._missing(position + 1)
            for body in read.bodies:
                position += 1
                yield position, _time(position, body)

    def _window(self, position: int, last: int) -> asyncio.Task[Bodies]:
        return asyncio.create_task(self.reader.window(position, min(READ_AHEAD, last - position)))

    async def _missing(self, position: int) -> Exception:
        """Why a segment is missing: it was collected, or the queue is damaged."""
        floor = (await self.head.read()).floor
        return _gone(position - 1, floor) if floor >= position else lost(position)


async def list_archive(
    store: Store, *, since_ms: int | None = None, through_ms: int | None = None, every_form: bool = False
) -> AsyncGenerator[ArchiveObject]:
    """The objects of a queue's archive, complete or not, from the hour of one moment to that of another: those that a
    reader takes, one for each hour and range, or all of them."""
    begin = None if since_ms is None else f"{ARCHIVE}{hour_of(since_ms)}/"
    last = None if through_ms is None else hour_of(through_ms)
    listed: list[str] = []
    async for key in store.list(ARCHIVE, after=begin):
        if last is not None and parse_hour(key) > last:
            break
        listed.append(key)
    for key in listed if every_form else choose(listed):
        if (parsed := parse_key(key)) is not None:
            hour, range_ = parsed
            yield ArchiveObject(key, hour, range_.first, range_.last)


def count_rows(key: str, body: bytes) -> int:
    """How many jobs an archive object holds."""
    if form_of(key) is Form.LINES:
        return body.count(b"\n")
    require_for(key)
    try:
        return parquet.row_count(body)
    except parquet.unfit() as error:
        raise no_archive(key, error) from error


def _handfuls(bodies: list[bytes]) -> Iterator[list[bytes]]:
    """Groups to decode at once, small enough to stay in the processor's cache until their columns are built."""
    some: list[bytes] = []
    size = 0
    for body in bodies:
        some.append(body)
        size += len(body)
        if size >= HANDFUL_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _time(position: int, body: bytes) -> int:
    try:
        return _when_decoder.decode(body).at
    except UNREADABLE as error:
        raise not_a_queue(segment_key(position), error) from error


def _gone(position: int, floor: int) -> HistoryGoneError:
    return HistoryGoneError(f"what followed position {position}", floor)
