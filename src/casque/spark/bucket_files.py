"""Parquet files in buckets, for sessions whose Spark has no jar for them: a data source in Python, on Arrow batches.

Tasks write create-only objects under unique names, and tell the driver what they wrote; whether it becomes part of a
table is decided elsewhere. So a task may run twice, or die in the middle, and leaves only a few orphans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceReader, InputPartition, WriterCommitMessage

from casque.arrow_types import INSTANT, arrow_schema
from casque.client.objects import body_of, create_new
from casque.clock import new_nonce, system_random
from casque.errors import CorruptQueueError
from casque.spark.executor import settle_in
from casque.spark.files import DAY, File, described
from casque.spark.models import ddl
from casque.spark.store_ref import StoreRef
from casque.storage.port import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = "casque.files"
"""The option that makes `format("casque")` read and write files: as a source of its own, it would have to be
registered with every session."""
FLUSH_BYTES = 128 * 1024 * 1024
"""Arrow bytes that a task gathers before it writes a file: some tens of megabytes of Parquet."""
ROW_GROUP = 128 * 1024
FILES_PER_TASK = 16
_STORE = "store."


class Place(msgspec.Struct, frozen=True):
    """What the options of the format describe."""

    url: str
    table: str
    folder: str = ""
    columns: Mapping[str, str] = {}
    paths: tuple[str, ...] = ()


def write_to_bucket(df: DataFrame, warehouse: StoreRef, table: str, folder: str) -> list[File]:
    """The files that the executors wrote. Tasks leave their answers beside them: Spark shows a writer's messages to
    itself alone."""
    place = Place(warehouse.url, table, folder)
    df.write.format("casque").options(**_options(place, warehouse)).mode("append").save()
    return warehouse.run(lambda store: _answers(store, place))


def read_from_bucket(
    spark: SparkSession, warehouse: StoreRef, table: str, files: Sequence[str], columns: Mapping[str, str]
) -> DataFrame:
    place = Place(warehouse.url, table, columns=columns, paths=tuple(files))
    return spark.read.format("casque").options(**_options(place, warehouse)).schema(ddl(columns)).load()


async def put(store: Store, table: str, folder: str, day: str, rows: Any) -> File:
    """Write an Arrow table as one file."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", row_group_size=ROW_GROUP)
    body = bytes(sink.getvalue())
    path = f"{folder}/{DAY}={day}/part-{new_nonce(system_random())}.parquet"
    await create_new(store, f"{table}/{path}", body)
    return described(path, len(body), pq.read_metadata(pa.BufferReader(body)))


def files_reader(options: Mapping[str, str]) -> DataSourceReader:
    return _Reader(*_place(options))


def files_writer(options: Mapping[str, str]) -> DataSourceArrowWriter:
    return _Writer(*_place(options))


def _place(options: Mapping[str, str]) -> tuple[Place, StoreRef]:
    place = msgspec.json.decode(options[FILES], type=Place)
    given = {name.removeprefix(_STORE): value for name, value in options.items() if name.startswith(_STORE)}
    return place, StoreRef(place.url, given)


class _Reader(DataSourceReader):
    def __init__(self, place: Place, warehouse: StoreRef) -> None:
        self._place, self._warehouse = place, warehouse

    def partitions(self) -> Sequence[InputPartition]:
        paths = self._place.paths
        return [InputPartition(paths[at : at + FILES_PER_TASK]) for at in range(0, len(paths), FILES_PER_TASK)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        settle_in()
        for path in partition.value:
            key = f"{self._place.table}/{path}"
            rows = self._warehouse.run(lambda store, key=key: _read(store, key, self._place.columns))  # type: ignore[misc]
            yield from rows.to_batches()


class _Writer(DataSourceArrowWriter):
    def __init__(self, place: Place, warehouse: StoreRef) -> None:
        self._place, self._warehouse = place, warehouse

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        settle_in()
        return _Wrote(self._warehouse.run(lambda store: self._write(store, iterator)))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        files = [file for message in messages if isinstance(message, _Wrote) for file in message.files]
        self._warehouse.run(lambda store: _answer(store, self._place, files))

    async def _write(self, store: Store, batches: Iterator[Any]) -> list[File]:
        files: list[File] = []
        held: dict[date, list[Any]] = {}
        size = 0
        for batch in batches:
            rows = _in_utc(pa.Table.from_batches([batch]))
            for day in pc.unique(rows.column("date")).to_pylist():
                some = rows.filter(pc.equal(rows.column("date"), day))
                held.setdefault(day, []).append(some)
                size += some.nbytes
            if size >= FLUSH_BYTES:
                files += await self._flush(store, held)
                held, size = {}, 0
        return files + await self._flush(store, held)

    async def _flush(self, store: Store, held: Mapping[date, list[Any]]) -> list[File]:
        place = self._place
        return [
            await put(store, place.table, place.folder, str(day), pa.concat_tables(some)) for day, some in held.items()
        ]


class _Wrote(WriterCommitMessage):
    def __init__(self, files: list[File]) -> None:
        self.files = files


async def _read(store: Store, key: str, columns: Mapping[str, str]) -> Any:
    body = await body_of(store, key)
    if body is None:
        raise CorruptQueueError(
            key, "this file of the warehouse is gone. If it was replaced while it was read, read again"
        )
    # Columns that an older file lacks are null.
    return pq.read_table(pa.BufferReader(body), schema=arrow_schema(dict(columns)))


# --- The answer of a write, which its driver reads ---


async def _answer(store: Store, place: Place, files: Sequence[File]) -> None:
    await create_new(store, _answer_key(place), msgspec.json.encode(files))


async def _answers(store: Store, place: Place) -> list[File]:
    key = _answer_key(place)
    body = await body_of(store, key)
    if body is None:
        raise CorruptQueueError(key, "the list of files that Spark wrote is missing. Run the pipeline again")
    await store.delete(key)
    return msgspec.json.decode(body, type=list[File])


def _answer_key(place: Place) -> str:
    return f"{place.table}/{place.folder}/written.json"


def _options(place: Place, warehouse: StoreRef) -> dict[str, str]:
    secret = {f"{_STORE}{name}": value for name, value in warehouse.options.items()}
    return {FILES: msgspec.json.encode(place).decode(), **secret}


def _in_utc(rows: Any) -> Any:
    """Spark labels instants with the session's time zone; the instants are the same."""
    fields = [
        field.with_type(INSTANT) if pa.types.is_timestamp(field.type) and field.type.tz is not None else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))
