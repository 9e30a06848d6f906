"""A warehouse: tables of Parquet files on any store, changed as a whole and never in part.

        <warehouse>/_cursor.json                         the root: the manifest of each table, and the cursor
    <warehouse>/silver/jobs/_manifests/<...>.json    immutable: the columns and the files of a table
    <warehouse>/silver/jobs/date=2026-02-15/part-<...>.parquet

Files and manifests are created under unique names, and are invisible until the root names them. The root is written
last, by compare-and-set: so a change of any number of tables happens at once or not at all, a crash leaves only files
that no root names, and of two concurrent writers one loses and has changed nothing. Files that are no longer named are
deleted by age, after a later change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa

from casque.client.objects import body_of, create_new, get, swap
from casque.clock import Clock, SystemClock, new_nonce, system_random
from casque.errors import CASConflictError, CorruptQueueError, InvalidInputError
from casque.scan.arrow_types import arrow_schema
from casque.spark.parquet import FILES_DDL, PARTITION, File, Reader, Writer, grouped, read
from casque.spark.store_ref import StoreRef
from casque.storage.port import Store, Stored
from casque.types import from_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = "_cursor.json"
MANIFESTS = "_manifests"
FORMAT = 1
KEEP = timedelta(days=1)
"""How long files that no root names are kept: they may still be read."""
READ_BYTES = 16 * 1024 * 1024
"""Bytes that one task reads: small enough to spread a day over several tasks."""

S = TypeVar("S", bound=msgspec.Struct)


class Root(msgspec.Struct, frozen=True):
    """The only object of a warehouse that changes."""

    format: int = FORMAT
    version: int = 0
    nonce: str = ""
    """Keeps two writers from producing the same bytes."""
    at_ms: int = 0
    tables: dict[str, str] = {}
    """The key of each table's manifest."""
    cursor: dict[str, Any] = {}
    """Private data of the process that fills the warehouse."""
    swept_ms: int = 0


class Manifest(msgspec.Struct, frozen=True):
    """A table as of one version of the warehouse."""

    table: str
    columns: dict[str, str] = {}
    files: tuple[File, ...] = ()

    def dates(self) -> list[str]:
        return sorted({file.date for file in self.files})

    def of(self, dates: Collection[str] | None) -> list[File]:
        return [file for file in self.files if dates is None or file.date in dates]


class Warehouse:
    """Tables of Parquet below a URL.

        warehouse = Warehouse("s3://bucket/warehouse", {"region": "eu-west-1"})
        warehouse.read(spark, "gold/hours").show()

    Raises:
        InvalidInputError: no such store, or executors could not share it.
    """

    def __init__(
        self, url: str, options: Mapping[str, str] | None = None, *, clock: Clock | None = None, keep: timedelta = KEEP
    ) -> None:
        self.store_ref = StoreRef(url, options)
        self._clock = clock or SystemClock()
        self._keep_ms = keep // timedelta(milliseconds=1)

    def __repr__(self) -> str:
        return f"Warehouse({self.store_ref.url.partition('?')[0]!r})"

    def snapshot(self) -> Snapshot:
        """The warehouse as it is now. Later writes do not change the snapshot.

        Raises:
            CorruptQueueError: the root is another kind of object.
        """
        return self.store_ref.run(self.look)

    def read(
        self,
        spark: SparkSession,
        table: str,
        *,
        dates: Collection[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """A table, or some of its dates and columns. Other files and columns are not read.

        Raises:
            InvalidInputError: there is no such table, or no such column.
        """
        return self.snapshot().read(spark, table, dates=dates, columns=columns)

    def overwrite(self, df: DataFrame, table: str, partitions: Collection[str] | None = None) -> Snapshot:
        """Replace whole partitions (dates, `2026-02-15`; None for all) of a table by a frame's rows, atomically.

        The frame needs a column `date`, and every column that the table has; it may add more.

        Raises:
            InvalidInputError: the frame lacks columns or has other types, or holds rows of other partitions.
            CASConflictError: another writer changed the warehouse meanwhile; nothing was changed.
        """
        change = self.begin()
        columns = columns_of(df)
        if PARTITION not in columns:
            raise InvalidInputError(f"a table is kept by date: the frame needs a column {PARTITION!r} of type date")
        change.check_columns(table, columns)
        files = change.write(df, table)
        strange = sorted({file.date for file in files} - set(partitions)) if partitions is not None else []
        if strange:
            raise InvalidInputError(
                f"the frame holds rows of {', '.join(strange)}, which are not among the partitions to be replaced; "
                "name them too, or filter the frame"
            )
        change.replace(table, columns, files, dates=partitions)
        return change.commit()

    def begin(self) -> Change:
        """A change of any number of tables, applied by its `commit`."""
        return Change(self, self.snapshot())

    def sweep(self) -> int:
        """Delete old objects that no root names; returns their number.

        Call this only right after your own commit: changes that began before it can no longer win.
        """
        return self.store_ref.run(self.sweep_on)

    # --- For callers that have the store open ---

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    async def look(self, store: Store) -> Snapshot:
        read = await get(store, ROOT)
        if not isinstance(read, Stored):
            return Snapshot(self.store_ref, Root(), {}, None)
        root = _decode(ROOT, read.body, Root)
        if root.format > FORMAT:
            raise CorruptQueueError(ROOT, f"written in format {root.format} by a newer casque. Upgrade casque")
        return Snapshot(self.store_ref, root, {}, read.etag)

    async def sweep_on(self, store: Store) -> int:
        snapshot = await self.look(store)
        named = set(snapshot.root.tables.values())
        for table in snapshot.root.tables:
            named |= {file.key for file in (await snapshot.load(store, table)).files}
        oldest = stamp(self.now_ms() - self._keep_ms)
        doomed = []
        for table in snapshot.root.tables:
            async for key in store.list(f"{table}/"):
                made = stamp_of(key)
                if made is not None and made < oldest and key not in named:
                    doomed.append(key)
        for key in doomed:
            await store.delete(key)
        return len(doomed)


class Snapshot:
    """A warehouse as of one version."""

    def __init__(self, store_ref: StoreRef, root: Root, known: dict[str, Manifest], etag: str | None) -> None:
        self._store_ref = store_ref
        self._known = known
        self.root = root
        self.etag = etag
        """Version of the root; None if there is no root yet."""

    def manifest(self, table: str) -> Manifest:
        """Empty if there is no such table."""
        if table not in self._known:
            self._known[table] = self._store_ref.run(lambda store: self.load(store, table))
        return self._known[table]

    async def load(self, store: Store, table: str) -> Manifest:
        if table in self._known:
            return self._known[table]
        key = self.root.tables.get(table)
        if key is None:
            return Manifest(table)
        body = await body_of(store, key)
        if body is None:
            raise CorruptQueueError(key, "the root names this manifest, and it is gone. Restore it from a backup")
        return _decode(key, body, Manifest)

    def read(
        self,
        spark: SparkSession,
        table: str,
        *,
        dates: Collection[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """As `Warehouse.read`, of this version."""
        files, chosen = self._chosen(table, dates, columns)
        return frame(spark, self._store_ref, files, chosen)

    def arrow(
        self, table: str, *, dates: Collection[str] | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The same without Spark, in this process, for small tables."""
        files, chosen = self._chosen(table, dates, columns)

        async def gather(store: Store) -> Any:
            return [await read(store, file, chosen) for file in files]

        return pa.concat_tables([arrow_schema(chosen).empty_table(), *self._store_ref.run(gather)])

    def _chosen(
        self, table: str, dates: Collection[str] | None, columns: Sequence[str] | None
    ) -> tuple[list[File], dict[str, str]]:
        manifest = self.manifest(table)
        if not manifest.columns:
            there = ", ".join(sorted(self.root.tables)) or "none; `casque pipeline run` makes them"
            raise InvalidInputError(f"there is no table {table!r} in this warehouse; there are: {there}")
        if unknown := set(columns or ()) - set(manifest.columns):
            raise InvalidInputError(f"{table} has no column {', '.join(sorted(unknown))}")
        chosen = {name: manifest.columns[name] for name in columns or manifest.columns}
        return manifest.of(dates), chosen


class Change:
    """Changes of tables, invisible until `commit`."""

    def __init__(self, warehouse: Warehouse, base: Snapshot) -> None:
        self._warehouse = warehouse
        self._store_ref = warehouse.store_ref
        self.base = base
        self.stamp = stamp(warehouse.now_ms())
        self._manifests: dict[str, Manifest] = {}

    def manifest(self, table: str) -> Manifest:
        """The manifest after the change."""
        return self._manifests.get(table) or self.base.manifest(table)

    def writer(self, table: str, *, minute: str | None = None) -> Writer:
        return Writer(self._store_ref, table, self.stamp, minute)

    def write(self, df: DataFrame, table: str, *, minute: str | None = None) -> list[File]:
        """Let the executors write a frame, each hour to separate files if it has a column `minute`. The files are not
        part of a table yet."""
        answered = df.mapInArrow(self.writer(table, minute=minute), FILES_DDL).collect()
        return sorted((msgspec.json.decode(row.file, type=File) for row in answered), key=lambda file: file.key)

    def check_columns(self, table: str, columns: Mapping[str, str]) -> None:
        """
        Raises:
            InvalidInputError: a table may only gain columns.
        """
        known = self.manifest(table).columns
        if missing := [name for name in known if name not in columns]:
            raise InvalidInputError(
                f"{table} has columns that are missing here: {', '.join(missing)}. A table only ever gains columns; a "
                "warehouse that a newer casque has written needs that or a newer one"
            )
        if other := [f"{name} ({kind}, here {columns[name]})" for name, kind in known.items() if columns[name] != kind]:
            raise InvalidInputError(f"{table} has columns of another type: {', '.join(other)}. Cast them")

    def replace(
        self, table: str, columns: Mapping[str, str], files: Iterable[File], *, dates: Collection[str] | None = None
    ) -> None:
        """Replace all files, or those of these dates."""
        self.check_columns(table, columns)
        left = [] if dates is None else [file for file in self.manifest(table).files if file.date not in dates]
        self._set(table, columns, [*left, *files])

    def add(
        self, table: str, columns: Mapping[str, str], files: Iterable[File], *, instead: Collection[str] = ()
    ) -> None:
        """Add files, and remove those with the keys `instead`."""
        self.check_columns(table, columns)
        left = [file for file in self.manifest(table).files if file.key not in instead]
        self._set(table, columns, [*left, *files])

    def commit(self, cursor: dict[str, Any] | None = None) -> Snapshot:
        """Apply the change: write manifests first, then the root.

        Raises:
            CASConflictError: another writer changed the warehouse since this change began; nothing was changed.
        """
        return self._store_ref.run(lambda store: self._commit(store, cursor))

    async def _commit(self, store: Store, cursor: dict[str, Any] | None) -> Snapshot:
        before = self.base.root
        now_ms = self._warehouse.now_ms()
        due = now_ms - before.swept_ms >= SWEEP_EVERY_MS
        tables = dict(before.tables)
        for table, manifest in self._manifests.items():
            tables[table] = f"{table}/{MANIFESTS}/{self.stamp}-{new_nonce(system_random())}.json"
            await create_new(store, tables[table], msgspec.json.encode(manifest))
        root = Root(
            version=before.version + 1,
            nonce=new_nonce(system_random()),
            at_ms=now_ms,
            tables=tables,
            cursor=before.cursor if cursor is None else cursor,
            swept_ms=now_ms if due else before.swept_ms,
        )
        body = msgspec.json.format(msgspec.json.encode(root), indent=1)
        if not await swap(store, ROOT, body, expected=self.base.etag):
            raise CASConflictError(
                f"somebody else changed the warehouse since version {before.version}, another run of the pipeline "
                "perhaps; nothing of this change is there. Leave it to the other one, or start again"
            )
        if due:
            await self._warehouse.sweep_on(store)
        return await self._warehouse.look(store)

    def _set(self, table: str, columns: Mapping[str, str], files: list[File]) -> None:
        files.sort(key=lambda file: (file.date, file.first or 0, file.key))
        self._manifests[table] = Manifest(table, dict(columns), tuple(files))


SWEEP_EVERY_MS = 3_600_000


def frame(spark: SparkSession, store_ref: StoreRef, files: Sequence[File], columns: Mapping[str, str]) -> DataFrame:
    """Files as a frame, read by the executors."""
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    if not files:
        return spark.createDataFrame([], ddl)
    groups = grouped(files, bytes_max=READ_BYTES)
    numbers = spark.range(0, len(groups), 1, len(groups))
    return numbers.mapInArrow(Reader(store_ref, groups, dict(columns)), ddl)


def columns_of(df: DataFrame) -> dict[str, str]:
    return dict(df.dtypes)


def stamp(at_ms: int) -> str:
    """`20260215T101500`, which sorts by time."""
    return from_ms(max(at_ms, 0)).strftime("%Y%m%dT%H%M%S")


def stamp_of(key: str) -> str | None:
    """When a file or a manifest was made; None for any other file."""
    name = key.rpartition("/")[2]
    if name.startswith("part-") and name.endswith(".parquet"):
        return name.split("-")[1]
    if f"/{MANIFESTS}/" in key and name.endswith(".json"):
        return name.split("-")[0]
    return None


def _decode(key: str, body: bytes, kind: Callable[..., S]) -> S:
    try:
        return msgspec.json.decode(body, type=kind)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptQueueError(key, f"this is no part of a warehouse ({error}). Restore it from a backup") from error
