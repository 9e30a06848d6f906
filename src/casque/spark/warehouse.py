"""A warehouse: tables below one URL, and a root object that names the versions which belong together.

Each table is complete in itself and can be read by anything that reads Delta, or Iceberg. The root is replaced last, by
compare-and-set: a reader that goes through it sees all tables as one run left them. It also keeps the plan of the run
that is under way, so that the next process completes what a dead one began.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import finalize

import msgspec

from casque.client.objects import get, swap
from casque.clock import Clock, SystemClock, new_nonce, system_random
from casque.errors import CASConflictError, CorruptQueueError, InvalidInputError
from casque.spark.delta import DeltaLog
from casque.spark.files import frame
from casque.spark.iceberg import OWN_FILE, Catalog, IcebergLog
from casque.spark.models import Model, models
from casque.spark.store_ref import StoreRef
from casque.spark.table_log import Known, TableLog
from casque.storage.port import Store, Stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = "casque.json"
OLD_ROOT = "_cursor.json"
"""The root of warehouses before they were Delta tables."""
FORMAT = 3
DELTA_FORMAT = 2
"""What earlier releases read too: roots of Delta tables keep it."""


class Format(StrEnum):
    """What the tables of a warehouse are."""

    DELTA = "delta"
    ICEBERG = "iceberg"


class Root(msgspec.Struct, frozen=True, omit_defaults=True):
    """The only object of a warehouse, beside the logs of its tables, that changes."""

    format: int = DELTA_FORMAT
    nonce: str = ""
    """Keeps two writers from producing the same bytes."""
    run: int = 0
    """The last run that is complete."""
    at_ms: int = 0
    tables: Mapping[str, int] = {}
    """The version of each table after that run."""
    cursor: Mapping[str, Any] = {}
    """How far that run got."""
    plan: Mapping[str, Any] | None = None
    """What the run under way does."""
    swept_ms: int = 0
    """When files that no version needs were last deleted."""
    iceberg: Catalog | None = None
    """Where the tables are registered, if they are Iceberg tables. Never changes."""


class Warehouse:
    """The tables of a queue's history.

        warehouse = Warehouse("s3://bucket/warehouse", {"region": "eu-west-1"})
        warehouse.read(spark, "gold/hours").show()

    Raises:
        InvalidInputError: no such store, or executors could not share it.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, str] | None = None,
        *,
        tables: Format | str | None = None,
        catalog: str = "",
        namespace_prefix: str = "",
        clock: Clock | None = None,
    ) -> None:
        """`tables`, `catalog` and `namespace_prefix` say how a new warehouse is made; of one that is there they are
        known."""
        self.store_ref = StoreRef(url, options)
        self._clock = clock or SystemClock()
        self._format = None if tables is None else Format(tables)
        self._wanted = Catalog(catalog, namespace_prefix)
        self._root: Root | None = None

    def __repr__(self) -> str:
        return f"Warehouse({self.store_ref.url.partition('?')[0]!r})"

    def snapshot(self) -> Snapshot:
        """The warehouse as the last complete run left it. Later runs do not change the snapshot.

        Raises:
            CorruptQueueError: the root is another kind of object.
            InvalidInputError: the warehouse has the format of an earlier casque.
        """
        return self.store_ref.run(self.look)

    def check(self) -> None:
        """Whether the pipeline could write here.

        Raises:
            CasqueError: it could not.
        """
        root = self.snapshot().root
        if root.iceberg is not None:
            root.iceberg.check(self.store_ref)
            if root.iceberg.name:
                root.iceberg.open(self.store_ref).close()

    def read(
        self,
        spark: SparkSession,
        table: str,
        *,
        dates: Collection[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """A table, or some of its dates (`2026-02-15`) and columns. Other files and columns are not read.

        Raises:
            InvalidInputError: there is no such table, or no such column.
        """
        return self.snapshot().read(spark, table, dates=dates, columns=columns)

    def log(self, table: str) -> TableLog:
        """The log of a table, ours or a user's."""
        model = models().get(table)
        return self._log(table, {}, "") if model is None else self.log_of(model)

    def log_of(self, model: Model) -> TableLog:
        return self._log(model.name, model.types, model.rows)

    def _log(self, table: str, columns: Mapping[str, str], rows: str) -> TableLog:
        root = self._root or self.snapshot().root
        if root.iceberg is None:
            return DeltaLog(self.store_ref, table, columns, rows)
        name = root.iceberg.identifier(table)
        return IcebergLog(self._catalog, name, self.store_ref, table, columns, rows, expected=table in root.tables)

    @cached_property
    def _catalog(self) -> Any:
        """PyIceberg's; for all tables, and as long as this object."""
        assert self._root is not None
        assert self._root.iceberg is not None
        catalog = self._root.iceberg.open(self.store_ref)
        finalize(self, catalog.close)
        return catalog

    def write(self, before: Snapshot, root: Root) -> Snapshot:
        """Replace the root.

        Raises:
            CASConflictError: another run changed it meanwhile; nothing was changed.
        """
        return self.store_ref.run(lambda store: self._write(store, before, root))

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    # --- For callers that have the store open ---

    async def look(self, store: Store) -> Snapshot:
        read = await get(store, ROOT)
        if isinstance(read, Stored):
            self._root = self._agreed(_decode(read.body))
            return Snapshot(self, self._root, read.etag)
        if isinstance(await get(store, OLD_ROOT), Stored):
            raise InvalidInputError(
                "this warehouse was written before its tables were Delta tables: make a new one from the archive, at "
                "another URL, and delete this one"
            )
        iceberg = self._wanted if self._format is Format.ICEBERG else None
        self._root = Root() if iceberg is None else Root(FORMAT, iceberg=iceberg)
        return Snapshot(self, self._root, None)

    def _agreed(self, root: Root) -> Root:
        found = Format.DELTA if root.iceberg is None else Format.ICEBERG
        if self._format not in (None, found):
            raise InvalidInputError(
                f"the tables of this warehouse are {found.title()} tables and stay so: drop --format {self._format}, "
                "or make another warehouse"
            )
        if root.iceberg and self._wanted not in (Catalog(), root.iceberg):
            raise InvalidInputError(
                f"the tables of this warehouse are registered in the catalog {root.iceberg.name or OWN_FILE!r} with "
                f"the prefix {root.iceberg.prefix!r} and stay so: drop --catalog and --namespace-prefix, or make "
                "another warehouse"
            )
        return root

    async def _write(self, store: Store, before: Snapshot, root: Root) -> Snapshot:
        root = msgspec.structs.replace(root, nonce=new_nonce(system_random()), at_ms=self.now_ms())
        body = msgspec.json.format(msgspec.json.encode(root), indent=1)
        if not await swap(store, ROOT, body, expected=before.etag):
            raise CASConflictError("another run of the pipeline changed the warehouse meanwhile: run it again")
        return await self.look(store)


class Snapshot:
    """A warehouse as one run left it."""

    def __init__(self, warehouse: Warehouse, root: Root, etag: str | None) -> None:
        self._warehouse = warehouse
        self.root = root
        self.etag = etag
        """Version of the root; None if there is no root yet."""

    def _missing(self, table: str) -> InvalidInputError:
        if not self.root.tables:
            return InvalidInputError("this warehouse has no tables yet: `casque pipeline run` makes them")
        if table in models():
            return InvalidInputError(f"this warehouse has no {table} yet: the next `casque pipeline run` makes it")
        return InvalidInputError(
            f"there is no table {table!r} in this warehouse; there are: {', '.join(self.root.tables)}"
        )

    def require(self, table: str) -> None:
        """
        Raises:
            InvalidInputError: there is no such table.
        """
        if table not in self.root.tables:
            raise self._missing(table)

    def files(self, table: str, dates: Collection[str] | None = None) -> list[Known]:
        """The files of a table that hold any of these dates; none if the table does not exist yet."""
        if table not in self.root.tables:
            return []
        found = self._warehouse.log(table).files(self.root.tables[table])
        return [one for one in found if one.holds(dates)]

    def arrow(self, table: str, columns: Sequence[str] | None = None) -> Any:
        """A table as a `pyarrow.Table`, without Spark, in this process: for small tables."""
        return self._warehouse.log(table).arrow(self.root.tables[table], columns)

    def read(
        self,
        spark: SparkSession,
        table: str,
        *,
        dates: Collection[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """As `Warehouse.read`, of this run."""
        self.require(table)
        known = self._warehouse.log(table).columns()
        if unknown := set(columns or ()) - set(known):
            raise InvalidInputError(f"{table} has no column {', '.join(sorted(unknown))}")
        chosen = {name: known[name] for name in columns or known}
        wanted = chosen if dates is None else {**chosen, "date": "date"}
        paths = [one.path for one in self.files(table, dates)]
        df = frame(spark, self._warehouse.store_ref, table, paths, wanted)
        return df if dates is None else df.where(df["date"].isin(*map(str, dates))).select(*chosen)


def _decode(body: bytes) -> Root:
    try:
        root = msgspec.json.decode(body, type=Root)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptQueueError(
            ROOT, f"this is not the root of a warehouse ({error}). Restore it from a backup"
        ) from error
    if root.format > FORMAT:
        raise CorruptQueueError(ROOT, f"written in format {root.format} by a newer casque. Upgrade casque")
    return root
