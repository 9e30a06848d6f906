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


class Table(StrEnum):
    """The tables of a queue."""

    JOBS = "jobs"
    EVENTS = "events"
    ARCHIVE = "archive"
    ATTEMPTS = "attempts"


COLUMNS: dict[Table, dict[str, str]] = {
    Table.JOBS: {
        "shard": "int",
        "position": "bigint",
        "id": "string",
        "entrypoint": "string",
        "zone": "string",
        "state": "string",
        "priority": "int",
        "payload": "binary",
        "payload_bytes": "bigint",
        "key": "string",
        "headers": "map<string,string>",
        "run_at": "timestamp",
        "created_at": "timestamp",
        "due_at": "timestamp",
        "sequence": "bigint",
        "token": "bigint",
        "attempts": "int",
        "max_attempts": "int",
        "worker": "string",
        "lease_ms": "bigint",
        "claimed_at": "timestamp",
        "beat_at": "timestamp",
        "error": "string",
    },
    Table.EVENTS: {
        "shard": "int",
        "position": "bigint",
        "index": "int",
        "at": "timestamp",
        "kind": "string",
        "job_id": "string",
        "entrypoint": "string",
        "zone": "string",
        "priority": "int",
        "payload": "binary",
        "payload_bytes": "bigint",
        "key": "string",
        "headers": "map<string,string>",
        "run_at": "timestamp",
        "max_attempts": "int",
        "sequence": "bigint",
        "due_at": "timestamp",
        "delayed": "boolean",
        "token": "bigint",
        "lease_ms": "bigint",
        "worker": "string",
        "error": "string",
        "result": "binary",
        "request_id": "string",
        "verb": "string",
        "count": "bigint",
        "epoch": "bigint",
        "writer": "string",
        "batch": "bigint",
    },
    Table.ARCHIVE: {
        "shard": "int",
        "position": "bigint",
        "hour": "timestamp",
        "id": "string",
        "entrypoint": "string",
        "zone": "string",
        "state": "string",
        "priority": "int",
        "attempts": "int",
        "max_attempts": "int",
        "created_at": "timestamp",
        "due_at": "timestamp",
        "claimed_at": "timestamp",
        "finished_at": "timestamp",
        "worker": "string",
        "error": "string",
        "result": "binary",
        "payload": "binary",
        "payload_bytes": "bigint",
        "key": "string",
        "headers": "map<string,string>",
        "run_at": "timestamp",
        "sequence": "bigint",
        "token": "bigint",
    },
    Table.ATTEMPTS: {
        "shard": "int",
        "position": "bigint",
        "hour": "timestamp",
        "job_id": "string",
        "entrypoint": "string",
        "zone": "string",
        "attempt": "int",
        "token": "bigint",
        "worker": "string",
        "claimed_at": "timestamp",
        "ended_at": "timestamp",
        "outcome": "string",
        "error": "string",
        "last": "boolean",
    },
}
"""`hour` is the hour in which the job finished, as in the archive. `outcome` of an attempt is `failed`, `expired`, or
for the last one the job's final state: `done`, `dead` or `cancelled`."""


def ddl(table: Table) -> str:
    """In the form that `df.schema` and `CREATE TABLE` take."""
    return ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS[table].items())


def check_columns(table: Table, columns: Iterable[str] | None) -> tuple[str, ...]:
    """The requested columns, or all.

    Raises:
        InvalidInputError: the table has no such column. Names the nearest.
    """
    known = COLUMNS[table]
    if columns is None:
        return tuple(known)
    asked = tuple(columns)
    for name in asked:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise InvalidInputError(f"the table {table} has no column {name!r}: {hint}")
    return asked


def arrow_schema(table: Table, columns: Iterable[str] | None = None) -> Any:
    """The `pyarrow.Schema` of these columns, in the given order."""
    from casque.scan import arrow_types  # needs pyarrow

    return arrow_types.arrow_schema({name: COLUMNS[table][name] for name in check_columns(table, columns)})
