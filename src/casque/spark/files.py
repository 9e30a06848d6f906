"""Parquet files of a warehouse's tables, written and read by Spark.

Where Spark reaches the warehouse itself (local and shared disks), its own writer and reader do it. In buckets a Python
data source does (`bucket_files`), so that neither needs a jar. Either way a run writes below a folder of its own, and
nothing is part of a table before its Delta log names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from casque.spark.models import ddl
from casque.spark.store_ref import StoreRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY = "day"
"""The folders of a run: one for each date, so that a file holds one date and is replaced with it."""


class File(msgspec.Struct, frozen=True):
    """A file of a table."""

    path: str
    """Below the table's folder."""
    bytes: int
    rows: int
    least: Mapping[str, Any]
    """The least value of each column of numbers or times, as a Delta log has it."""
    most: Mapping[str, Any]
    nulls: Mapping[str, int]

    def stats(self) -> str:
        return msgspec.json.encode(
            {
                "numRecords": self.rows,
                "minValues": self.least,
                "maxValues": self.most,
                "nullCount": self.nulls,
            }
        ).decode()


def local_path(url: str) -> Path | None:
    """The folder of a `file://` URL; None for a bucket."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def write(df: DataFrame, warehouse: StoreRef, table: str, folder: str) -> list[File]:
    """Let the executors write a frame that has a column `date`, each date to files of its own."""
    root = local_path(warehouse.url)
    if root is None:
        from casque.spark.bucket_files import write_to_bucket

        return write_to_bucket(df, warehouse, table, folder)
    place = root / table / folder
    df.withColumn(DAY, df["date"]).write.partitionBy(DAY).option("compression", "zstd").parquet(str(place))
    for other in place.rglob("*"):
        if other.is_file() and other.suffix != ".parquet":
            other.unlink()  # Hadoop's checksums and marks of success
    found = sorted(place.rglob("*.parquet"))
    return [described(str(one.relative_to(root / table)), one.stat().st_size, pq.read_metadata(one)) for one in found]


def frame(
    spark: SparkSession, warehouse: StoreRef, table: str, files: Sequence[str], columns: Mapping[str, str]
) -> DataFrame:
    """These files of a table, by their paths. Columns that a file lacks are null."""
    schema = ddl(columns)
    if not files:
        return spark.createDataFrame([], schema)
    root = local_path(warehouse.url)
    if root is None:
        from casque.spark.bucket_files import read_from_bucket

        return read_from_bucket(spark, warehouse, table, files, columns)
    return spark.read.schema(schema).parquet(*(str(root / table / path) for path in files))


def described(path: str, size: int, footer: Any) -> File:
    """A file by its Parquet footer."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number, field in enumerate(_flat(footer.schema.to_arrow_schema())):
        chunks = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
        if field is None or any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        nulls[field.name] = sum(chunk.null_count for chunk in chunks)
        known = [chunk for chunk in chunks if chunk.has_min_max]
        if known and (pa.types.is_integer(field.type) or pa.types.is_temporal(field.type)):
            least[field.name] = _plain(min(chunk.min for chunk in known))
            most[field.name] = _plain(max(chunk.max for chunk in known))
    return File(path, size, footer.num_rows, least, most, nulls)


def _flat(schema: Any) -> Iterable[Any]:
    """The field of each Parquet column; None for one inside a list, map or struct."""
    for field in schema:
        yield from [None] * _leaves(field.type) if pa.types.is_nested(field.type) else [field]


def _leaves(kind: Any) -> int:
    if pa.types.is_map(kind):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    if pa.types.is_nested(kind):
        return sum(_leaves(kind.field(at).type) for at in range(kind.num_fields))
    return 1


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
    return str(value) if isinstance(value, date) else value
