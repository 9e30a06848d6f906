"""The archive as Parquet: the same jobs as the lines of an object, as columns that other programs read directly.

Columns have the names and types of Spark's table `archive`, without `shard`, which an object does not know. Payloads
and results that are JSON are there as text, too. The rows follow from the log alone; the bytes also depend on the
release of pyarrow, so two writings of one object are compared by their rows.

Needs pyarrow, which is imported when it is first used: a queue that archives lines does without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import msgspec

from casque.codec.converter import converter
from casque.codec.head import UNREADABLE
from casque.errors import NotInstalledError
from casque.fields import ARCHIVE, GAINED, in_table
from casque.service import ArchivedAttempt, ArchivedJob
from casque.types import Ending, JobState, from_ms

COLUMNS = {
    "position": "bigint",
    "hour": "timestamp",
    "finished_at": "timestamp",
    **in_table(ARCHIVE),
    "waiting": "boolean",
    "result": "binary",
    "payload_bytes": "bigint",
    "result_bytes": "bigint",
    "payload_json": "string",
    "result_json": "string",
}
"""Types as in Spark. Files of other releases may lack some, or have others as well."""

JSON_BYTES_MAX = 1024 * 1024
"""Larger payloads and results are not tried as JSON."""
ROWS_MAX = 64 * 1024
"""Rows of a row group: an object has one."""
PIECE_JOBS = 250
"""Jobs that become columns at a time, so that commits get a turn in between."""
DECODED_ROWS = 1_000
"""Rows that become jobs at a time, for the same reason."""

_REPEATED = ("hour", "entrypoint", "zone", "state", "worker", "error", "headers.key_value.key", "tags.list.element")
"""Columns with few different values: a dictionary of them is stored once."""
_LISTS = tuple(field.name for field in GAINED if isinstance(field.default, tuple))
_UNMEASURED = ("payload", "result", "payload_json", "result_json")
_NEVER_NULL = tuple(field.name for field in msgspec.structs.fields(ArchivedJob) if field.default is msgspec.NODEFAULT)
_NOT_COLUMNS = {"payload": ("payload", "payload_bytes"), "blob_bytes": ("payload", "payload_bytes")}

_any_json = msgspec.json.Decoder()


def is_installed() -> bool:
    return find_spec("pyarrow") is not None


def require(what: str) -> None:
    """Import pyarrow: at opening and not within a commit loop, where it would take its time.

    Raises:
        NotInstalledError: it is not there.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise NotInstalledError(f"{what}, and pyarrow is not installed", 'pip install "casque[parquet]"') from error


# --- Writing ---


def batch_of(hour: str, jobs: Sequence[ArchivedJob]) -> Any:
    """These jobs as a `pyarrow.RecordBatch`.

    Raises:
        ValueError, OverflowError: a value does not fit into its column.
    """
    import pyarrow as pa

    schema = _schema()
    columns = _columns(hour, jobs)
    return pa.RecordBatch.from_arrays([_array(columns[field.name], field.type) for field in schema], schema=schema)


def file_of(batches: Sequence[Any]) -> bytes:
    """An object of these batches. Takes its time, and does without the interpreter's lock for most of it."""
    import pyarrow as pa

    return write_table(pa.Table.from_batches(batches, _schema()))


def write_table(table: Any) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=ROWS_MAX,
        version="2.6",
        compression="zstd",
        compression_level=1,
        use_dictionary=[*_REPEATED],
        write_statistics=[name for name in table.schema.names if name not in _UNMEASURED],
        write_page_checksum=True,
        store_schema=False,
    )
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _columns(hour: str, jobs: Sequence[ArchivedJob]) -> dict[str, list[Any]]:
    plain = [name for name in ArchivedJob.__struct_fields__ if name in COLUMNS]
    columns: dict[str, list[Any]] = {name: [getattr(job, name) for job in jobs] for name in plain}
    columns["hour"] = [datetime.fromisoformat(f"{hour}:00:00").replace(tzinfo=UTC)] * len(jobs)
    columns["state"] = [job.state.value for job in jobs]
    # A large payload was beside the queue, and was deleted with its job: null is different from empty.
    columns["payload"] = [job.payload if job.blob_bytes is None else None for job in jobs]
    columns["payload_bytes"] = [len(job.payload) if job.blob_bytes is None else job.blob_bytes for job in jobs]
    columns["payload_json"] = [None if one is None else _json_text(one) for one in columns["payload"]]
    columns["result_bytes"] = [None if job.result is None else len(job.result) for job in jobs]
    columns["result_json"] = [None if job.result is None else _json_text(job.result) for job in jobs]
    columns["headers"] = [None if job.headers is None else list(job.headers.items()) for job in jobs]
    columns |= {name: [getattr(job, name) or None for job in jobs] for name in _LISTS}
    columns["tries"] = [[_tried(one) for one in job.tries] or None for job in jobs]
    return columns


def _array(values: list[Any], kind: Any) -> Any:
    import pyarrow as pa

    if values and values[0] is None and values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    return pa.array(values, kind)


def _tried(one: ArchivedAttempt) -> dict[str, Any]:
    return {
        "claimed_at": one.claimed_at,
        "ended_at": one.ended_at,
        "outcome": one.how.value,
        "worker": one.worker,
        "token": one.token,
        "error": one.error,
    }


def _json_text(data: bytes) -> str | None:
    """The same bytes as text, if they are JSON."""
    if not 0 < len(data) <= JSON_BYTES_MAX:
        return None
    try:
        _any_json.decode(data)
        return data.decode()
    except (*UNREADABLE, ValueError):
        return None


@lru_cache(maxsize=1)
def _schema() -> Any:
    from casque.arrow_types import arrow_schema

    return arrow_schema(COLUMNS)


# --- Reading ---


def unfit() -> tuple[type[Exception], ...]:
    """Errors of reading bytes that are no such object."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, OverflowError, KeyError, TypeError)


def read_columns(body: bytes, columns: Iterable[str]) -> dict[str, Any]:
    """Arrays of these columns, in the types of `COLUMNS`; null in all rows if an older file lacks one.

    Raises:
        one of `unfit()`: it is no archive object.
    """
    import pyarrow as pa

    table, asked = _table(body, columns), list(columns)
    found: dict[str, Any] = {}
    for name in asked:
        kind = _schema().field(name).type
        if name in table.schema.names:
            one = table[name].combine_chunks()
            array = pa.concat_arrays(one.chunks) if isinstance(one, pa.ChunkedArray) else one
            found[name] = array if array.type == kind else array.cast(kind)
        elif name in _NEVER_NULL:
            raise KeyError(name)
        else:
            found[name] = pa.nulls(table.num_rows, kind)
    return found


def read_whole(body: bytes) -> Any:
    """All columns as a `pyarrow.Table`, also those of other releases. Raises as above."""
    return _file(body).read(use_threads=False)


def row_count(body: bytes) -> int:
    """Raises as above."""
    return int(_file(body).metadata.num_rows)


def _file(body: bytes) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.ParquetFile(pa.BufferReader(body), page_checksum_verification=True, pre_buffer=False)


def _table(body: bytes, columns: Iterable[str]) -> Any:
    file = _file(body)
    there = set(file.schema_arrow.names)
    return file.read(columns=[name for name in columns if name in there], use_threads=False)


def jobs_of(body: bytes) -> Iterator[list[ArchivedJob]]:
    """The jobs of an object, some at a time. Raises as above."""
    arrays = read_columns(body, _needed(ArchivedJob.__struct_fields__))
    rows = len(arrays["id"])
    for name in _NEVER_NULL:
        if name != "payload" and arrays[name].null_count:
            raise ValueError(f"{name} is missing in some rows")
    for start in range(0, rows, DECODED_ROWS):
        some = {name: array.slice(start, DECODED_ROWS) for name, array in arrays.items()}
        columns = [_values(name, some) for name in ArchivedJob.__struct_fields__]
        yield [_to_archived(*row) for row in zip(*columns, strict=True)]


def rows_of(body: bytes, fields: Collection[str]) -> list[Any]:
    """All jobs with these fields of `ArchivedJob` alone; states are text. Raises as above."""
    arrays = read_columns(body, _needed(fields))
    names = tuple(name for name in ArchivedJob.__struct_fields__ if name in fields)
    columns = [_values(name, arrays) for name in names]
    return list(map(_row(names), *columns))


def _needed(fields: Collection[str]) -> list[str]:
    return list(dict.fromkeys(column for name in fields for column in _NOT_COLUMNS.get(name, (name,))))


@lru_cache(maxsize=64)
def _row(names: tuple[str, ...]) -> type[msgspec.Struct]:
    return msgspec.defstruct("Row", [(name, Any) for name in names], gc=False)


class _Moments(dict[int | None, datetime | None]):
    def __missing__(self, ms: int | None) -> datetime | None:
        moment = self[ms] = None if ms is None else from_ms(ms)
        return moment


def _values(name: str, arrays: dict[str, Any]) -> list[Any]:
    """The values of a field of `ArchivedJob`."""
    import pyarrow as pa

    if name == "blob_bytes":
        sizes = _plain(arrays["payload_bytes"])
        return [size if lost else None for lost, size in zip(_plain(arrays["payload"].is_null()), sizes, strict=True)]
    array = arrays[name]
    if pa.types.is_timestamp(array.type):
        moments = _Moments()
        return [moments[ms] for ms in _plain(array.cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()))]
    if array.null_count == len(array):
        return [_ABSENT[name]] * len(array)
    values = _plain(array)
    match name:
        case "headers":
            return [None if one is None else dict(one) for one in values]
        case "tries":
            return [() if one is None else tuple([_attempt(tried) for tried in one]) for one in values]
        case _ if name in _LISTS:
            return [() if one is None else tuple(one) for one in values]
        case _ if _ABSENT[name] is not None and array.null_count:
            return [_ABSENT[name] if one is None else one for one in values]
        case _:
            return values


def _plain(array: Any) -> list[Any]:
    """Python values, by way of NumPy where that has the same ones."""
    import pyarrow as pa

    is_text = pa.types.is_string(array.type) or pa.types.is_binary(array.type)
    is_number = pa.types.is_integer(array.type) or pa.types.is_boolean(array.type)
    if is_text or (is_number and not array.null_count):
        return list(array.to_numpy(zero_copy_only=False).tolist())
    return list(array.to_pylist())


_ABSENT: dict[str, Any] = {
    field.name: b"" if field.name == "payload" else None if field.default is msgspec.NODEFAULT else field.default
    for field in msgspec.structs.fields(ArchivedJob)
}
"""What a null stands for."""


def _attempt(row: dict[str, Any]) -> ArchivedAttempt:
    ended_at, claimed_at = row["ended_at"].replace(tzinfo=UTC), row["claimed_at"]
    claimed_at = None if claimed_at is None else claimed_at.replace(tzinfo=UTC)  # Arrow has a UTC of its own
    return ArchivedAttempt(ended_at, Ending(row["outcome"]), claimed_at, row["worker"], row["token"], row["error"])


_to_archived = converter(
    ArchivedJob,
    ", ".join(ArchivedJob.__struct_fields__),
    {name: name for name in ArchivedJob.__struct_fields__} | {"state": "states[state]"},
    states={state.value: state for state in JobState},
)
