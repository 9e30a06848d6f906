"""The Delta log of one table: which files belong to it, and which run wrote them.

A run commits at most once to each table: the commit carries the run's number as a transaction of the application
`casque`, and goes only on top of the version that it was made for. So a run that died is completed by the next one
without anything twice, and of two that complete the same run one wins.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pyarrow as pa

from casque.errors import CASConflictError, CorruptQueueError, InvalidInputError, NotInstalledError
from casque.scan.arrow_types import arrow_schema, spark_type
from casque.spark.files import File, local_path
from casque.spark.store_ref import StoreRef

APPLICATION = "casque"
CHECKPOINT_COMMITS = "50"
APPEND_RETRIES = 100
COMMIT_TRIES = 10
_PREFIXES = {"s3": "aws_", "gs": "google_", "az": "azure_storage_"}
"""What the names of a cloud's options begin with in Delta's library."""


class Known(msgspec.Struct, frozen=True):
    """A file of one version of a table."""

    path: str
    bytes: int
    rows: int
    first: str
    """The least date in it."""
    last: str

    def holds(self, dates: Collection[str] | None) -> bool:
        """Whether rows of any of these dates may be in it; None for all dates."""
        return dates is None or any(self.first <= date <= self.last for date in dates)


class DeltaLog:
    """One table of a warehouse.

    Raises:
        NotInstalledError: `deltalake` is not installed.
    """

    def __init__(self, warehouse: StoreRef, name: str, columns: Mapping[str, str], rows: str) -> None:
        """`rows` says what a row is."""
        try:
            import deltalake
        except ImportError as error:
            raise NotInstalledError("deltalake is not installed", 'pip install "casque[spark]"') from error
        self._lib = deltalake
        self.name = name
        self.uri = table_uri(warehouse, name)
        self._options = storage_options(warehouse)
        self._columns = dict(columns)
        self._rows = rows
        self._table: Any = None

    @property
    def exists(self) -> bool:
        return self._opened() is not None

    @property
    def version(self) -> int:
        """The latest."""
        table = self._opened()
        return -1 if table is None else int(table.version())

    @property
    def run(self) -> int:
        """The last run that committed; 0 for none."""
        table = self._opened()
        return 0 if table is None else int(table.transaction_version(APPLICATION) or 0)

    def files(self, version: int | None = None) -> list[Known]:
        """The files of a version, or of the latest.

        Raises:
            CorruptQueueError: that version is gone.
        """
        table = self._opened()
        if table is None or version == -1:
            return []
        if version not in (None, table.version()):
            try:
                table = self._lib.DeltaTable(self.uri, version=version, storage_options=self._options)
            except self._lib.exceptions.DeltaError as error:
                problem = f"version {version} of this table is gone ({error}). Rebuild the warehouse with --rebuild"
                raise CorruptQueueError(self.name, problem) from error
        rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return [
            Known(row["path"], row["size_bytes"], row["num_records"], str(row["min.date"]), str(row["max.date"]))
            for row in rows
        ]

    def arrow(self, version: int, columns: Sequence[str] | None = None) -> Any:
        """A version as a `pyarrow.Table`, in this process: for small tables."""
        table = self._lib.DeltaTable(self.uri, version=version, storage_options=self._options)
        return table.to_pyarrow_table(columns=None if columns is None else list(columns))

    def commit(self, run: int, added: Sequence[File], removed: Sequence[Known], at_ms: int) -> bool:
        """Add and remove files, as this run; False if it has done so already.

        Raises:
            CASConflictError: another writer changed the table meanwhile; nothing was changed.
        """
        # Files that were merged meanwhile change nothing for a run that only adds some.
        for _ in range(1 if removed else COMMIT_TRIES):
            if self.run >= run:
                return False
            if self._write(added, removed, at_ms, app_transactions=[self._lib.Transaction(APPLICATION, run)]):
                return True
        if self.run >= run:
            return False
        raise CASConflictError(f"another writer changed {self.name} meanwhile: run the pipeline again")

    def rewrite(self, added: Sequence[File], removed: Sequence[Known], at_ms: int) -> bool:
        """Replace files by others with the same rows; False if another writer was faster."""
        return self._write(added, removed, at_ms, changed=False)

    def sweep(self, keep: timedelta) -> None:
        """Delete the files that no version has had for so long, and those of runs that died before that."""
        table = self._opened()
        if table is not None:
            hours = int(keep / timedelta(hours=1))
            table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True)
            self._table = None

    def _write(
        self,
        added: Sequence[File],
        removed: Sequence[Known],
        at_ms: int,
        *,
        changed: bool = True,
        retries: int = 0,
        **properties: Any,
    ) -> bool:
        """Commit on top of the version that was opened; False if there is another by now. With retries on top of later
        versions too, which is for files that are only added."""
        from deltalake.transaction import AddAction, RemoveAction

        table = self._grown(self._opened() or self._create())
        actions: list[Any] = [AddAction(one.path, one.bytes, {}, at_ms, changed, one.stats()) for one in added]
        actions += [
            RemoveAction(one.path, changed, deletion_timestamp=at_ms, partition_values={}, size=one.bytes)
            for one in removed
        ]
        marks = self._lib.CommitProperties(max_commit_retries=retries, **properties)
        try:
            table.create_write_transaction(actions, "append", arrow_schema(self._columns), commit_properties=marks)
        except self._lib.exceptions.CommitFailedError:
            return False
        finally:
            self._table = None
        return True

    def append(self, added: Sequence[File], at_ms: int) -> None:
        """Add files, beside whatever others add.

        Raises:
            CASConflictError: other writers kept changing the table; nothing was changed.
        """
        if not self._write(added, [], at_ms, retries=APPEND_RETRIES):
            raise CASConflictError(f"other writers kept changing {self.name}: try again")

    def columns(self) -> dict[str, str]:
        """The columns that the table has, and their types in Spark.

        Raises:
            InvalidInputError: there is no such table.
        """
        table = self._opened()
        if table is None:
            raise InvalidInputError(f"there is no table {self.name!r} at {self.uri}")
        return {field.name: spark_type(field.type) for field in pa.schema(table.schema().to_arrow())}

    def check_columns(self) -> None:
        """
        Raises:
            InvalidInputError: the table has other columns. It may only gain some.
        """
        if not self.exists:
            return
        known = self.columns()
        if missing := [name for name in known if name not in self._columns]:
            raise InvalidInputError(
                f"{self.name} has columns that are missing here: {', '.join(missing)}. A table only ever gains columns"
            )
        if other := [f"{n} ({kind}, here {self._columns[n]})" for n, kind in known.items() if self._columns[n] != kind]:
            raise InvalidInputError(f"{self.name} has columns of another type: {', '.join(other)}. Cast them")

    def _opened(self) -> Any:
        if self._table is None and self._lib.DeltaTable.is_deltatable(self.uri, storage_options=self._options):
            self._table = self._lib.DeltaTable(self.uri, storage_options=self._options)
        return self._table

    def _create(self) -> Any:
        self._table = self._lib.DeltaTable.create(
            self.uri,
            arrow_schema(self._columns),
            mode="ignore",
            storage_options=self._options,
            description=self._rows,
            configuration={"delta.checkpointInterval": CHECKPOINT_COMMITS},
        )
        return self._table

    def _grown(self, table: Any) -> Any:
        """Add the columns that the table has gained since."""
        known = {field.name for field in table.schema().fields}
        if new := {name: kind for name, kind in self._columns.items() if name not in known}:
            table.alter.add_columns(self._lib.Schema.from_arrow(arrow_schema(new)).fields)
        return table


def table_uri(warehouse: StoreRef, table: str) -> str:
    """The URI of a table for `deltalake.DeltaTable` and other readers."""
    root = local_path(warehouse.url)
    return f"{warehouse.url.partition('?')[0]}/{table}" if root is None else str(root / table)


def storage_options(warehouse: StoreRef) -> dict[str, str] | None:
    """The warehouse's own options under the names of Delta's library."""
    parts = urlsplit(warehouse.url)
    if parts.scheme not in _PREFIXES:
        return None
    given = dict(parse_qsl(parts.query)) | warehouse.options
    named = {_PREFIXES[parts.scheme] + name: value for name, value in given.items()}
    if parts.scheme == "s3":
        if given.get("endpoint", "").startswith("http://"):
            named["aws_allow_http"] = "true"
        # Without it two concurrent commits could both seem to succeed.
        named["aws_conditional_put"] = "etag"
    return named
