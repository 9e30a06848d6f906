"""What callers hold: one queue in its bucket, to be planned here and read there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from casque import checks
from casque.client.opening import as_store
from casque.client.queue import DEFAULTS
from casque.client.reaching import is_address
from casque.client.scan import planning
from casque.client.scan.bucket import Bucket
from casque.client.scan.planning import EVERYTHING, Chosen
from casque.client.scan.reading import read_split, table_of
from casque.client.scan.splits import ArchiveObject, ArchiveSplit, EventsSplit, Extent, Split
from casque.client.scan.tables import Table, arrow_schema, check_columns
from casque.clock import Clock, SystemClock, system_random
from casque.errors import InvalidInputError
from casque.settings import QueueSettings, milliseconds
from casque.storage.adapted import SingleObjectStore
from casque.storage.port import Store

R = TypeVar("R")

CLOCK_SKEW = timedelta(hours=1)


class Scan:
    """A queue's tables, read from its bucket beside whatever else goes on. Never writes.

    A plan pins what it reads, so that its splits can be read anywhere, in any order and again: a commit, an archived
    range or a collection that comes later does not change them. What was collected meanwhile raises. Calls block; a
    scan can be pickled, and its splits as well.

    >>> from casque import SyncQueue
    >>> from casque.client.scan import Scan
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
        settings: QueueSettings = DEFAULTS,
        clock: Clock | None = None,
    ) -> None:
        """`url` and `options` are those of a store, as for `Queue.open`. Nothing is read yet.

        Raises:
            InvalidInputError: it is a broker's address, or no URL of a store.
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

    def extent(self) -> Extent:
        """Where the history begins and ends, and how far the archive reaches.

        Raises:
            InvalidInputError: there is no queue.
        """
        return self._run(lambda bucket: bucket.extent())

    def archive_objects(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        after: int = 0,
        upto: int | None = None,
    ) -> list[ArchiveObject]:
        """The objects of the archive that a plan would read, in the order of positions."""
        splits = self.plan_archive(since=since, until=until, after=after, upto=upto, splits=1)
        return [one for split in splits for one in split.objects]

    # --- Plans ---

    def plan_jobs(
        self, as_of: int | datetime | None = None, *, splits: int | None = None, clock_skew: timedelta = CLOCK_SKEW
    ) -> list[Split]:
        """The jobs that are not over, and the dead ones: now, after a commit, or at a time.

        Raises:
            NoHistoryError: `as_of` of a queue that has the document layout.
            HistoryGoneError: that is further back than the queue remembers.
            InvalidInputError: that is in the future, or there is no queue.
        """
        return self._run(
            lambda bucket: planning.plan_jobs(bucket, as_of, splits=splits, skew_ms=milliseconds(clock_skew))
        )

    def plan_events(
        self,
        *,
        start: int | datetime | None = None,
        end: int | datetime | None = None,
        chosen: Chosen = EVERYTHING,
        splits: int | None = None,
        clock_skew: timedelta = CLOCK_SKEW,
    ) -> list[EventsSplit]:
        """What happened after one position and up to another; of a time, from it on and before it.

        Without a start this is all that is left, and without an end all that is there now. By time, events are chosen
        one by one, so that two spans that meet neither share nor lose any. Objects are passed over that cannot hold
        one as long as the clocks of all who commit agree to within `clock_skew`. `chosen` is for those who do not need
        all of it, and do not care whether what they leave out exists.

        Raises:
            NoHistoryError: the queue has the document layout.
            HistoryGoneError: the start was collected.
            InvalidInputError: a position is in the future, or there is no queue.
        """
        return self._run(
            lambda bucket: planning.plan_events(
                bucket, start=start, end=end, chosen=chosen, splits=splits, skew_ms=milliseconds(clock_skew)
            )
        )

    def plan_archive(
        self,
        *,
        table: Table = Table.ARCHIVE,
        since: datetime | None = None,
        until: datetime | None = None,
        after: int = 0,
        upto: int | None = None,
        splits: int | None = None,
    ) -> list[ArchiveSplit]:
        """Jobs that finished in a time (`until` is exclusive), and after one position and up to another.

        Only ranges that are archived for good are read, and ranges never overlap: every finish is there once. A time,
        or an `upto`, that lies in the future takes what is there.
        """
        return self._run(
            lambda bucket: planning.plan_archive(
                bucket, table, since=since, until=until, after=after, upto=upto, splits=splits
            )
        )

    # --- In steps, for those who follow a table ---

    def position_before(self, moment: datetime, *, clock_skew: timedelta = CLOCK_SKEW) -> int:
        """The position after which the first commit follows that was made at this time or later."""
        at_ms = checks.moment_ms("moment", moment)
        return self._run(lambda bucket: planning.position_before(bucket, at_ms, skew_ms=milliseconds(clock_skew)))

    def events_within(
        self, queue_id: str, after: int, upto: int, *, rows_max: int | None = None, bytes_max: int | None = None
    ) -> int:
        """How far one gets after a position with so many events, or stored bytes: one commit at least, and whole ones.

        Raises:
            HistoryGoneError: what follows the position was collected.
        """
        return self._run(
            lambda bucket: planning.events_within(bucket, queue_id, after, upto, rows_max=rows_max, bytes_max=bytes_max)
        )

    def archive_within(
        self,
        objects: Sequence[ArchiveObject],
        after: int,
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
    ) -> int:
        """The same in the archive, of these objects in the order of positions: one range at least, and whole ones."""
        return self._run(
            lambda bucket: planning.archive_within(bucket, objects, after, rows_max=rows_max, bytes_max=bytes_max)
        )

    # --- Reading ---

    def read(self, split: Split, *, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The rows of a split as batches of `pyarrow`, with these columns in this order.

        Raises:
            HistoryGoneError, StorageError: what the split names was deleted since it was planned. Plan again.
        """
        opened = self._open()
        batches = read_split(opened.bucket, split, columns)
        try:
            while (batch := opened.runner.run(_next(batches))) is not None:
                yield batch
        finally:
            opened.runner.run(batches.aclose())

    def table(self, splits: Sequence[Split], table: Table, *, columns: Sequence[str] | None = None) -> Any:
        """All of a plan as one `pyarrow.Table`, for whoever has room for it."""
        import pyarrow as pa

        names = check_columns(table, columns)
        assert all(table_of(split) is table for split in splits)
        batches = [batch for split in splits for batch in self.read(split, columns=names)]
        return pa.Table.from_batches(batches, arrow_schema(table, names))

    # --- Life ---

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of connections. The next call makes new ones."""
        opened, self._opened = self._opened, None
        if opened is not None and opened.pid == os.getpid():
            opened.close(owns_store=isinstance(self._url, str))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def _run(self, call: Callable[[Bucket], Awaitable[R]]) -> R:
        opened = self._open()

        async def running() -> R:
            return await call(opened.bucket)

        return opened.runner.run(running())

    def _open(self) -> _Opened:
        # A loop that was made before a fork is the parent's.
        if self._opened is None or self._opened.pid != os.getpid():
            store = as_store(self._url, self._options)
            self._opened = _Opened(store, self._settings, self._clock or SystemClock())
        return self._opened


class _Opened:
    """What a scan has open in this process."""

    def __init__(self, store: Store, settings: QueueSettings, clock: Clock) -> None:
        self.pid = os.getpid()
        self.runner = asyncio.Runner()
        self.store = store
        self.bucket = Bucket(store, settings=settings, clock=clock, rng=system_random())

    def close(self, *, owns_store: bool) -> None:
        if owns_store:
            self.runner.run(self.store.close())
        self.runner.close()


async def _next(batches: AsyncGenerator[Any]) -> Any:
    return await anext(batches, None)
