"""Translates between Spark's schemas and the columns of a scan."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from casque.errors import InvalidInputError
from casque.scan.arrow_types import arrow_type
from casque.scan.tables import COLUMNS, Table, check_columns


def wanted_schema(table: Table, schema: StructType) -> Any:
    """The Arrow schema that Spark asks for: the whole table, or the part that the user's `.schema(...)` selects.

    Raises:
        InvalidInputError: the table has no such column, or has it with another type.
    """
    check_columns(table, schema.fieldNames())
    fields = []
    for one in schema.fields:
        kind, asked = COLUMNS[table][one.name], one.dataType.simpleString()
        if asked != kind:
            raise InvalidInputError(
                f"the column {one.name} of the table {table} is {kind}, not {asked}: read it as that, and cast it then"
            )
        fields.append(pa.field(one.name, arrow_type(kind), nullable=one.nullable))
    return pa.schema(fields)


def fitted(batch: Any, schema: Any) -> Any:
    """The same columns under exactly the schema that Spark compares them with."""
    return batch if batch.schema.equals(schema) else pa.RecordBatch.from_arrays(batch.columns, schema=schema)
