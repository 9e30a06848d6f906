"""Follows a queue's events, or its archive, as a stream. An offset is a position, in each shard of a ring: data between
two offsets never changes, so a replayed batch has the same rows.

Nothing is acknowledged to the queue: the checkpoint keeps the position of a stream. Spark informs a source late, or
never, that a batch is done.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from casque.errors import CasqueError, HistoryGoneError, InvalidInputError, NoHistoryError
from casque.scan import ArchiveObject, Extent, Split, Table, Taken
from casque.scan.horizon import look_around
from casque.scan.planning import archive_splits, events_splits
from casque.scan.scan import of_shard
from casque.scan.shards import Share, shard_name
from casque.spark.arrow import wanted_schema
from casque.spark.offsets import Offset, Offsets
from casque.spark.options import OnGone, SourceOptions, Start
from casque.spark.reader import partitions_of, read_batches
from casque.spark.store_ref import StoreRef
from casque.telemetry import logger
from casque.types import to_ms

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before PySpark 4.2 Spark itself stops where the first batch of such a trigger ended
    ReadAllAvailable = ReadMaxBytes = ReadMaxRows = None  # type: ignore[assignment, misc]
    SupportsTriggerAvailableNow = object  # type: ignore[assignment, misc]

log = logger("spark")

GO_ON = "start it again with the option onGone=skip to go on with what is left, or with a new checkpoint"


def stream_reader(options: SourceOptions, schema: StructType) -> DataSourceStreamReader:
    """
    Raises:
        InvalidInputError: the table has no order that a stream could follow.
    """
    if options.archived and options.table is not Table.EVENTS:
        raise InvalidInputError(f"archived is for the table events: a stream of {options.table} is archived anyway")
    match options.table:
        case Table.EVENTS:
            return ArchivedEventsStream(options, schema) if options.archived else EventsStream(options, schema)
        case Table.ARCHIVE | Table.ATTEMPTS:
            return ArchiveStream(options, schema)
        case Table.JOBS:
            raise InvalidInputError(
                "jobs change in place and cannot be followed: read the table events as a stream, or jobs as a batch"
            )


class RefusedStream(DataSourceStreamReader):
    """Raises the reason as soon as Spark asks for anything. Spark answers an error of `streamReader` itself with an
    `UnboundLocalError` of its own."""

    def __init__(self, reason: CasqueError) -> None:
        self._reason = reason

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's names
        raise self._reason

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802, ARG002
        raise self._reason

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:  # noqa: ARG002
        raise self._reason

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002
        raise self._reason


class TableStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The common part of both streams. Each shard of a ring is followed separately, and a batch has some of each."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = wanted_schema(options.table, schema)
        self._scan = options.scan()
        self._target: Mapping[int | None, int] | None = None
        """Where an `availableNow` run ends."""
        self._last: Offsets | None = None
        self._waited: frozenset[int | None] = frozenset()
        """Shards that the last batch had no room for."""
        _show_warnings()

    # --- Methods that Spark calls ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's names
        self._last = self._begin()
        return self._last.json()

    def latestOffset(  # noqa: N802
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """PySpark 4.2 and later pass `start` and `limit`."""
        known = Offsets.read(start) if start is not None else self._last
        room = Room(self._options.rows_max, self._options.bytes_max)
        if limit is not None and isinstance(limit, ReadAllAvailable):
            room = Room()
        if known is None:  # an old PySpark that resumes from a checkpoint: it does not say where that is
            known, room = self._begin(), Room()
        self._last = self._advance(known, room)
        return self._last.json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        # Spark accepts only one limit. The options keep both, and both apply.
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        extents = self._scan.extents()[1]
        return Offsets({shard: Offset(self.end(extent)) for shard, extent in extents.items()}).json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self.ends(self._scan.extents()[1], Offsets({}))

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        before, self._last = Offsets.read(start), Offsets.read(end)
        _, extents = self._look(self._last)
        ahead = {shard: one for shard, one in self._last.of.items() if one.position > before.at(shard).position}
        splits: list[Split] = []
        for shard, one in ahead.items():
            share = Share(shard, len(ahead))
            splits += of_shard(self.between(share, extents[shard], before.at(shard), one), shard)
        return partitions_of(splits, self._options.splits)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_batches(self._options, partition, self._schema)

    def stop(self) -> None:
        self._scan.close()

    # --- All shards ---

    def _begin(self) -> Offsets:
        queue, extents = self._scan.extents()
        begins = {
            shard: self.begin(shard, extent, Share(shard, len(extents)).point("start", self._start))
            for shard, extent in extents.items()
        }
        return Offsets(begins, self._whose(queue, begins))

    @property
    def _start(self) -> Any:
        start = self._options.start
        return None if isinstance(start, Start) else start

    def ends(self, extents: Mapping[int | None, Extent], start: Offsets) -> dict[int | None, int]:
        """The last position of each shard that a batch after `start` can reach."""
        del start
        return {shard: self.end(extent) for shard, extent in extents.items()}

    def _look(self, offsets: Offsets) -> tuple[str | None, dict[int | None, Extent]]:
        queue, extents = self._scan.extents()
        if offsets.queue not in (None, queue) or offsets.of.keys() - extents.keys():
            raise InvalidInputError(
                "this stream stands in the history of another queue: the one that it followed was converted, or "
                "another one put in its place. Start it with a new checkpoint"
            )
        for shard, offset in offsets.of.items():
            self.check(extents[shard], offset)
        return queue, extents

    def _advance(self, start: Offsets, room: Room) -> Offsets:
        """Where the next batch ends; `start` itself if there is nothing. New shards start at their beginning."""
        queue, extents = self._look(start)
        target = self.ends(extents, start) if self._target is None else self._target
        lags = {shard: target.get(shard, 0) - start.at(shard).position for shard in extents}
        # Shards that had to wait come first. Then those with little, so that their unused room goes to those with much.
        behind = sorted(
            (shard for shard in lags if lags[shard] > 0), key=lambda one: (one not in self._waited, lags[one])
        )
        reached, left = dict(start.of), len(behind)
        for shard in behind:
            if room.is_full:
                break
            reached[shard], taken = self.advance(
                shard, extents[shard], start.at(shard), target[shard], room.share(left)
            )
            room, left = room.without(taken), left - 1
        self._waited = frozenset(behind[len(behind) - left :])
        return Offsets(dict(sorted(reached.items(), key=lambda one: one[0] or 0)), self._whose(queue, reached))

    # --- One shard; each stream has its own version ---

    def begin(self, shard: int | None, extent: Extent, start: int | datetime | None) -> Offset:
        """Where a stream without a checkpoint starts."""
        raise NotImplementedError

    def end(self, extent: Extent) -> int:
        """The last position that can be read."""
        raise NotImplementedError

    def check(self, extent: Extent, offset: Offset) -> None:
        """
        Raises:
            InvalidInputError: the stream cannot have come this far.
        """
        raise NotImplementedError

    def advance(
        self, shard: int | None, extent: Extent, start: Offset, target: int, room: Room
    ) -> tuple[Offset, Taken]:
        """Where the next batch ends, and the size of the batch as far as it was counted."""
        raise NotImplementedError

    def between(self, share: Share, extent: Extent, start: Offset, end: Offset) -> Sequence[Split]:
        raise NotImplementedError

    def _whose(self, queue: str | None, of: Mapping[int | None, Offset]) -> str | None:
        """The queue id to check later; None for an archive, which survives a conversion of its queue."""
        return queue if None not in of or self._options.table is Table.EVENTS else None

    def skip(self, asked: str, oldest: int) -> None:
        """
        Raises:
            HistoryGoneError: deleted data may not be skipped, because `onGone` does not say so.
        """
        if self._options.on_gone is OnGone.FAIL:
            raise HistoryGoneError(f"{asked}, where this stream stands ({GO_ON}),", oldest)
        log.warning("%s is gone, and skipped as onGone=skip asks for: the stream goes on at position %d", asked, oldest)


class EventsStream(TableStream):
    """Offsets are positions of the log."""

    def begin(self, shard: int | None, extent: Extent, start: int | datetime | None) -> Offset:
        if not extent.has_log:
            raise NoHistoryError
        if isinstance(start, datetime):
            return Offset(self._scan.position_before(start, clock_skew=self._options.clock_skew, shard=shard))
        if isinstance(start, int):
            if start > extent.end:
                raise InvalidInputError(
                    f"start: position {start} is in the future: the last commit of this queue is {extent.end}"
                )
            return Offset(start)
        return Offset(extent.floor if self._options.start is Start.EARLIEST else extent.end)

    def end(self, extent: Extent) -> int:
        return extent.end

    def check(self, extent: Extent, offset: Offset) -> None:
        if offset.position > extent.end:
            raise InvalidInputError(
                f"this stream stands at position {offset.position} of another queue: the one that it followed was "
                "converted, or another one put in its place. Start it with a new checkpoint"
            )

    def advance(
        self, shard: int | None, extent: Extent, start: Offset, target: int, room: Room
    ) -> tuple[Offset, Taken]:
        position, skipped, taken = start.position, 0, NOTHING
        if extent.floor > position:
            self.skip(f"what followed position {position}{_of(shard)}", extent.floor)
            skipped = position = min(extent.floor, target)
        if position < target and room.is_limited:
            taken = self._scan.events_within(
                _named(extent), position, target, rows_max=room.rows, bytes_max=room.bytes, shard=shard
            )
            target = taken.position
        return Offset(target, skipped=skipped), taken

    def between(self, share: Share, extent: Extent, start: Offset, end: Offset) -> Sequence[Split]:
        position = max(start.position, end.skipped)
        if extent.floor > position and position < end.position:
            self.skip(f"what followed position {position}{_of(share.shard)}", extent.floor)
            position = min(extent.floor, end.position)
        return events_splits(_named(extent), position, end.position, splits=share.splits(self._options.splits))


class ArchivedEventsStream(EventsStream):
    """Ends before the first finish that is not archived. The lag in the progress counts from the last commit of all."""

    def begin(self, shard: int | None, extent: Extent, start: int | datetime | None) -> Offset:
        if extent.has_log:
            return super().begin(shard, extent, start)
        return Offset(start if isinstance(start, int) else 0)

    def ends(self, extents: Mapping[int | None, Extent], start: Offsets) -> dict[int | None, int]:
        store = StoreRef(self._options.url, self._options.store)
        reached = {shard: start.at(shard).position for shard in extents}
        while True:
            sight = store.run(partial(look_around, known=partial(_known, reached)))
            reached = {shard: horizon.position for shard, horizon in sight.shards.items() if shard in extents}
            if sight.is_end:
                return reached

    def advance(
        self, shard: int | None, extent: Extent, start: Offset, target: int, room: Room
    ) -> tuple[Offset, Taken]:
        if not extent.has_log:
            return Offset(target), NOTHING
        return super().advance(shard, extent, start, target, room)

    def between(self, share: Share, extent: Extent, start: Offset, end: Offset) -> Sequence[Split]:
        return super().between(share, extent, start, end) if extent.has_log else ()


def _known(reached: Mapping[int | None, int], shard: int | None) -> int:
    return reached.get(shard, 0)


def _named(extent: Extent) -> str:
    assert extent.queue_id is not None, "a log names its queue"
    return extent.queue_id


class ArchiveStream(TableStream):
    """Offsets are positions up to which finished jobs are in the archive: ends of ranges."""

    def begin(self, shard: int | None, extent: Extent, start: int | datetime | None) -> Offset:
        archived = extent.archived
        if isinstance(start, datetime):
            later = [one.first for one in self._scan.archive_objects(since=start, shard=shard)]
            return Offset(min(later) - 1 if later else archived)
        if isinstance(start, int):
            if start > archived:
                raise InvalidInputError(
                    f"start: position {start} is not archived yet: the archive of this queue reaches up to {archived}"
                )
            return Offset(start)
        return Offset(0 if self._options.start is Start.EARLIEST else archived)

    def end(self, extent: Extent) -> int:
        return extent.archived

    def check(self, extent: Extent, offset: Offset) -> None:
        if extent.archived < offset.position:
            raise InvalidInputError(
                f"this stream stands at position {offset.position}, and the archive reaches only up to "
                f"{extent.archived}: another queue was put in the place of the one that it followed. Start it with a "
                "new checkpoint"
            )

    def advance(
        self, shard: int | None, extent: Extent, start: Offset, target: int, room: Room
    ) -> tuple[Offset, Taken]:
        del extent
        everything = self._scan.archive_objects(upto=target, shard=shard)
        objects = [one for one in everything if one.last > start.position]
        skipped, taken = 0, NOTHING
        if _may_lack(start, everything, objects):
            skipped = objects[0].first - 1 if objects else target
            asked = f"what the archive held after position {start.position}{_of(shard)} (see `archive_retention`)"
            self.skip(asked, skipped)
        if objects and room.is_limited:
            taken = self._scan.archive_within(
                objects, start.position, rows_max=room.rows, bytes_max=room.bytes, shard=shard
            )
            target = taken.position
            objects = [one for one in objects if one.last <= target]
        hour = max([start.hour, *(one.hour for one in objects)])
        return Offset(target, skipped, hour, len(objects)), taken

    def between(self, share: Share, extent: Extent, start: Offset, end: Offset) -> Sequence[Split]:
        del extent
        objects = self._scan.archive_objects(after=start.position, upto=end.position, shard=share.shard)
        if end.objects is not None and len(objects) != end.objects:
            asked = (
                f"of {end.objects} objects of the archive between positions {start.position} and {end.position}"
                f"{_of(share.shard)} some"
            )
            self.skip(asked, objects[0].first if objects else end.position)
        since = self._options.since if self._options.since is not None else self._options.start
        return archive_splits(
            self._options.table,
            objects,
            after=start.position,
            since_ms=to_ms(since) if isinstance(since, datetime) else None,
            until_ms=None if self._options.until is None else to_ms(self._options.until),
            splits=share.splits(self._options.splits),
        )


class Room(msgspec.Struct, frozen=True):
    """Remaining room in a batch."""

    rows: int | None = None
    bytes: int | None = None

    @property
    def is_limited(self) -> bool:
        return self.rows is not None or self.bytes is not None

    @property
    def is_full(self) -> bool:
        return self.rows == 0 or self.bytes == 0

    def share(self, of: int) -> Room:
        """An equal share for one of `of` shards."""
        return Room(_quotient(self.rows, of), _quotient(self.bytes, of))

    def without(self, taken: Taken) -> Room:
        return Room(_less(self.rows, taken.rows), _less(self.bytes, taken.bytes))


NOTHING = Taken(0, 0, 0)


def _quotient(number: int | None, of: int) -> int | None:
    return None if number is None else max(1, number // of)


def _less(number: int | None, by: int) -> int | None:
    return None if number is None else max(0, number - by)


def _of(shard: int | None) -> str:
    return "" if shard is None else f" of shard {shard_name(shard)}"


def _may_lack(start: Offset, everything: Sequence[ArchiveObject], objects: Sequence[ArchiveObject]) -> bool:
    """Whether objects may have been deleted before this stream read them.

    Ranges are contiguous, except for stretches in which nothing finished. So if the next one does not follow directly
    and the hour that was read last is already deleted, then the objects in between may be deleted as well.
    """
    if not start.hour or (objects and objects[0].first == start.position + 1):
        return False
    return not any(one.hour <= start.hour for one in everything)


def _show_warnings() -> None:
    """Python processes of Spark have no logging set up; warnings about skipped data must be visible."""
    if not logging.getLogger().handlers and not any(isinstance(h, logging.StreamHandler) for h in log.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
