"""Follows a queue's events, or its archive, as a stream. An offset is a position: what lies between two of them never
changes, so a batch that is replayed has the same rows.

Nothing is acknowledged to the queue: how far a stream has come stands in its checkpoint. Spark tells a source late, or
never, that a batch is done.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from casque.client.scan import ArchiveObject, Extent, Split, Table
from casque.client.scan.planning import archive_splits, events_splits
from casque.codec.archive import hour_of
from casque.codec.stored import to_ms
from casque.errors import HistoryGoneError, InvalidInputError
from casque.spark.arrow import wanted_schema
from casque.spark.offsets import Offset
from casque.spark.options import OnGone, SourceOptions, Start
from casque.spark.reader import SplitPartition, read_batches
from casque.telemetry import logger

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
        InvalidInputError: the table has no order in which it could be followed.
    """
    match options.table:
        case Table.EVENTS:
            return EventsStream(options, schema)
        case Table.ARCHIVE | Table.ATTEMPTS:
            return ArchiveStream(options, schema)
        case Table.JOBS:
            raise InvalidInputError(
                "jobs change in place and cannot be followed: read the table events as a stream, or jobs as a batch"
            )


class TableStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What both streams do alike."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = wanted_schema(options.table, schema)
        self._scan = options.scan()
        self._target: int | None = None
        """Where a run ends that reads what is there now."""
        self._last: Offset | None = None
        _show_warnings()

    # --- What Spark asks ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's names
        self._last = self.begin()
        return self._last.json()

    def latestOffset(  # noqa: N802
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """`start` and `limit` come since PySpark 4.2."""
        known = Offset.read(start) if start is not None else self._last
        rows_max, bytes_max = self._options.rows_max, self._options.bytes_max
        if limit is not None and isinstance(limit, ReadAllAvailable):
            rows_max = bytes_max = None
        if known is None:  # an old PySpark that begins from a checkpoint: it does not say where that is
            known, rows_max, bytes_max = self.begin(), None, None
        self._last = self.advance(known, rows_max, bytes_max)
        return self._last.json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        # Spark takes one of them. Both are kept, as the options say them.
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return Offset(self.end()).json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self.end()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        self._last = Offset.read(end)
        return [SplitPartition(split) for split in self.between(Offset.read(start), self._last)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_batches(self._options, partition, self._schema)

    def stop(self) -> None:
        self._scan.close()

    # --- What each of them knows ---

    def begin(self) -> Offset:
        """Where a stream without a checkpoint starts."""
        raise NotImplementedError

    def end(self) -> int:
        """How far there is something to read."""
        raise NotImplementedError

    def advance(self, start: Offset, rows_max: int | None, bytes_max: int | None) -> Offset:
        """Where the next batch ends; `start` itself if there is nothing."""
        raise NotImplementedError

    def between(self, start: Offset, end: Offset) -> Sequence[Split]:
        raise NotImplementedError

    def skip(self, asked: str, oldest: int) -> None:
        """
        Raises:
            HistoryGoneError: nobody said that what is gone may be skipped.
        """
        if self._options.on_gone is OnGone.FAIL:
            raise HistoryGoneError(f"{asked}, where this stream stands ({GO_ON}),", oldest)
        log.warning("%s is gone, and skipped as onGone=skip asks for: the stream goes on at position %d", asked, oldest)


class EventsStream(TableStream):
    """Offsets are positions of the log."""

    def begin(self) -> Offset:
        extent = self._scan.extent()
        start, queue = self._options.start, extent.queue_id
        if isinstance(start, datetime):
            return Offset(self._scan.position_before(start, clock_skew=self._options.clock_skew), queue=queue)
        if isinstance(start, int):
            if start > extent.end:
                raise InvalidInputError(
                    f"start: position {start} is in the future: the last commit of this queue is {extent.end}"
                )
            return Offset(start, queue=queue)
        self._scan.plan_events(start=extent.end)  # a queue without a history is refused here
        return Offset(extent.floor if start is Start.EARLIEST else extent.end, queue=queue)

    def end(self) -> int:
        return self._scan.extent().end

    def advance(self, start: Offset, rows_max: int | None, bytes_max: int | None) -> Offset:
        extent, position = self._extent(start), start.position
        target = extent.end if self._target is None else self._target
        if target <= position:
            return start
        skipped = 0
        if extent.floor > position:
            self.skip(f"what followed position {position}", extent.floor)
            skipped = position = min(extent.floor, target)
        if position < target and (rows_max is not None or bytes_max is not None):
            queue = _named(extent)
            target = self._scan.events_within(queue, position, target, rows_max=rows_max, bytes_max=bytes_max)
        return Offset(target, queue=extent.queue_id, skipped=skipped)

    def between(self, start: Offset, end: Offset) -> Sequence[Split]:
        extent, position = self._extent(end), max(start.position, end.skipped)
        if extent.floor > position and position < end.position:
            self.skip(f"what followed position {position}", extent.floor)
            position = min(extent.floor, end.position)
        return events_splits(_named(extent), position, end.position, splits=self._options.splits)

    def _extent(self, offset: Offset) -> Extent:
        extent = self._scan.extent()
        if offset.queue not in (None, extent.queue_id) or offset.position > extent.end:
            raise InvalidInputError(
                f"this stream stands at position {offset.position} of another queue: the one that it followed was "
                "converted, or another one put in its place. Start it with a new checkpoint"
            )
        return extent


def _named(extent: Extent) -> str:
    assert extent.queue_id is not None, "a log names its queue"
    return extent.queue_id


class ArchiveStream(TableStream):
    """Offsets are positions up to which finished jobs are in the archive: ends of ranges."""

    def begin(self) -> Offset:
        start, archived = self._options.start, self._scan.extent().archived
        if isinstance(start, datetime):
            later = [one.first for one in self._scan.archive_objects() if one.hour >= hour_of(to_ms(start))]
            return Offset(min(later) - 1 if later else archived)
        if isinstance(start, int):
            if start > archived:
                raise InvalidInputError(
                    f"start: position {start} is not archived yet: the archive of this queue reaches up to {archived}"
                )
            return Offset(start)
        return Offset(0 if start is Start.EARLIEST else archived)

    def end(self) -> int:
        return self._scan.extent().archived

    def advance(self, start: Offset, rows_max: int | None, bytes_max: int | None) -> Offset:
        target = self.end() if self._target is None else self._target
        if target < start.position:
            raise InvalidInputError(
                f"this stream stands at position {start.position}, and the archive reaches only up to {target}: "
                "another queue was put in the place of the one that it followed. Start it with a new checkpoint"
            )
        if target == start.position:
            return start
        everything = self._scan.archive_objects(upto=target)
        objects = [one for one in everything if one.last > start.position]
        skipped = 0
        if _may_lack(start, everything, objects):
            skipped = objects[0].first - 1 if objects else target
            self.skip(f"what the archive held after position {start.position} (see `archive_retention`)", skipped)
        if objects and (rows_max is not None or bytes_max is not None):
            target = self._scan.archive_within(objects, start.position, rows_max=rows_max, bytes_max=bytes_max)
            objects = [one for one in objects if one.last <= target]
        hour = max([start.hour, *(one.hour for one in objects)])
        return Offset(target, skipped=skipped, hour=hour, objects=len(objects))

    def between(self, start: Offset, end: Offset) -> Sequence[Split]:
        objects = self._scan.archive_objects(after=start.position, upto=end.position)
        if end.objects is not None and len(objects) != end.objects:
            asked = (
                f"of {end.objects} objects of the archive between positions {start.position} and {end.position} some"
            )
            self.skip(asked, objects[0].first if objects else end.position)
        since = self._options.since if self._options.since is not None else self._options.start
        return archive_splits(
            self._options.table,
            objects,
            after=start.position,
            since_ms=to_ms(since) if isinstance(since, datetime) else None,
            until_ms=None if self._options.until is None else to_ms(self._options.until),
            splits=self._options.splits,
        )


def _may_lack(start: Offset, everything: Sequence[ArchiveObject], objects: Sequence[ArchiveObject]) -> bool:
    """Whether objects may have been deleted before this stream came to them.

    Ranges follow each other, but for stretches in which nothing finished. So if the next one does not follow, and the
    hour that was read last is deleted already, then what lay between may be deleted as well.
    """
    if not start.hour or (objects and objects[0].first == start.position + 1):
        return False
    return not any(one.hour <= start.hour for one in everything)


def _show_warnings() -> None:
    """A Python process that Spark has started shows no log unless somebody set one up: what is skipped must be seen."""
    if not logging.getLogger().handlers and not any(isinstance(h, logging.StreamHandler) for h in log.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
