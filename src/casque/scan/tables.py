"""The columns of a queue's tables. They only ever gain columns, at the end.

Times are instants in UTC with milliseconds. Every table starts with the shard, which is 0 for a queue without shards;
positions are the shard's own, and numbers and tokens those of the ring. Written as Spark's DDL, because that is what
users paste; the Arrow schema is derived from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from casque.errors import InvalidInputError
from casque.fields import BY_NAME, in_table


class Table(StrEnum):
    """The tables of a queue."""

    JOBS = "jobs"
    EVENTS = "events"
    ARCHIVE = "archive"
    ATTEMPTS = "attempts"


_OTHERS = {
    "shard": "int", "position": "bigint", "hour": "timestamp", "finished_at": "timestamp", "payload_bytes": "bigint",
    "result": "binary",
    "index": "int", "at": "timestamp", "kind": "string", "job_id": "string", "delayed": "boolean",
    "request_id": "string", "verb": "string", "count": "bigint", "epoch": "bigint", "writer": "string",
    "batch": "bigint",
    "attempt": "int", "ended_at": "timestamp", "outcome": "string", "last": "boolean",
    "waiting": "boolean", "result_bytes": "bigint",
}  # fmt: skip
"""Columns that are no field of a job."""


def _columns(table: Table, first: str, last: str = "") -> dict[str, str]:
    """The columns that a table began with, in their order, then the fields of a job and others that it gained."""
    listed = {name: _OTHERS.get(name) or str(BY_NAME[name].sql) for name in first.split()}
    return listed | in_table(table) | {name: _OTHERS[name] for name in last.split()}


COLUMNS: dict[Table, dict[str, str]] = {
    Table.JOBS: _columns(
        Table.JOBS,
        "shard position id entrypoint zone state priority payload payload_bytes key headers run_at created_at due_at "
        "sequence token attempts max_attempts worker lease_ms claimed_at beat_at error",
    ),
    Table.EVENTS: _columns(
        Table.EVENTS,
        "shard position index at kind job_id entrypoint zone priority payload payload_bytes key headers run_at "
        "max_attempts sequence due_at delayed token lease_ms worker error result request_id verb count epoch writer "
        "batch",
    ),
    Table.ARCHIVE: _columns(
        Table.ARCHIVE,
        "shard position hour id entrypoint zone state priority attempts max_attempts created_at due_at claimed_at "
        "finished_at worker error result payload payload_bytes key headers run_at sequence token",
        last="waiting result_bytes",
    ),
    Table.ATTEMPTS: _columns(
        Table.ATTEMPTS,
        "shard position hour job_id entrypoint zone attempt token worker claimed_at ended_at outcome error last",
    ),
}
"""`hour` is the hour in which the job finished, as in the archive. `outcome` of an attempt is `failed`, `expired`, or
for the last one the job's final state: `done`, `dead` or `cancelled`."""


METADATA = {"_shard": "int", "_position": "bigint", "_object": "string"}
"""Columns of every table that are read only if they are named."""


def ddl(table: Table, *, metadata: bool = False) -> str:
    """In the form that `df.schema` and `CREATE TABLE` take."""
    columns = COLUMNS[table] | (METADATA if metadata else {})
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def check_columns(table: Table, columns: Iterable[str] | None) -> tuple[str, ...]:
    """The requested columns, or all.

    Raises:
        InvalidInputError: the table has no such column. Names the nearest.
    """
    known = COLUMNS[table]
    if columns is None:
        return tuple(known)
    known = known | METADATA
    asked = tuple(columns)
    for name in asked:
        if name not in known:
            near = get_close_matches(name.lower(), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise InvalidInputError(f"the table {table} has no column {name!r}: {hint}")
    return asked


def arrow_schema(table: Table, columns: Iterable[str] | None = None) -> Any:
    """The `pyarrow.Schema` of these columns, in the given order."""
    from casque import arrow_types  # needs pyarrow

    known = COLUMNS[table] | METADATA
    return arrow_types.arrow_schema({name: known[name] for name in check_columns(table, columns)})
