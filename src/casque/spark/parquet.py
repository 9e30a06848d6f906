"""Reads and writes the files of a warehouse on executors: Arrow batches to Parquet objects, and back.

A task writes create-only objects under unique names and returns those names; whether they become part of a table is
decided elsewhere. So a task may run twice, or die in the middle, and leaves only a few orphans.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from casque.client.objects import body_of, create_new
from casque.clock import new_nonce, system_random
from casque.errors import CorruptQueueError
from casque.scan.arrow_types import INSTANT, arrow_type
from casque.spark.store_ref import StoreRef
from casque.storage.port import Store

PARTITION = "date"
FLUSH_BYTES = 128 * 1024 * 1024
"""Arrow bytes that a task gathers before it writes a file: some tens of megabytes of Parquet."""
HOUR_US = 3_600_000_000
ADDED = "_added"
EPOCH = "1970-01-01"
ROW_GROUP = 128 * 1024
READ_AHEAD = 4
FILES_DDL = "tag string, file string"


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Parquet object of a table."""

    key: str
    """Relative to the warehouse."""
    date: str
    rows: int
    bytes: int
    first: int | None = None
    """First and last position of the queue in this file, if it covers a range of positions; for a table by minute the
    hour, counted from 1970."""
    last: int | None = None
    shard: int | None = None
    """The shard of its jobs, in tables whose files are replaced shard by shard."""


class AddedRows(msgspec.Struct, frozen=True):
    """An object with sums to add to a table, read only by the run that wrote it."""

    table: str
    file: File
    hours: tuple[int, ...]
    """The hours that it covers, counted from 1970."""


class Writer(msgspec.Struct, frozen=True):
    """How a task writes files of a table."""

    store_ref: StoreRef
    table: str
    stamp: str
    """Part of each name: when the run began. Shows the age of files that no manifest names."""
    minute: str | None = None
    """The time column of a table by minute. Each hour gets files of its own, so that it can be replaced separately."""

    def key(self, date_: str) -> str:
        return f"{self.table}/{PARTITION}={date_}/part-{self.stamp}-{new_nonce(system_random())}.parquet"

    async def write_added(self, store: Store, rows: Any, hours: Iterable[int]) -> AddedRows:
        """Writes beside the table's partitions, where other readers do not look."""
        body = _parquet(rows)
        key = f"{self.table}/{ADDED}/part-{self.stamp}-{new_nonce(system_random())}.parquet"
        await create_new(store, key, body)
        return AddedRows(self.table, File(key, EPOCH, rows.num_rows, len(body)), tuple(hours))

    async def write(
        self,
        store: Store,
        date_: str,
        rows: Any,
        *,
        first: int | None = None,
        last: int | None = None,
        shard: int | None = None,
    ) -> File:
        """Write an Arrow table, without its partition column, as one file."""
        body = _parquet(rows)
        key = self.key(date_)
        await create_new(store, key, body)
        return File(key, date_, rows.num_rows, len(body), first, last, shard)

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """For `DataFrame.mapInArrow`: write a partition of the frame, each date to files of its own."""
        files = self.store_ref.run(lambda store: self._write_all(store, batches))
        yield answer((self.table, file) for file in files)

    async def _write_all(self, store: Store, batches: Iterable[Any]) -> list[File]:
        files: list[File] = []
        held: dict[tuple[str, int | None], list[Any]] = {}
        size = 0
        for batch in batches:
            for date_, some in by_date(pa.Table.from_batches([batch])):
                for hour, rows in [(None, some)] if self.minute is None else by_hour(some, self.minute):
                    held.setdefault((date_, hour), []).append(rows)
                    size += rows.nbytes
            if size >= FLUSH_BYTES:
                files += await self._flush(store, held)
                held, size = {}, 0
        return files + await self._flush(store, held)

    async def _flush(self, store: Store, held: Mapping[tuple[str, int | None], list[Any]]) -> list[File]:
        return [
            await self.write(store, date_, pa.concat_tables(rows), first=hour, last=hour)
            for (date_, hour), rows in held.items()
        ]


class Reader(msgspec.Struct, frozen=True):
    """How a task reads files of a table: the files of its number, in the requested columns."""

    store_ref: StoreRef
    groups: Sequence[Sequence[File]]
    columns: Mapping[str, str]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """For `mapInArrow` over a range of numbers."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._read(self.groups[number])

    def _read(self, files: Sequence[File]) -> Iterator[Any]:
        # Several at once, because a bucket answers slowly; not all, because they are held in memory.
        for start in range(0, len(files), READ_AHEAD):
            some = files[start : start + READ_AHEAD]
            for rows in self.store_ref.run(lambda store, some=some: self._gather(store, some)):  # type: ignore[misc]
                yield from rows.to_batches()

    async def _gather(self, store: Store, files: Sequence[File]) -> list[Any]:
        return list(await asyncio.gather(*(read(store, file, self.columns) for file in files)))


def _parquet(rows: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", row_group_size=ROW_GROUP)
    return bytes(sink.getvalue())


async def read(store: Store, file: File, columns: Mapping[str, str]) -> Any:
    """A file as an Arrow table with exactly these columns, null where the file is older than a column.

    Raises:
        CorruptQueueError: there is no such file.
    """
    body = await body_of(store, file.key)
    if body is None:
        raise CorruptQueueError(
            file.key, "this file of the warehouse is gone. If it was replaced while it was read, read again"
        )
    source = pq.ParquetFile(pa.BufferReader(body))
    there = set(source.schema_arrow.names)
    rows = source.read(columns=[name for name in columns if name in there])
    day = pa.scalar(date.fromisoformat(file.date), pa.date32())
    arrays = []
    for name, kind in columns.items():
        wanted = arrow_type(kind)
        if name == PARTITION:
            arrays.append(pa.repeat(day, file.rows))
        elif name in there:
            found = rows.column(name)
            arrays.append(found if found.type == wanted else found.cast(wanted))
        else:
            arrays.append(pa.nulls(file.rows, wanted))
    return pa.table(arrays, schema=pa.schema([(name, arrow_type(kind)) for name, kind in columns.items()]))


def by_date(rows: Any) -> Iterator[tuple[str, Any]]:
    """A table's rows by partition, without that column; instants in UTC, whatever the session's time zone is."""
    days = rows.column(PARTITION)
    rest = in_utc(rows.drop_columns([PARTITION]))
    different = pc.unique(days)
    if len(different) == 1:
        yield str(different[0].as_py()), rest
        return
    for day in different:
        yield str(day.as_py()), rest.filter(pc.equal(days, day))


def by_hour(rows: Any, minute: str) -> Iterator[tuple[int, Any]]:
    hours = pc.divide(rows.column(minute).cast(pa.int64()), HOUR_US)
    for hour in pc.unique(hours):
        yield hour.as_py(), rows.filter(pc.equal(hours, hour))


def in_utc(rows: Any) -> Any:
    """Spark labels instants with the session's time zone; the instants are the same."""
    fields = [
        field.with_type(INSTANT) if pa.types.is_timestamp(field.type) and field.type.tz is not None else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def answer(files: Iterable[tuple[str, File | AddedRows]]) -> Any:
    """The answer of a task: the objects that it wrote, each with its purpose."""
    said = list(files)
    return pa.RecordBatch.from_pydict(
        {"tag": [tag for tag, _ in said], "file": [msgspec.json.encode(file).decode() for _, file in said]},
        schema=pa.schema([("tag", pa.string()), ("file", pa.string())]),
    )


def grouped(files: Sequence[File], *, bytes_max: int) -> list[list[File]]:
    """Files in the given order, in groups of about equal size, one per task."""
    groups: list[list[File]] = []
    size = 0
    for file in files:
        if not groups or size + file.bytes > bytes_max:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.bytes
    return groups


def days(first: str, last: str) -> Iterator[str]:
    """All dates from one to another, both included."""
    day = date.fromisoformat(first)
    while str(day) <= last:
        yield str(day)
        day += timedelta(days=1)
