"""Plans: which objects make up a table, pinned at one moment, in splits that can be read in parallel. Never writes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TypeVar

from casque import checks
from casque.codec.document import DocumentCodec
from casque.codec.head import KEY, check_single, read_layout
from casque.codec.log import LAYOUT, START, LogHead, SnapshotRef
from casque.codec.snapshot import Part, Restoring
from casque.errors import HistoryGoneError, InvalidInputError, NoHistoryError, StorageError
from casque.journal.log.past import READS_MAX, oldest_of, refs_of
from casque.scan.bucket import Bucket, count_rows
from casque.scan.splits import (
    ArchiveObject,
    ArchiveSplit,
    DocumentSplit,
    EventsSplit,
    JobsSplit,
    Split,
    Taken,
)
from casque.scan.tables import Table
from casque.state import Limits
from casque.storage.port import Stored
from casque.types import from_ms

T = TypeVar("T")

SPLITS = 16
"""Default number of splits."""
SEGMENTS_MIN = 8
"""Minimum per split, unless a number of splits is given: a task costs more than reading a few small objects."""
SEGMENTS_MAX = 1_000
"""Maximum per split: a log of very many small commits gets more splits than requested."""
OBJECTS_MAX = 64


async def plan_events(
    bucket: Bucket,
    *,
    start: int | datetime | None,
    end: int | datetime | None,
    splits: int | None,
    skew_ms: int,
) -> list[EventsSplit]:
    head = await bucket.log_head()
    assert head.queue_id is not None
    floor, last = head.floor, await bucket.end(head)
    first, upto = floor, last
    since_ms = until_ms = None
    if isinstance(start, datetime):
        since_ms = checks.moment_ms("from", start)
    elif start is not None:
        first = _known("from", checks.position("from", start), head, last)
    if isinstance(end, datetime):
        until_ms = checks.moment_ms("to", end)
    elif end is not None:
        upto = _known("to", checks.position("to", end), head, last)
    if since_ms is not None and first < upto:
        # Every commit before this one was made at most `skew` after it, and so before this moment.
        first = max(first, await bucket.crossing(since_ms - skew_ms, floor, last))
    if until_ms is not None and first < upto:
        upto = min(upto, await bucket.crossing(until_ms + skew_ms, floor, last))
    return events_splits(head.queue_id, first, upto, splits=splits, since_ms=since_ms, until_ms=until_ms)


def events_splits(
    queue_id: str,
    after: int,
    upto: int,
    *,
    splits: int | None,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> list[EventsSplit]:
    """The commits after `after` and up to `upto`, in about `splits` pieces."""
    pieces = _pieces(range(after + 1, upto + 1), splits, SEGMENTS_MIN, SEGMENTS_MAX)
    return [EventsSplit(queue_id, piece[0], piece[-1], since_ms, until_ms) for piece in pieces]


async def position_before(bucket: Bucket, at_ms: int, *, skew_ms: int) -> int:
    """The position before the first commit made at this time or later."""
    head = await bucket.log_head()
    last = await bucket.end(head)
    low = await bucket.crossing(at_ms - skew_ms, head.floor, last)
    async for position, time_ms in bucket.times(low + 1, last):
        if time_ms >= at_ms:
            return position - 1
    return last


async def events_within(
    bucket: Bucket, queue_id: str, after: int, upto: int, *, rows_max: int | None, bytes_max: int | None
) -> Taken:
    """How far the row and byte limits reach: at least one commit, and only whole ones."""
    taken, rows, size = Taken(after, 0, 0), 0, 0
    commits = bucket.segments(queue_id, after + 1, upto)
    async with aclosing(commits):
        async for some in commits:
            for placed in some:
                rows += len(placed.segment.events)
                size += placed.size
                if taken.position > after and (_more(rows, rows_max) or _more(size, bytes_max)):
                    return taken
                taken = Taken(placed.segment.position, rows, size)
    return taken


async def archive_within(
    bucket: Bucket, objects: Sequence[ArchiveObject], after: int, *, rows_max: int | None, bytes_max: int | None
) -> Taken:
    """The same in the archive: at least one range, whose objects stay together."""
    taken, rows, size = Taken(after, 0, 0), 0, 0
    for one in objects:
        read = await bucket.get(one.key)
        if isinstance(read, Stored):
            rows += count_rows(one.key, read.body)
            size += len(read.body)
        if one.last > taken.position > after and (_more(rows, rows_max) or _more(size, bytes_max)):
            return taken
        taken = Taken(one.last, rows, size)
    return taken


def _more(measured: int, most: int | None) -> bool:
    return most is not None and measured > most


async def plan_archive(
    bucket: Bucket,
    table: Table,
    *,
    since: datetime | None,
    until: datetime | None,
    after: int,
    upto: int | None,
    splits: int | None,
) -> list[ArchiveSplit]:
    since_ms, until_ms = _time("since", since), _time("until", until)
    archived = (await bucket.extent()).archived
    upto = archived if upto is None else min(upto, archived)
    objects = await bucket.archive_objects(after=after, upto=upto, since_ms=since_ms, until_ms=until_ms)
    return archive_splits(table, objects, after=after, since_ms=since_ms, until_ms=until_ms, splits=splits)


def archive_splits(
    table: Table,
    objects: Sequence[ArchiveObject],
    *,
    after: int,
    since_ms: int | None,
    until_ms: int | None,
    splits: int | None,
) -> list[ArchiveSplit]:
    """These objects, in about `splits` pieces."""
    pieces = _pieces(objects, splits, 1, OBJECTS_MAX)
    return [ArchiveSplit(table, tuple(some), after, since_ms, until_ms) for some in pieces]


async def plan_jobs(bucket: Bucket, as_of: int | datetime | None, *, splits: int | None, skew_ms: int) -> list[Split]:
    found = await bucket.find()
    if check_single(read_layout(KEY, found.body)).layout != LAYOUT:
        return [_document(found, as_of, bucket.clock.wall_ms())]
    for _ in range(READS_MAX):
        head = await bucket.log_head()
        last = await bucket.end(head)
        position, now_ms = await _moment(bucket, head, last, as_of, skew_ms)
        base = next((ref for ref in reversed(refs_of(head)) if ref.position <= position), None)
        if base is None and head.floor:
            raise HistoryGoneError(f"position {position}", oldest_of(head))
        if base is None:
            return _jobs_splits(head, None, START, [], position, now_ms, splits)
        read = await bucket.get(base.key)
        if isinstance(read, Stored):
            assert head.queue_id is not None
            snapshot = Restoring(base, read.body, queue_id=head.queue_id)
            return _jobs_splits(head, base, snapshot.tip.chain, snapshot.parts, position, now_ms, splits)
        # Either just collected or missing: a newer head decides.
        if base in refs_of(await bucket.log_head()):
            assert head.queue_id is not None
            raise await bucket.reader.missing_of(base, queue_id=head.queue_id)
    raise StorageError("the log was collected faster than it could be read; try again")


def _document(found: Stored, as_of: int | datetime | None, now_ms: int) -> DocumentSplit:
    if as_of is not None:
        raise NoHistoryError
    position = DocumentCodec(KEY, "").decode(found.body, Limits()).position
    return DocumentSplit(zlib.compress(found.body, 1), position, now_ms)


async def _moment(
    bucket: Bucket, head: LogHead, last: int, as_of: int | datetime | None, skew_ms: int
) -> tuple[int, int]:
    """The requested position, and the time of its commit."""
    if as_of is None:
        return last, bucket.clock.wall_ms()
    if isinstance(as_of, datetime):
        at_ms = checks.moment_ms("asOf", as_of)
        return await _position_at(bucket, head, last, at_ms, skew_ms), at_ms
    position = checks.position("asOf", as_of)
    if position > last:
        raise InvalidInputError(
            f"position {position} is in the future: the positions of this queue that can be read are "
            f"{oldest_of(head)} to {last}"
        )
    if position > head.floor:
        return position, await bucket.time_of(position)
    refs = refs_of(head)
    if head.floor and position < refs[0].position:
        raise HistoryGoneError(f"position {position}", oldest_of(head))
    return position, refs[0].at if head.floor else 0


async def _position_at(bucket: Bucket, head: LogHead, last: int, at_ms: int, skew_ms: int) -> int:
    """The last commit whose time is not later, as everywhere when the past is opened by time."""
    refs = refs_of(head)
    if head.floor and at_ms < refs[0].at:
        raise HistoryGoneError(f"{_text(at_ms)} (the oldest moment left is {_text(refs[0].at)})", refs[0].position)
    latest_ms = bucket.clock.wall_ms()
    if at_ms > latest_ms and (last <= head.floor or at_ms > await bucket.time_of(last)):
        raise InvalidInputError(f"{_text(at_ms)} is in the future: this queue can be read up to {_text(latest_ms)}")
    # Clocks differ: a commit may have a later time than the next one. Beyond `high` none is early enough.
    low = await bucket.crossing(at_ms + 1, head.floor, last)
    high = await bucket.crossing(at_ms + 1 + skew_ms, low, last)
    early = [position async for position, time_ms in bucket.times(low + 1, high) if time_ms <= at_ms]
    return early[-1] if early else low


def _jobs_splits(
    head: LogHead,
    base: SnapshotRef | None,
    chain: str,
    parts: Sequence[Part],
    position: int,
    now_ms: int,
    splits: int | None,
) -> list[Split]:
    assert head.queue_id is not None
    groups: list[Sequence[Part]] = _pieces(parts, splits, 1, max(len(parts), 1)) or [()]
    return [
        JobsSplit(head.queue_id, base, chain, not some, tuple(some), number, len(groups), position, now_ms)
        for number, some in enumerate(groups)
    ]


def _text(ms: int) -> str:
    return from_ms(ms).isoformat(timespec="milliseconds")


def _time(name: str, moment: datetime | None) -> int | None:
    return None if moment is None else checks.moment_ms(name, moment)


def _known(name: str, position: int, head: LogHead, last: int) -> int:
    if position < head.floor:
        raise HistoryGoneError(f"what followed position {position}", head.floor)
    if position > last:
        raise InvalidInputError(
            f"{name}: position {position} is in the future: the last commit of this queue is {last}"
        )
    return position


def _pieces(things: Sequence[T], count: int | None, least: int, most: int) -> list[Sequence[T]]:
    """Consecutive pieces. No more pieces than requested, unless one would be too large."""
    size = math.ceil(len(things) / (count or SPLITS))
    size = min(max(size, 1 if count else least), most)
    return [things[at : at + size] for at in range(0, len(things), size)]
