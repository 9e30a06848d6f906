"""One table of a warehouse as an Iceberg table. Spark writes the files; PyIceberg registers them in a catalog.

The catalog makes a commit atomic: it replaces the address of the table's metadata only if that is still the one which
the commit was made from. The mark of a run is a property of the table, changed in the same commit as its files: unlike
the summary of a snapshot it outlives the snapshots of other writers and the expiry of our own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from importlib.util import find_spec
from itertools import pairwise
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from pyarrow.dataset import dataset
from pyarrow.fs import FileSelector

from casque.arrow_types import arrow_schema, spark_type
from casque.clock import SystemClock
from casque.errors import CorruptQueueError, InvalidInputError, NotInstalledError, StorageError
from casque.spark.files import File, local_path
from casque.spark.store_ref import StoreRef
from casque.spark.table_log import Known, TableLog
from casque.types import from_ms

PACKAGES = ("pyiceberg", "sqlalchemy")
"""What `casque[iceberg]` brings."""
RUN = "casque.run"
NAMES = "schema.name-mapping.default"
OWN_CATALOG = "casque"
OWN_FILE = "iceberg.db"
"""The catalog of a local warehouse that has no other, in SQLite."""
MANIFESTS_MANY = 50
"""Merge a table's manifests when there are this many: each commit adds one or two, and a reader opens all of them."""
_PROPERTIES = {
    # PyIceberg would try a lost commit again on top of the winner's, which may be the same run.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": str(MANIFESTS_MANY),
    "write.metadata.delete-after-commit.enabled": "true",
}
_S3 = ("access_key_id", "secret_access_key", "session_token", "region", "endpoint")
_CREATING = Lock()
"""PyIceberg's SQL catalog fails if two threads create one namespace."""


class Catalog(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the tables of a warehouse are registered. Stored in its root, so without credentials."""

    name: str = ""
    """In PyIceberg's configuration; empty for a SQLite file in the warehouse."""
    prefix: str = ""
    """What the namespaces `bronze`, `silver` and `gold` begin with."""

    def open(self, warehouse: StoreRef) -> Any:
        """The catalog itself, of PyIceberg.

        Raises:
            NotInstalledError: what PyIceberg needs for this catalog is not installed.
            InvalidInputError: there is no such catalog.
            StorageError: it could not be reached.
        """
        self.check(warehouse)
        from pyiceberg import catalog, exceptions
        from sqlalchemy.exc import SQLAlchemyError

        own = {"type": "sql", "uri": f"sqlite:///{local_path(warehouse.url)}/{OWN_FILE}"}
        try:
            return catalog.load_catalog(self.name or OWN_CATALOG, **_access(warehouse) if self.name else own)
        except exceptions.NotInstalledError as error:
            raise NotInstalledError(str(error), "install the extra of pyiceberg for this catalog") from error
        except (OSError, SQLAlchemyError) as error:
            raise StorageError(f"the catalog {self.name or OWN_FILE!r} cannot be reached: {error}") from error
        except (ValueError, exceptions.NoSuchPropertyException) as error:
            raise InvalidInputError(
                f"there is no catalog {self.name!r}: describe it in .pyiceberg.yaml, or with variables such as "
                f"PYICEBERG_CATALOG__{self.name.upper()}__URI ({error})"
            ) from error

    def check(self, warehouse: StoreRef) -> None:
        """
        Raises:
            NotInstalledError: PyIceberg is not installed.
            InvalidInputError: tables of this warehouse cannot be in this catalog.
        """
        if any(find_spec(package) is None for package in PACKAGES):
            raise NotInstalledError("pyiceberg is not installed", 'pip install "casque[iceberg]"')
        table_location(warehouse, "")
        if not self.name and local_path(warehouse.url) is None:
            raise InvalidInputError(
                "Iceberg tables in a bucket need a catalog that is a server, such as REST, Glue or PostgreSQL: "
                "describe one in PyIceberg's configuration and name it with --catalog"
            )

    def identifier(self, table: str) -> tuple[str, ...]:
        """
        >>> Catalog(prefix="orders_").identifier("gold/minutes")
        ('orders_gold', 'minutes')
        """
        layer, _, name = table.partition("/")
        return (*f"{self.prefix}{layer}".split("."), name)


class IcebergLog(TableLog):
    """One table."""

    def __init__(
        self,
        catalog: Any,
        identifier: tuple[str, ...],
        warehouse: StoreRef,
        name: str,
        columns: Mapping[str, str],
        rows: str,
        *,
        expected: bool = False,
    ) -> None:
        """`catalog` is PyIceberg's. `expected`: the table was there before."""
        super().__init__(name, table_location(warehouse, name), columns, rows)
        self._catalog = catalog
        self._identifier = identifier
        self._expected = expected
        self._table: Any = None

    @property
    def version(self) -> int:
        table = self._opened()
        snapshot = table and table.current_snapshot()
        return snapshot.snapshot_id if snapshot else -1

    @property
    def run(self) -> int:
        table = self._opened()
        return 0 if table is None else int(table.properties.get(RUN, 0))

    def files(self, version: int | None = None) -> list[Known]:
        return [self._known(file) for file in self._data_files(self.version if version is None else version)]

    def arrow(self, version: int, columns: Sequence[str] | None = None) -> Any:
        # Not by PyIceberg: of a null list of structs its reader makes an empty one (0.12).
        disk, root = self._disk()
        schema = arrow_schema(self.columns())
        found = [f"{root}/{one.path}" for one in self.files(version)]
        if not found:
            return schema.empty_table().select(columns or schema.names)
        return dataset(found, schema, format="parquet", filesystem=disk).to_table(columns)

    def columns(self) -> dict[str, str]:
        table = self._opened()
        if table is None:
            raise InvalidInputError(f"there is no table {'.'.join(self._identifier)} in the catalog")
        return {field.name: spark_type(field.type) for field in table.schema().as_arrow()}

    def sweep(self, keep: timedelta) -> None:
        from pyiceberg.exceptions import CommitFailedException

        table = self._opened()
        if table is None:
            return
        before = from_ms(SystemClock().wall_ms()) - keep
        held = {ref.snapshot_id for ref in table.metadata.refs.values()}
        snapshots = sorted(table.snapshots(), key=lambda one: one.sequence_number)
        # A snapshot is needed until it is replaced, however old it is by then.
        ids = [one.snapshot_id for one, after in pairwise(snapshots) if from_ms(after.timestamp_ms) < before]
        if expired := [one for one in ids if one not in held]:
            self._table = None
            try:
                table.maintenance.expire_snapshots().by_ids(expired).commit()
            except CommitFailedException:
                return  # another writer was faster; the next sweep does it
        used = set(_used(self._opened()))
        disk, path = self._disk()
        for info in disk.get_file_info(FileSelector(path, recursive=True, allow_not_found=True)):
            if info.is_file and info.mtime < before and self.uri + info.path.removeprefix(path) not in used:
                disk.delete_file(info.path)

    def _write(
        self,
        added: Sequence[File],
        removed: Sequence[Known],
        at_ms: int,  # noqa: ARG002 - PyIceberg takes the time itself
        *,
        run: int | None = None,
    ) -> bool:
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        table = self._opened() or self._create()
        there = {} if not removed else {self._path(file): file for file in self._data_files(self.version)}
        self._table = None
        if any(one.path not in there for one in removed):
            return False
        commit = table.transaction()
        self._grow(commit)
        snapshot = table.current_snapshot()
        if removed and len(snapshot.manifests(table.io)) > MANIFESTS_MANY:
            # Only an append merges manifests, and drops those that list nothing but removed files.
            with commit.update_snapshot().merge_append():
                pass
        if run is not None:
            commit.set_properties({RUN: str(run)})
        update = commit.update_snapshot(snapshot_properties={} if run is None else {RUN: str(run)})
        with update.overwrite() if removed else update.merge_append() as files:
            for one in added:
                location = f"{self.uri}/{one.path}"
                files.append_data_file(parquet_file_to_data_file(table.io, commit.table_metadata, location))
            for known in removed:
                files.delete_data_file(there[known.path])
        try:
            commit.commit_transaction()
        except CommitFailedException:
            return False
        return True

    def _grow(self, commit: Any) -> None:
        """Add the columns that the table has gained since. Files are read by the names of their columns: Spark writes
        no ids into them."""
        known = {field.name for field in commit.table_metadata.schema().fields}
        if new := {name: kind for name, kind in self._columns.items() if name not in known}:
            with commit.update_schema() as schema:
                schema.union_by_name(arrow_schema(new))
        names = commit.table_metadata.schema().name_mapping.model_dump_json()
        if commit.table_metadata.properties.get(NAMES) != names:
            commit.set_properties({NAMES: names})

    def _opened(self) -> Any:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        if self._table is None:
            try:
                table = self._catalog.load_table(self._identifier)
            except (NoSuchTableError, NoSuchNamespaceError) as error:
                if self._expected:
                    problem = f"{'.'.join(self._identifier)} is not in the catalog any more. Restore the catalog"
                    raise CorruptQueueError(self.name, problem) from error
                return None
            if table.location() != self.uri:
                raise InvalidInputError(
                    f"{'.'.join(self._identifier)} is in the catalog already, at {table.location()}; choose "
                    "another namespace for this warehouse with --namespace-prefix"
                )
            self._table = table
        return self._table

    def _create(self) -> Any:
        with _CREATING:
            self._catalog.create_namespace_if_not_exists(self._identifier[:-1])
        self._catalog.create_table_if_not_exists(
            self._identifier,
            arrow_schema(self._columns),
            location=self.uri,
            properties={**_PROPERTIES, "comment": self._rows},
        )
        return self._opened()

    def _scan(self, version: int) -> Any:
        table = self._opened()
        if table is None or table.snapshot_by_id(version) is None:
            problem = f"snapshot {version} of this table is gone. Rebuild the warehouse with --rebuild"
            raise CorruptQueueError(self.name, problem)
        return table.scan(snapshot_id=version)

    def _data_files(self, version: int) -> list[Any]:
        return [] if version == -1 else [task.file for task in self._scan(version).plan_files()]

    def _disk(self) -> tuple[Any, str]:
        """The file system of Arrow that the table is on, and its folder there."""
        from pyiceberg.io.pyarrow import PyArrowFileIO

        io = PyArrowFileIO(self._opened().io.properties)
        scheme, netloc, path = io.parse_location(self.uri)
        return io.fs_by_scheme(scheme, netloc), path

    def _path(self, file: Any) -> str:
        return str(file.file_path).removeprefix(f"{self.uri}/")

    def _known(self, file: Any) -> Known:
        number = self._opened().schema().find_field("date").field_id
        first, last = _day(file.lower_bounds, number, date.min), _day(file.upper_bounds, number, date.max)
        return Known(self._path(file), file.file_size_in_bytes, file.record_count, first, last)


def table_location(warehouse: StoreRef, table: str) -> str:
    """
    Raises:
        InvalidInputError: Iceberg tables cannot be kept there.
    """
    root = local_path(warehouse.url)
    if root is not None:
        return f"file://{root / table}"
    if not warehouse.url.startswith("s3://"):
        raise InvalidInputError(
            f"{warehouse!r}: Iceberg tables can be kept in s3:// and file://; use --format delta here"
        )
    return f"{warehouse.url.partition('?')[0]}/{table}"


def _access(warehouse: StoreRef) -> dict[str, str]:
    """The warehouse's own options under the names of PyIceberg."""
    given = dict(parse_qsl(urlsplit(warehouse.url).query)) | warehouse.options
    return {f"s3.{name.replace('_', '-')}": given[name] for name in _S3 if name in given}


def _used(table: Any) -> Iterator[str]:
    """Every file that a version of the table needs."""
    yield table.metadata_location
    yield from (one.metadata_file for one in table.metadata.metadata_log)
    yield from (one.statistics_path for one in (*table.metadata.statistics, *table.metadata.partition_statistics))
    seen = set()
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest.manifest_path
                yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))


def _day(bounds: Mapping[int, bytes] | None, number: int, unknown: date) -> str:
    bound = (bounds or {}).get(number)
    if bound is None:
        return str(unknown)
    return str(date(1970, 1, 1) + timedelta(days=int.from_bytes(bound, "little", signed=True)))
