"""Spark's types as Arrow's, parsed from DDL: no session has to be asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from casque.errors import InvalidInputError

INSTANT = pa.timestamp("us", tz="UTC")
_PLAIN = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": INSTANT,
    "timestamp_ntz": pa.timestamp("us"),
}


def arrow_type(ddl: str) -> Any:
    """
    >>> arrow_type("map<int,bigint>")
    MapType(map<int32, int64>)

    Raises:
        InvalidInputError: a warehouse does not keep this type.
    """
    ddl = ddl.strip()
    if ddl in _PLAIN:
        return _PLAIN[ddl]
    if match := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", ddl):
        return pa.decimal128(int(match[1]), int(match[2]))
    match = re.fullmatch(r"(array|map|struct)<(.*)>", ddl)
    if match is None:
        raise InvalidInputError(f"a column of type {ddl} cannot be kept: cast it first")
    inner = list(_parts(match[2]))
    if match[1] == "array":
        return pa.list_(arrow_type(inner[0]))
    if match[1] == "map":
        return pa.map_(*map(arrow_type, inner))
    fields = [part.partition(":") for part in inner]
    return pa.struct([(name.strip().strip("`"), arrow_type(kind)) for name, _, kind in fields])


def arrow_schema(columns: dict[str, str]) -> Any:
    return pa.schema([(name, arrow_type(kind)) for name, kind in columns.items()])


def _parts(text: str) -> Iterator[str]:
    """Split at the outermost commas."""
    depth = start = 0
    for at, sign in enumerate(text):
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]
