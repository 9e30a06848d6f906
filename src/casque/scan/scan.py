"""`Scan`: plans the tables of one queue, and reads their splits anywhere."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar

import msgspec

from casque import checks
from casque.clock import Clock, SystemClock
from casque.environment import Environment
from casque.errors import InvalidInputError
from casque.scan import planning
from casque.scan.bucket import Bucket
from casque.scan.reading import read_split, table_of
from casque.scan.shards import Buckets, Point, Share, with_ring_numbers
from casque.scan.splits import ArchiveObject, ArchiveSplit, EventsSplit, Extent, Split, Taken
from casque.scan.tables import Table, arrow_schema, check_columns
from casque.settings import QueueSettings, milliseconds
from casque.storage.adapted import SingleObjectStore
from casque.storage.port import Store
from casque.storage.url import as_store, is_address

R = TypeVar("R")
S = TypeVar("S", bound=Split)

CLOCK_SKEW = timedelta(hours=1)
SETTINGS = QueueSettings()


class Scan:
    """A queue's tables, read from its bucket while the queue is in use. Never writes.

    A plan pins what it reads, so its splits can be read anywhere, in any order and repeatedly: later commits, archived
    ranges or collections do not change them. Reading objects that were collected meanwhile raises. Calls block; a scan
    and its splits can be pickled.

    A ring of shards is planned as a whole, each shard pinned by itself, and its rows have the ring's numbers. Where a
    position is needed, a ring needs one for each shard.

    >>> from casque import SyncQueue
    >>> from casque.scan import Scan
    >>> with SyncQueue.open("memory://scan-example") as q:
    ...     _ = q.enqueue("send", b"hello")
    >>> with Scan("memory://scan-example") as scan:
    ...     for split in scan.plan_events():
    ...         for batch in scan.read(split, columns=["position", "kind", "entrypoint"]):
    ...             print(batch.to_pylist())
    [{'position': 1, 'kind': 'added', 'entrypoint': 'send'}]
    """

    def __init__(
        self,
        url: Any,
        *,
        options: Mapping[str, str] | None = None,
        settings: QueueSettings = SETTINGS,
        clock: Clock | None = None,
    ) -> None:
        """`url` and `options` are those of a store, as for `Queue.open`. Nothing is read yet.

        Raises:
            InvalidInputError: it is a broker's address, or not the URL of a store.
        """
        if is_address(url):
            raise InvalidInputError(
                "tables are read from the bucket, not through a broker: give the URL of the store that the broker "
                "serves (s3://, gs://, az:// or file://)"
            )
        self._url = url
        self._options = dict(options or {})
        self._settings = settings
        self._clock = clock
        self._opened: _Opened | None = None
        if isinstance(as_store(url, self._options), SingleObjectStore):
            raise InvalidInputError("a storage of one object has no tables beside it; open the queue by URL")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._url).partition('?')[0]!r})"  # never the options: they hold secrets

    # --- What there is ---

    def extent(self, shard: int | None = None) -> Extent:
        """Where the history begins and ends, and how far the archive reaches.

        Raises:
            InvalidInputError: there is no queue.
            RingError: it is a ring, and no shard was named.
        """
        return self._run(lambda buckets: buckets.of(shard).extent())

    def extents(self) -> tuple[str | None, dict[int | None, Extent]]:
        """The queue's id, and the extent of each shard of a ring; a queue without shards has one under None."""
        return self._run(lambda buckets: buckets.extents())

    def archive_objects(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        after: int = 0,
        upto: int | None = None,
        shard: int | None = None,
    ) -> list[ArchiveObject]:
        """The archive objects that a plan would read, in the order of positions."""
        splits = self._run(
            lambda buckets: planning.plan_archive(
                buckets.of(shard), Table.ARCHIVE, since=since, until=until, after=after, upto=upto, splits=1
            )
        )
        return [one for split in splits for one in split.objects]

    # --- Plans ---

    def plan_jobs(
        self,
        as_of: Point | None = None,
        *,
        splits: int | None = None,
        clock_skew: timedelta = CLOCK_SKEW,
    ) -> list[Split]:
        """Unfinished and dead jobs: now, after a commit, or at a time. On a ring, each shard is pinned at one moment;
        the moments may differ between shards.

        Raises:
            NoHistoryError: `as_of` of a queue that has the document layout.
            HistoryGoneError: that is further back than the queue remembers.
            InvalidInputError: that is in the future, or there is no queue.
        """
        skew_ms = milliseconds(clock_skew)
        return self._planned(
            lambda bucket, share: planning.plan_jobs(
                bucket, share.point("asOf", as_of), splits=share.splits(splits), skew_ms=skew_ms
            )
        )

    def plan_events(
        self,
        *,
        start: Point | None = None,
        end: Point | None = None,
        splits: int | None = None,
        clock_skew: timedelta = CLOCK_SKEW,
    ) -> list[EventsSplit]:
        """Events after one position and up to another; by time, from `start` on and before `end`.

        Without a start, from the oldest that is left; without an end, up to now. By time, events are filtered one by
        one, so that adjacent spans neither share nor lose any. Objects are skipped if they cannot hold a matching
        event, assuming that the clocks of all committers agree to within `clock_skew`.

        Raises:
            NoHistoryError: the queue has the document layout.
            HistoryGoneError: the start was collected.
            InvalidInputError: a position is in the future, or there is no queue.
        """
        skew_ms = milliseconds(clock_skew)
        return self._planned(
            lambda bucket, share: planning.plan_events(
                bucket,
                start=share.point("from", start),
                end=share.point("to", end),
                splits=share.splits(splits),
                skew_ms=skew_ms,
            )
        )

    def plan_archive(
        self,
        *,
        table: Table = Table.ARCHIVE,
        since: datetime | None = None,
        until: datetime | None = None,
        start: Point | None = None,
        end: Point | None = None,
        splits: int | None = None,
    ) -> list[ArchiveSplit]:
        """Jobs that finished in a time span (`until` is exclusive), and after one position and up to another.

        Reads only complete archived ranges, and ranges never overlap: every finish appears once. A time or an `end` in
        the future is allowed.
        """
        return self._planned(
            lambda bucket, share: planning.plan_archive(
                bucket,
                table,
                since=since,
                until=until,
                after=share.position("from", start) or 0,
                upto=share.position("to", end),
                splits=share.splits(splits),
            )
        )

    # --- In steps, for readers that follow a table ---

    def position_before(self, moment: datetime, *, clock_skew: timedelta = CLOCK_SKEW, shard: int | None = None) -> int:
        """The position before the first commit made at this time or later."""
        at_ms, skew_ms = checks.moment_ms("moment", moment), milliseconds(clock_skew)
        return self._run(lambda buckets: planning.position_before(buckets.of(shard), at_ms, skew_ms=skew_ms))

    def events_within(
        self,
        queue_id: str,
        after: int,
        upto: int,
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        shard: int | None = None,
    ) -> Taken:
        """How far the limits on events and stored bytes reach from a position: at least one commit, and only whole
        ones.

        Raises:
            HistoryGoneError: the commits after the position were collected.
        """
        return self._run(
            lambda buckets: planning.events_within(
                buckets.of(shard), queue_id, after, upto, rows_max=rows_max, bytes_max=bytes_max
            )
        )

    def archive_within(
        self,
        objects: Sequence[ArchiveObject],
        after: int,
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        shard: int | None = None,
    ) -> Taken:
        """The same in the archive, for these objects in the order of positions: at least one range, and only whole
        ones."""
        return self._run(
            lambda buckets: planning.archive_within(
                buckets.of(shard), objects, after, rows_max=rows_max, bytes_max=bytes_max
            )
        )

    # --- Reading ---

    def read(self, split: Split, *, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The rows of a split as `pyarrow` batches, with these columns in this order.

        Raises:
            HistoryGoneError, StorageError: objects of the split were deleted since it was planned. Plan again.
        """
        opened = self._open()
        batches = read_split(opened.buckets.of(split.shard), split, columns)
        try:
            while (batch := opened.runner.run(_next(batches))) is not None:
                yield batch if split.shard is None else with_ring_numbers(batch, split.shard)
        finally:
            opened.runner.run(batches.aclose())

    def table(self, splits: Sequence[Split], table: Table, *, columns: Sequence[str] | None = None) -> Any:
        """All of a plan as one `pyarrow.Table`, in memory."""
        import pyarrow as pa

        names = check_columns(table, columns)
        assert all(table_of(split) is table for split in splits)
        batches = [batch for split in splits for batch in self.read(split, columns=names)]
        return pa.Table.from_batches(batches, arrow_schema(table, names))

    # --- Life ---

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections. The next call opens new ones."""
        opened, self._opened = self._opened, None
        if opened is not None and opened.pid == os.getpid():
            opened.close(owns_store=isinstance(self._url, str))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def _planned(self, plan: Callable[[Bucket, Share], Awaitable[list[S]]]) -> list[S]:
        found = self._run(lambda buckets: buckets.each(plan))
        return [split for shard, splits in found.items() for split in of_shard(splits, shard)]

    def _run(self, call: Callable[[Buckets], Awaitable[R]]) -> R:
        opened = self._open()

        async def running() -> R:
            return await call(opened.buckets)

        return opened.runner.run(running())

    def _open(self) -> _Opened:
        # A loop made before a fork belongs to the parent.
        if self._opened is None or self._opened.pid != os.getpid():
            store = as_store(self._url, self._options)
            self._opened = _Opened(store, self._settings, self._clock or SystemClock())
        return self._opened


class _Opened:
    """The resources that a scan has open in this process."""

    def __init__(self, store: Store, settings: QueueSettings, clock: Clock) -> None:
        self.pid = os.getpid()
        self.runner = asyncio.Runner()
        self.store = store
        self.buckets = Buckets(store, Environment(settings, clock))

    def close(self, *, owns_store: bool) -> None:
        if owns_store:
            self.runner.run(self.store.close())
        self.runner.close()


def of_shard(splits: Sequence[S], shard: int | None) -> list[S]:
    """A shard's own splits, marked as splits of the ring."""
    return list(splits) if shard is None else [msgspec.structs.replace(split, shard=shard) for split in splits]


async def _next(batches: AsyncGenerator[Any]) -> Any:
    return await anext(batches, None)
