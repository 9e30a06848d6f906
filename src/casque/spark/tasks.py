"""Tasks of the executors in a pipeline before Spark SQL takes over: from the queue's objects to Parquet files.

Each task is a value that says what to read; it returns the files that it wrote. Payloads never leave the executor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from casque.client.scan.shards import with_ring_numbers
from casque.codec.document import DocumentCodec
from casque.codec.head import KEY
from casque.codec.log import Segment, decode_segment, previous, segment_key
from casque.codec.ring import shard_prefix
from casque.environment import Environment
from casque.errors import HistoryGoneError, StorageError
from casque.journal.log.past import Past
from casque.spark import bronze, combine, gold, silver
from casque.spark.arrow_types import arrow_schema
from casque.spark.executor import settle_in
from casque.spark.parquet import ADDED, PARTITION, AddedRows, File, Writer, answer, by_hour, read
from casque.spark.store_ref import StoreRef, body_of
from casque.spark.tables import TABLES
from casque.state import Limits, State
from casque.storage.port import Store
from casque.storage.prefixed import PrefixedStore
from casque.types import from_ms

ROWS_MAX = 250_000
"""Rows that a task gathers before it writes a file."""
AT_ONCE = 8
"""Concurrent reads of objects."""

Written: TypeAlias = tuple[str, File | AddedRows]
"""The purpose of a written object, and the object."""


class FromArchive(msgspec.Struct, frozen=True):
    """Objects of the archive to `silver/jobs` and `silver/attempts`."""

    date: str
    keys: Sequence[str]
    first: int
    last: int
    shard: int | None = None

    async def run(self, context: Context) -> AsyncIterator[Written]:
        jobs: list[Any] = []
        attempts: list[Any] = []
        rows = 0
        async for key, body in _bodies(context.queue(self.shard), self.keys):
            if body is None:
                continue  # listed but deleted meanwhile: older than the retention
            some, tried = silver.finished(key, body)
            jobs.append(of_shard(self.shard, some))
            attempts.append(of_shard(self.shard, tried))
            rows += some.num_rows
            if rows >= ROWS_MAX:
                for one in await self._write(context, jobs, attempts):
                    yield one
                jobs, attempts, rows = [], [], 0
        for one in await self._write(context, jobs, attempts):
            yield one

    async def _write(self, context: Context, jobs: list[Any], attempts: list[Any]) -> list[Written]:
        if not jobs:
            return []
        written: list[Written] = []
        tables = {"silver/jobs": pa.concat_tables(jobs), "silver/attempts": pa.concat_tables(attempts)}
        for table, rows in tables.items():
            if rows.num_rows:
                writer = context.writer(table)
                file = await writer.write(context.warehouse, self.date, rows, first=self.first, last=self.last)
                written.append((table, file))
        written += await context.add(combine.of_finished(tables["silver/jobs"], tables["silver/attempts"]))
        return written


class FromSilver(msgspec.Struct, frozen=True):
    """Add the sums of files of silver to gold again, for a rebuild."""

    jobs: Sequence[File]
    attempts: Sequence[File]

    async def run(self, context: Context) -> AsyncIterator[Written]:
        jobs = [await read(context.warehouse, file, _types("silver/jobs")) for file in self.jobs]
        attempts = [await read(context.warehouse, file, _types("silver/attempts")) for file in self.attempts]
        empty = {table: arrow_schema(_types(table)).empty_table() for table in ("silver/jobs", "silver/attempts")}
        some, tried = (
            pa.concat_tables([empty["silver/jobs"], *jobs]),
            pa.concat_tables([empty["silver/attempts"], *attempts]),
        )
        for one in await context.add(combine.of_finished(some, tried)):
            yield one


class FromLog(msgspec.Struct, frozen=True):
    """Segments of the log to `bronze/events`. Returns collected ones, which it could not read, under `gone`."""

    queue_id: str
    first: int
    last: int
    payloads: bool = False
    shard: int | None = None

    async def run(self, context: Context) -> AsyncIterator[Written]:
        by_date: dict[str, list[Segment]] = {}
        position = self.first
        gone = 0
        keys = [segment_key(at) for at in range(self.first, self.last + 1)]
        async for _, body in _bodies(context.queue(self.shard), keys):
            if body is None:
                gone += 1
            else:
                # Each is checked by itself; `casque queue verify` checks that they follow each other.
                segment = decode_segment(body, queue_id=self.queue_id, position=position, prev=previous(body))
                by_date.setdefault(str(from_ms(segment.at).date()), []).append(segment)
            position += 1
        for date, segments in by_date.items():
            rows = of_shard(self.shard, bronze.happened(segments, payloads=self.payloads))
            if rows.num_rows:
                first, last = segments[0].position, segments[-1].position
                yield (
                    "bronze/events",
                    await context.writer("bronze/events").write(context.warehouse, date, rows, first=first, last=last),
                )
        if gone:
            yield GONE, File("", "", gone, 0, self.first, self.last, self.shard)


GONE = "gone"


class FromState(msgspec.Struct, frozen=True):
    """The queue as of a position to `silver/queue`, or as it is now if that position is gone or there is no log;
    without a position no rows, which only subtracts the earlier ones."""

    position: int | None
    has_log: bool
    before: Sequence[File]
    """The present files of `silver/queue`."""
    shard: int | None = None
    as_of_ms: int = 0
    """The earliest time to use: jobs of an idle shard wait as long as those of the others."""

    async def run(self, context: Context) -> AsyncIterator[Written]:
        columns = _types("silver/queue")
        now = arrow_schema({name: kind for name, kind in columns.items() if name != PARTITION}).empty_table()
        if self.position is not None:
            state, at_ms = await self._state(context.queue(self.shard), self.position)
            at_ms = max(at_ms, self.as_of_ms)
            now = of_shard(self.shard, silver.waiting(list(state.jobs.values()), at_ms))
            if now.num_rows:
                date, writer = str(from_ms(at_ms).date()), context.writer("silver/queue")
                yield "silver/queue", await writer.write(context.warehouse, date, now, shard=self.shard)
        files = [await read(context.warehouse, file, columns) for file in self.before]
        before = pa.concat_tables([arrow_schema(columns).empty_table(), *files])
        for one in await context.add(combine.of_queue(now, before)):
            yield one

    async def _state(self, store: Store, position: int) -> tuple[State, int]:
        if not self.has_log:
            body = await body_of(store, KEY)
            if body is None:
                raise StorageError(f"{KEY} is gone")
            state = DocumentCodec(KEY, "").decode(body, Limits())
            latest = [at for job in state.jobs.values() for at in (job.created_ms, job.claimed_ms, job.beat_ms) if at]
            return state, max(latest, default=0)
        past = Past(store, Environment())
        try:
            moment = await past.at_position(position)
        except HistoryGoneError:
            moment = await past.at_position(None)
        return moment.state, moment.at_ms


class Compaction(msgspec.Struct, frozen=True):
    """Small files of one partition to one."""

    table: str
    date: str
    files: Sequence[File]
    columns: Mapping[str, str]

    async def run(self, context: Context) -> AsyncIterator[Written]:
        columns = {name: kind for name, kind in self.columns.items() if name != PARTITION}
        parts = [await read(context.warehouse, file, columns) for file in self.files]
        rows = pa.concat_tables(parts)
        rows = rows.take(pc.sort_indices(rows, sort_keys=[("shard", "ascending"), ("position", "ascending")]))
        positions = rows.column("position")
        first, last = pc.min(positions).as_py(), pc.max(positions).as_py()
        yield (
            COMPACTED + self.table,
            await context.writer(self.table).write(context.warehouse, self.date, rows, first=first, last=last),
        )


COMPACTED = "compacted:"


class Merge(msgspec.Struct, frozen=True):
    """Adds sums to the partitions of a gold table; hours and fairness follow from minutes. Also returns which files are
    replaced: only changed ones are written again."""

    table: str
    dates: Sequence[str]
    added: Sequence[File]
    before: Mapping[str, Sequence[File]]
    """Present files of the tables on these dates."""

    async def run(self, context: Context) -> AsyncIterator[Written]:
        added = await _gathered(context.warehouse, self.added, combine.ADDED[self.table])
        levels = gold.Levels(added) if self.table == "gold/depth" else None
        added = gold.summed(self.table, added)
        for date in self.dates:
            begin, end = combine.span(self.table, date)
            counts = added.column(0).to_numpy()
            some = levels.between(begin, end) if levels else added.filter(pa.array((counts >= begin) & (counts < end)))
            if some.num_rows:
                for one in await self._merge(context, date, some):
                    yield one

    async def _merge(self, context: Context, date: str, added: Any) -> list[Written]:
        touched = combine.hours(self.table, added)
        before = self._of(self.table, date, touched)
        old = await _gathered(context.warehouse, before, _types(self.table))
        merged = gold.merged(self.table, added, old)
        written: list[Written] = [(REPLACED, file) for file in before]
        if self.table in gold.BY_MINUTE:
            for hour, rows in by_hour(merged, "minute"):
                written += await self._write(context, self.table, date, rows, hour)
        else:
            written += await self._write(context, self.table, date, merged)
        if self.table == "gold/minutes":
            by_hours = gold.hours(merged)
            for table, rows in (("gold/hours", by_hours), ("gold/fairness", gold.fairness(by_hours))):
                written += await self._replace_hours(context, table, date, rows, touched)
        return written

    async def _replace_hours(
        self, context: Context, table: str, date: str, rows: Any, touched: Sequence[int]
    ) -> list[Written]:
        before = self._of(table, date, touched)
        columns = {name: kind for name, kind in _types(table).items() if name != PARTITION}
        left = gold.but_for(await _gathered(context.warehouse, before, columns), touched)
        rows = pa.concat_tables([left, rows]).sort_by("hour")
        return [*((REPLACED, file) for file in before), *await self._write(context, table, date, rows)]

    def _of(self, table: str, date: str, hours: Sequence[int]) -> list[File]:
        """The files of these hours: tables by minute have files per hour, others per date."""
        files = [file for file in self.before.get(table, ()) if file.date == date]
        return [file for file in files if file.first in hours] if table in gold.BY_MINUTE else files

    async def _write(
        self, context: Context, table: str, date: str, rows: Any, hour: int | None = None
    ) -> Sequence[Written]:
        if not rows.num_rows:
            return ()
        return [(table, await context.writer(table).write(context.warehouse, date, rows, first=hour, last=hour))]


REPLACED = "replaced"

Task: TypeAlias = FromArchive | FromSilver | FromLog | FromState | Compaction | Merge


class Context:
    """The stores and writers of a task."""

    def __init__(self, queue: Store, warehouse: Store, store_ref: StoreRef, stamp: str) -> None:
        self._queue = queue
        self.warehouse = warehouse
        self._store_ref = store_ref
        self._stamp = stamp

    def queue(self, shard: int | None) -> Store:
        """The store of the queue, or of a shard."""
        return self._queue if shard is None else PrefixedStore(self._queue, shard_prefix(shard))

    def writer(self, table: str) -> Writer:
        return Writer(self._store_ref, table, self._stamp)

    async def add(self, added: Mapping[str, Any]) -> list[Written]:
        """Write sums to be added to gold tables."""
        written: list[Written] = []
        for table, rows in added.items():
            if rows.num_rows:
                hours = combine.hours(table, rows)
                written.append((ADDED, await self.writer(table).write_added(self.warehouse, rows, hours)))
        return written


class Tasks(msgspec.Struct, frozen=True):
    """For `mapInArrow` over a range of numbers: runs the tasks with these numbers."""

    queue: StoreRef
    warehouse: StoreRef
    stamp: str
    tasks: Sequence[Task]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        settle_in()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield answer(self._run(self.tasks[number]))

    def _run(self, task: Task) -> list[Written]:
        async def inside(warehouse: Store) -> list[Written]:
            from casque.storage.url import open_store

            queue = open_store(self.queue.url, options=self.queue.options)
            try:
                context = Context(queue, warehouse, self.warehouse, self.stamp)
                return [one async for one in task.run(context)]
            finally:
                await queue.close()

        return self.warehouse.run(inside)


def of_shard(shard: int | None, rows: Any) -> Any:
    """Rows of a shard with its number, and with sequences and tokens that are unique in the ring."""
    return rows if shard is None else with_ring_numbers(rows, shard)


async def _bodies(store: Store, keys: Sequence[str]) -> AsyncIterator[tuple[str, bytes | None]]:
    """Yields in order, reading some objects ahead."""
    ahead: list[tuple[str, asyncio.Task[bytes | None]]] = []
    try:
        for key in keys:
            ahead.append((key, asyncio.create_task(body_of(store, key))))
            if len(ahead) == AT_ONCE:
                first, reading = ahead.pop(0)
                yield first, await reading
        while ahead:
            first, reading = ahead.pop(0)
            yield first, await reading
    finally:
        for _, reading in ahead:
            reading.cancel()
        await asyncio.gather(*(reading for _, reading in ahead), return_exceptions=True)


async def _gathered(store: Store, files: Sequence[File], columns: Mapping[str, str]) -> Any:
    """Files of one table as one Arrow table."""
    parts = [arrow_schema(dict(columns)).empty_table()]
    for start in range(0, len(files), AT_ONCE):
        some = files[start : start + AT_ONCE]
        parts += await asyncio.gather(*(read(store, file, columns) for file in some))
    return pa.concat_tables(parts)


def _types(table: str) -> dict[str, str]:
    return {name: column.type for name, column in TABLES[table].columns.items()}
