"""Translates between Spark's schemas and the columns of a scan."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from casque.arrow_types import arrow_type
from casque.errors import InvalidInputError
from casque.scan.tables import COLUMNS, METADATA, Table, check_columns


def wanted_schema(table: Table, schema: StructType) -> Any:
    """The Arrow schema that Spark asks for: the whole table, or the part that the user's `.schema(...)` selects.

    Raises:
        InvalidInputError: the table has no such column, or has it with another type.
    """
    names = check_columns(table, schema.fieldNames())
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidInputError(f"the column {twice[0]} is asked for twice: name it once")
    fields = []
    for one in schema.fields:
        kind, asked = (COLUMNS[table] | METADATA)[one.name], one.dataType.simpleString()
        if asked != kind:
            raise InvalidInputError(
                f"the column {one.name} of the table {table} is {kind}, not {asked}: read it as that, and cast it then"
            )
        fields.append(pa.field(one.name, arrow_type(kind), nullable=one.nullable))
    return pa.schema(fields)


def fitted(batch: Any, schema: Any) -> Any:
    """The same columns under exactly the schema that Spark compares them with.

    Raises:
        InvalidInputError: there is a null where the schema allows none; Spark would fail without a word about it.
    """
    for field, column in zip(schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise InvalidInputError(f"the column {field.name} holds null, and the schema says NOT NULL: leave that out")
    return batch if batch.schema.equals(schema) else pa.RecordBatch.from_arrays(batch.columns, schema=schema)
