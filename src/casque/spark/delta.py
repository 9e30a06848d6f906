"""The tables of a warehouse as Delta tables over the same files: only a Delta log is written beside them.

Publishing commits the difference between the Delta log and the manifest. So it may run at any time, repeatedly, and
after a crash between the warehouse's own commit and this one. Older versions of a Delta table can be read as long as
the warehouse keeps replaced files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from casque.errors import NotInstalledError
from casque.scan.arrow_types import arrow_schema
from casque.spark.parquet import PARTITION
from casque.spark.warehouse import Manifest, Warehouse

APPLICATION = "casque-pipeline"
_NAMES = {"s3": "aws_", "gs": "google_", "az": "azure_storage_"}
"""Prefix of a cloud's options in Delta's library."""


def publish(warehouse: Warehouse) -> dict[str, int]:
    """Bring the Delta logs of all tables up to date; returns the number of files that each gained or lost.

    Raises:
        NotInstalledError: `deltalake` is not installed.
    """
    snapshot = warehouse.snapshot()
    changed = {}
    for table in sorted(snapshot.root.tables):
        changes = _publish(warehouse, snapshot.manifest(table), snapshot.root.version, snapshot.root.at_ms)
        if changes:
            changed[table] = changes
    return changed


def table_uri(warehouse: Warehouse, table: str) -> str:
    """The URI of a table for `deltalake.DeltaTable`."""
    return f"{warehouse.store_ref.url.partition('?')[0]}/{table}"


def storage_options(warehouse: Warehouse) -> dict[str, str]:
    """The warehouse's own options under the names of Delta's library."""
    parts = urlsplit(warehouse.store_ref.url)
    if parts.scheme not in _NAMES:
        return {}
    given = dict(parse_qsl(parts.query)) | warehouse.store_ref.options
    named = {_NAMES[parts.scheme] + name: value for name, value in given.items()}
    if parts.scheme == "s3":
        if given.get("endpoint", "").startswith("http://"):
            named["aws_allow_http"] = "true"
        # Without it two concurrent commits could both seem to succeed.
        named["aws_conditional_put"] = "etag"
    return named


def _publish(warehouse: Warehouse, manifest: Manifest, version: int, at_ms: int) -> int:
    try:
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.transaction import AddAction, RemoveAction
    except ImportError as error:
        raise NotInstalledError("deltalake is not installed", 'pip install "casque[delta]"') from error
    uri, options = table_uri(warehouse, manifest.table), storage_options(warehouse)
    schema = arrow_schema(manifest.columns)
    if DeltaTable.is_deltatable(uri, storage_options=options):
        delta = _grown(DeltaTable(uri, storage_options=options), manifest.columns)
    else:
        delta = DeltaTable.create(uri, schema, partition_by=[PARTITION], storage_options=options)
    there = _files(delta)
    wanted = {file.key.removeprefix(f"{manifest.table}/"): file for file in manifest.files}
    actions: list[Any] = [
        AddAction(path, file.bytes, {PARTITION: file.date}, at_ms, True, f'{{"numRecords":{file.rows}}}')
        for path, file in wanted.items()
        if path not in there
    ]
    actions += [
        RemoveAction(path, True, deletion_timestamp=at_ms, partition_values={PARTITION: date}, size=size)
        for path, (date, size) in there.items()
        if path not in wanted
    ]
    if actions:
        delta.create_write_transaction(
            actions,
            "append",
            schema,
            partition_by=[PARTITION],
            commit_properties=CommitProperties(app_transactions=[Transaction(APPLICATION, version)]),
        )
    return len(actions)


def _grown(delta: Any, columns: Mapping[str, str]) -> Any:
    """Add the columns that the table has gained since."""
    from deltalake import Schema

    known = {field.name for field in delta.schema().fields}
    new = {name: kind for name, kind in columns.items() if name not in known}
    if new:
        delta.alter.add_columns(Schema.from_arrow(arrow_schema(new)).fields)
    return delta


def _files(delta: Any) -> dict[str, tuple[str, int]]:
    """The files in the Delta log, with date and size."""
    import pyarrow as pa

    actions = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
    return {row["path"]: (str(row[f"partition.{PARTITION}"]), row["size_bytes"]) for row in actions}
