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


def spark_type(kind: Any) -> str:
    """The reverse of `arrow_type`.

    >>> spark_type(pa.list_(pa.int32()))
    'array<int>'
    """
    plain = next((name for name, known in _PLAIN.items() if known == kind), None)
    if plain is not None:
        return plain
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_map(kind):
        return f"map<{spark_type(kind.key_type)},{spark_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{spark_type(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    return {"large_string": "string", "string_view": "string", "large_binary": "binary", "binary_view": "binary"}[
        str(kind)
    ]


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
