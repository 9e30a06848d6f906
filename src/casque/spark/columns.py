"""Columns of a DataFrame as columns of jobs: types are checked once by schema, values batch by batch.

A column that is named like a field of a job fills that field. All others must be requested, so that a misspelt
`priorty` is not silently put into a payload. Arrow works on whole columns; Python touches each value once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from casque import checks
from casque.client.staging import StagedJobs
from casque.errors import InvalidInputError
from casque.fields import GAINED, Field
from casque.spark.write_options import PayloadFrom, WriteOptions

if TYPE_CHECKING:
    from casque.client.staging import Stager

WHOLE = (ByteType, ShortType, IntegerType, LongType)
_KINDS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "int": (WHOLE, "a whole number"),
    "bigint": (WHOLE, "a whole number"),
    "string": ((StringType,), "a string"),
    "boolean": ((BooleanType,), "a boolean"),
    "array<string>": ((ArrayType,), "an array<string>"),
}
FIELDS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "id": ((StringType,), "a string"),
    "entrypoint": ((StringType,), "a string"),
    "payload": ((DataType,), "anything"),
    "priority": (WHOLE, "a whole number"),
    "zone": ((StringType,), "a string"),
    "run_at": ((TimestampType,), "a timestamp"),
    "key": ((StringType,), "a string"),
    "headers": ((MapType,), "a map<string,string>"),
    "max_attempts": (WHOLE, "a whole number"),
    "max_crashes": (WHOLE, "a whole number"),
    "fifo": ((BooleanType,), "a boolean"),
    **{field.name: _KINDS[field.sql or ""] for field in GAINED},
}
"""Columns that fill a field of a job, and the types that they may have."""
KEYS = (StringType, *WHOLE)
"""Types of keys that JSON can write as strings."""
JSON_TYPES = {
    "BinaryType", "BooleanType", "ByteType", "CharType", "DateType", "DayTimeIntervalType", "DecimalType",
    "DoubleType", "FloatType", "IntegerType", "LongType", "NullType", "ShortType", "StringType", "TimeType",
    "TimestampNTZType", "TimestampType", "VarcharType",
}  # fmt: skip
"""Types of values that have a form in JSON. By name, because not every PySpark has all of them."""
NEVER_NULL = ("id", "entrypoint", "payload", "priority", "fifo")
NAMING = ("id", "key", "entrypoint", "zone")
"""Columns by which a refusal names a row. Others may hold what belongs in no log."""

_encoder = msgspec.json.Encoder()


class JobColumns:
    """How rows of one schema become jobs. Made once on the driver, which rejects bad schemas; used by tasks."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        """
        Raises:
            InvalidInputError: a column is missing, has the wrong type, or is not a field of a job.
        """
        names = schema.fieldNames()
        _check_names(names)
        if options.payload is PayloadFrom.COLUMN:
            _check_case(names, options.id_from)
        _check_types(schema)
        self._fields = [name for name in names if name in FIELDS]
        self._constants = options.constants
        self._id_from = options.id_from
        self._skips_known = options.skips_known
        self._kept: Sequence[int] = ()
        """The rows of the last batch, if some of it were left out."""
        self._packed = [name for name in names if name not in FIELDS] if options.payload is PayloadFrom.JSON else []
        _check_constants(self._fields, options.constants)
        _check_id(names, options.id_from)
        _check_payload(names, options, self._packed)
        for field in schema.fields:
            if field.name in ("payload", *self._packed, *self._id_from):
                _check_json(field.dataType, field.name, field.name)

    def jobs(self, batch: pa.RecordBatch, stager: Stager) -> StagedJobs:
        """
        Raises:
            InvalidInputError: a job cannot have this value; names the row, counted from 0, and the column.
        """
        self._kept = ()
        column = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name in NEVER_NULL:
            if name in column and column[name].null_count:
                row, nulls = column[name].is_null().index(True).as_py(), column[name].null_count
                raise InvalidInputError(
                    f"row {row}: the column {name} holds null in {nulls} of {batch.num_rows} rows, and a job cannot be "
                    "without it: filter those rows, or use coalesce"
                )
        ids = self._ids(column, batch.num_rows, stager)
        if self._skips_known and len(set(ids)) != len(ids):
            first = dict(zip(reversed(ids), reversed(range(len(ids))), strict=True))  # the last entry wins
            self._kept = rows = sorted(first.values())
            ids = [ids[row] for row in rows]
            column = {name: values.take(pa.array(rows)) for name, values in column.items()}
        return StagedJobs(
            ids=ids,
            entrypoints=self._taken("entrypoint", column, _texts),
            payloads=self._payloads(column, len(ids)),
            priorities=self._taken("priority", column, _numbers, 0),
            run_at_ms=self._taken("run_at", column, _moments),
            max_attempts=self._taken("max_attempts", column, _numbers),
            keys=None if "key" not in column else column["key"].to_pylist(),
            headers=self._taken("headers", column, _headers),
            zones=self._taken("zone", column, _texts),
            max_crashes=self._taken("max_crashes", column, _numbers),
            fifo=self._taken("fifo", column, _texts, False),
            **{field.name: self._gained(field, column, len(ids)) for field in GAINED},
        )

    def located(self, error: InvalidInputError, batch: pa.RecordBatch, first: int, partition: int) -> InvalidInputError:
        """The refusal of a row of the last batch, with what a user finds that row by."""
        found = re.match(r"row (\d+): ", str(error))
        if found is None:
            return error
        row = self._kept[int(found[1])] if self._kept else int(found[1])
        plain = [one.name for one in batch.schema if pa.types.is_integer(one.type) or pa.types.is_string(one.type)]
        names = [name for name in (*NAMING, *self._id_from) if name in plain]
        shown = ", ".join(f"{name} {checks.shown(batch.column(name)[row].as_py())}" for name in names)
        place = f"partition {partition}" + (f": {shown}" if shown else "")
        return InvalidInputError(f"row {first + row}: {str(error)[found.end() :]} ({place})")

    def _gained(self, field: Field, column: dict[str, Any], rows: int) -> Any:
        if field.name in column:
            return [field.default if value is None else value for value in column[field.name].to_pylist()]
        return [self._constants[field.name]] * rows if field.name in self._constants else None

    def _taken(self, name: str, column: dict[str, Any], convert: Callable[[Any], Any], default: Any = None) -> Any:
        return convert(column[name]) if name in column else self._constants.get(name, default)

    def _ids(self, column: dict[str, Any], rows: int, stager: Stager) -> list[str]:
        if "id" in column:
            ids: list[str] = column["id"].to_pylist()
            return ids
        if not self._id_from:
            return stager.new_ids(rows)
        values = [_values(name, column[name]) for name in self._id_from]
        entrypoints = self._taken("entrypoint", column, _texts)
        return derived_ids(entrypoints if isinstance(entrypoints, list) else [entrypoints] * rows, values)

    def _payloads(self, column: dict[str, Any], rows: int) -> list[bytes]:
        if "payload" not in column:
            return _json_objects(self._packed, [_values(name, column[name]) for name in self._packed], rows)
        payload = column["payload"]
        if pa.types.is_string(payload.type) or pa.types.is_large_string(payload.type):
            payload = payload.cast(pa.large_binary() if pa.types.is_large_string(payload.type) else pa.binary())
        if pa.types.is_binary(payload.type) or pa.types.is_large_binary(payload.type):
            taken: list[bytes] = payload.to_pylist()
            return taken
        return _lines(_values("payload", payload))


def derived_ids(entrypoints: Sequence[str], values: Sequence[Sequence[Any]]) -> list[str]:
    """Ids derived from entrypoint and values: a hash of their JSON, the same in any process and any release."""
    return [hashlib.sha256(line).hexdigest()[:32] for line in _lines(zip(entrypoints, *values, strict=True))]


# --- Checks of the schema ---


def _check_names(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInputError(f"the column {twice[0]} is there twice: rename or drop one")


def _check_case(names: Sequence[str], others: Sequence[str]) -> None:
    for name in names:
        if name.lower() in FIELDS and name not in (*FIELDS, *others):
            raise InvalidInputError(f"the column {name} must be written {name.lower()}: rename it, or drop it")


def _check_types(schema: StructType) -> None:
    for field in schema.fields:
        if field.name not in FIELDS:
            continue
        kinds, wanted = FIELDS[field.name]
        kind = field.dataType
        holds_texts = field.name == "payload" or not isinstance(kind, MapType | ArrayType) or _is_texts(kind)
        if not isinstance(kind, kinds) or not holds_texts:
            hint = ""
            if field.name == "run_at":
                hint = "; make it an instant first: to_utc_timestamp, or to_timestamp with a zone in the text"
                if isinstance(kind, TimestampNTZType):
                    hint = ', which has no time zone: .cast("timestamp") takes the session\'s'
            if field.name == "headers":
                hint = '; for example create_map(lit("trace"), col("trace"))'
            raise InvalidInputError(f"the column {field.name} must be {wanted}, not {kind.simpleString()}{hint}")


def _check_json(kind: DataType, column: str, path: str) -> None:
    """Spark sends other types as their internals: a VARIANT as two binaries, a vector of ML as four columns."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_json(field.dataType, column, f"{path}.{field.name}")
    elif isinstance(kind, ArrayType):
        _check_json(kind.elementType, column, f"{path}[]")
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, KEYS):
            raise InvalidInputError(
                f"the keys of {path} are {kind.keyType.simpleString()}, and in JSON keys are strings: "
                "cast them to string with transform_keys"
            )
        _check_json(kind.valueType, column, f"{path}{{}}")
    elif kind.typeName() == "variant":
        raise InvalidInputError(f"{path} is a VARIANT: make the column JSON text, with to_json({column})")
    elif type(kind).__name__ not in JSON_TYPES:
        raise InvalidInputError(
            f"{path} is of type {kind.simpleString()}, which has no form in JSON: cast it, for example to string"
        )


def _is_texts(kind: MapType | ArrayType) -> bool:
    if isinstance(kind, ArrayType):
        return isinstance(kind.elementType, StringType)
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


def _check_constants(fields: Sequence[str], constants: dict[str, Any]) -> None:
    for name in constants:
        if name in fields:
            raise InvalidInputError(f"{name} is given twice, as a column and as an option: drop one of them")
    if "entrypoint" not in fields and "entrypoint" not in constants:
        raise InvalidInputError('jobs need an entrypoint: a column of that name, or .option("entrypoint", "send")')


def _check_id(names: Sequence[str], id_from: Sequence[str]) -> None:
    if id_from and "id" in names:
        raise InvalidInputError("idFrom makes ids, and there is a column id as well: drop one of them")
    for name in id_from:
        if name not in names:
            raise InvalidInputError(f"idFrom names {name!r}, and there is no such column: {_listed(names)}")


def _check_payload(names: Sequence[str], options: WriteOptions, packed: Sequence[str]) -> None:
    others = [name for name in names if name not in FIELDS and name not in options.id_from]
    if options.payload is PayloadFrom.JSON:
        if "payload" in names:
            raise InvalidInputError(
                "payload=json makes the payload of all other columns, and there is a column payload"
            )
        if not packed:
            raise InvalidInputError("payload=json packs columns that are not fields of a job, and this frame has none")
        return
    if "payload" not in names:
        fix = f'pack {_listed(others)} with .option("payload", "json")' if others else 'add one, lit("") if it is empty'
        raise InvalidInputError(f"jobs need a payload, and there is no column payload: {fix}")
    if others:
        raise InvalidInputError(
            f"no field of a job is called {_listed(others)}. Drop or rename them, or put them into the payload: "
            f"payload=struct(...) becomes JSON. Fields are {_listed(list(FIELDS))}"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


# --- Values ---


def _texts(column: Any) -> Any:
    return _one(column) if _is_one(column) else column.to_pylist()


_numbers = _texts


def _moments(column: Any) -> Any:
    # Spark labels instants with the session's time zone; jobs keep only the instant.
    return _texts(column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()))


def _headers(column: Any) -> list[dict[str, str] | None]:
    return [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]


def _is_one(column: Any) -> bool:
    """Whether all rows have the same value, as with a literal: it is then stored once."""
    if not len(column) or column.null_count == len(column):
        return True
    return not column.null_count and bool(pc.all(pc.equal(column, column[0])).as_py())


def _one(column: Any) -> Any:
    return column[0].as_py() if len(column) else None


def _values(name: str, column: Any) -> list[Any]:
    """Values that have a JSON form. Instants are in UTC, whatever the session's time zone."""
    plain = _in_utc(column.type)
    if plain != column.type:
        column = column.cast(plain)
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError) as error:
        row = next(row for row, value in enumerate(column) if not _fits(value))
        raise InvalidInputError(
            f"row {row}: the column {name} holds a date or time outside of the years 1 to 9999: cast it to string"
        ) from error
    return [_unpaired(value, plain) for value in values] if _has_map(plain) else values


def _fits(value: Any) -> bool:
    try:
        value.as_py()
    except (OverflowError, ValueError):
        return False
    return True


def _in_utc(kind: Any) -> Any:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, tz="UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_in_utc(kind.key_type), kind.item_field.with_type(_in_utc(kind.item_type)))
    return kind


def _has_map(kind: Any) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(n).type) for n in range(kind.num_fields))


def _unpaired(value: Any, kind: Any) -> Any:
    """Convert maps, which come as lists of pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: _unpaired(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _unpaired(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_unpaired(item, kind.value_type) for item in value]
    return value


def _json_objects(names: Sequence[str], values: Sequence[Sequence[Any]], rows: int) -> list[bytes]:
    """One object per row. A generated struct type is the fastest way from columns to JSON; it takes no name that JSON
    would have to escape."""
    if all(_encoder.encode(name) == b'"%s"' % name.encode() for name in names):
        payloads = _lines(map(_row_type(tuple(names)), *values))
    else:
        payloads = _lines(dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))
    assert len(payloads) == rows
    return payloads


def _row_type(names: tuple[str, ...]) -> type[Any]:
    plain = [f"f{number}" for number in range(len(names))]
    return msgspec.defstruct("Row", plain, rename=dict(zip(plain, names, strict=True)), gc=False)


def _lines(values: Any) -> list[bytes]:
    """Each value as JSON. In JSON, line feeds occur only between the values."""
    try:
        lines = _encoder.encode_lines(list(values)).split(b"\n")
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise InvalidInputError(f"a value has no form in JSON ({error}): cast the column to one that has") from error
    lines.pop()
    return lines
