"""The Delta log of one table. The mark of a run is a transaction of the application `casque`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa

from casque.arrow_types import arrow_schema, spark_type
from casque.errors import CorruptQueueError, InvalidInputError, NotInstalledError
from casque.spark.files import File, local_path
from casque.spark.store_ref import StoreRef
from casque.spark.table_log import Known, TableLog

APPLICATION = "casque"
CHECKPOINT_COMMITS = "50"
_PREFIXES = {"s3": "aws_", "gs": "google_", "az": "azure_storage_"}
"""What the names of a cloud's options begin with in Delta's library."""


class DeltaLog(TableLog):
    """One table of a warehouse.

    Raises:
        NotInstalledError: `deltalake` is not installed.
    """

    def __init__(self, warehouse: StoreRef, name: str, columns: Mapping[str, str], rows: str) -> None:
        try:
            import deltalake
        except ImportError as error:
            raise NotInstalledError("deltalake is not installed", 'pip install "casque[spark]"') from error
        self._lib = deltalake
        super().__init__(name, table_uri(warehouse, name), columns, rows)
        self._options = storage_options(warehouse)
        self._table: Any = None

    @property
    def version(self) -> int:
        table = self._opened()
        return -1 if table is None else int(table.version())

    @property
    def run(self) -> int:
        table = self._opened()
        return 0 if table is None else int(table.transaction_version(APPLICATION) or 0)

    def files(self, version: int | None = None) -> list[Known]:
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
        table = self._lib.DeltaTable(self.uri, version=version, storage_options=self._options)
        return table.to_pyarrow_table(columns=None if columns is None else list(columns))

    def sweep(self, keep: timedelta) -> None:
        table = self._opened()
        if table is not None:
            hours = int(keep / timedelta(hours=1))
            table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True)
            self._table = None

    def _write(self, added: Sequence[File], removed: Sequence[Known], at_ms: int, *, run: int | None = None) -> bool:
        from deltalake.transaction import AddAction, RemoveAction

        changed = run is not None or not removed
        table = self._grown(self._opened() or self._create())
        actions: list[Any] = [AddAction(one.path, one.bytes, {}, at_ms, changed, one.stats()) for one in added]
        actions += [
            RemoveAction(one.path, changed, deletion_timestamp=at_ms, partition_values={}, size=one.bytes)
            for one in removed
        ]
        marks = None if run is None else [self._lib.Transaction(APPLICATION, run)]
        properties = self._lib.CommitProperties(max_commit_retries=0, app_transactions=marks)
        try:
            table.create_write_transaction(actions, "append", arrow_schema(self._columns), commit_properties=properties)
        except self._lib.exceptions.CommitFailedError:
            return False
        finally:
            self._table = None
        return True

    def columns(self) -> dict[str, str]:
        table = self._opened()
        if table is None:
            raise InvalidInputError(f"there is no table {self.name!r} at {self.uri}")
        return {field.name: spark_type(field.type) for field in pa.schema(table.schema().to_arrow())}

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
