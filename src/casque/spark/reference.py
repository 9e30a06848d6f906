"""`python -m casque.spark.reference`: the page docs/reference/spark.md, generated from the code that it describes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from enum import Enum
from typing import Any

from casque.fields import FIELDS
from casque.scan.tables import COLUMNS, Table
from casque.spark.options import STORE_PREFIX, about_options
from casque.spark.write_options import ABOUT as WRITING

MEANING = {
    **{field.name: field.meaning for field in FIELDS if field.tables},
    "shard": "Number of the shard in a ring; 0 in a queue without shards.",
    "position": "Number of the commit. Within a shard, order rows by it, not by times.",
    "job_id": "Id of the job.",
    "payload_bytes": "Size of the payload, also if it is stored as a separate object.",
    "result": "Result that the worker returned.",
    "index": "Index of the event in its commit, from 0. Unique together with shard and position.",
    "at": "Time of the commit, by the clock of its writer.",
    "kind": "What happened: `added`, `claimed`, `acked`, ...",
    "delayed": "Whether it has to wait until `due_at`.",
    "request_id": "Id of the call, for `remembered`.",
    "verb": "Verb of the call, for `remembered`.",
    "count": "Number of jobs that a batch added (`admitted`), or that a call named (`remembered`).",
    "epoch": "Epoch of the leader that made the commit.",
    "writer": "Id of the process that made the commit.",
    "batch": "Number of the commit, counted per writer.",
    "hour": "Hour of the archive in which the job finished.",
    "finished_at": "When the job finished.",
    "attempt": "Number of the attempt, from 1. It starts at 1 again when a dead job is retried.",
    "ended_at": "When the attempt ended.",
    "outcome": "`failed`, `expired` or `crashed`; for the last attempt the state: `done`, `dead`, `cancelled`.",
    "last": "Whether this attempt ended the job.",
    "waiting": "Whether the job ended while no worker held it, so without a last attempt.",
    "result_bytes": "Size of the result; null without one.",
}
OTHERWISE = {
    (Table.JOBS, "position"): "Commit that the row reflects; the same in every row of a shard.",
    (Table.EVENTS, "job_id"): "Job that the event is about; null for events about requests.",
    (Table.EVENTS, "worker"): "Worker that claimed the job.",
    (Table.EVENTS, "token"): "Token of the lease.",
    (Table.EVENTS, "error"): "Why the attempt failed.",
    (Table.ARCHIVE, "position"): "Commit that finished the job. Unique together with shard and id.",
    (Table.ARCHIVE, "state"): "`done`, `dead` or `cancelled`.",
    (Table.ARCHIVE, "worker"): "Worker that had the job last.",
    (Table.ATTEMPTS, "position"): "Commit that finished the job.",
    (Table.ATTEMPTS, "token"): "Token of the lease. Unique within a queue, so it identifies the attempt.",
    (Table.ATTEMPTS, "worker"): "Worker that made the attempt.",
    (Table.ATTEMPTS, "claimed_at"): "When the attempt began.",
    (Table.ATTEMPTS, "error"): "Why the attempt failed.",
}
ABOUT = {
    Table.JOBS: "Unfinished and dead jobs, one row each, as of one commit.",
    Table.EVENTS: "The change feed: one row per event. Columns that do not apply to an event are null.",
    Table.ARCHIVE: "Finished jobs: one row for each time that a job finished.",
    Table.ATTEMPTS: "The attempts of finished jobs, one row each, including failed and expired ones.",
}
HEAD = """\
# Spark: tables and options

Made from the code by `python -m casque.spark.reference`. How to use it:
[read](../how-to/read-with-spark.md), [stream](../how-to/stream-with-spark.md),
[enqueue](../how-to/enqueue-with-spark.md).

    spark.read.format("casque").option("table", "archive").load("s3://bucket/orders")
    spark.readStream.format("casque").option("table", "events").load("s3://bucket/orders")
    df.write.format("casque").option("entrypoint", "send").mode("append").save("s3://bucket/orders")

With the option `metadata`, or if a schema names them, tables also have `_shard` and `_position`, which are `shard`
and `position`, and `_object`, the key of the object that the row was read from; null in `jobs`, which come from many.
PySpark gives Python sources no hidden columns, limits, column pruning or metrics: name columns in a schema, and compute
the lag of a stream with `casque.spark.lag`.
"""


def page() -> str:
    parts = [HEAD, "\n## Options for reading\n", _options(), "\n## Options for writing\n", _writing()]
    for table in Table:
        rows = [(f"`{name}`", kind, _meaning(table, name)) for name, kind in COLUMNS[table].items()]
        parts += [f"\n## Table `{table}`\n\n{ABOUT[table]}\n", _listed(("column", "type", "meaning"), rows)]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def _options() -> str:
    rows = [
        (f"`{about['name']}`", about["takes"], _default(about["default"]), about["uses"], about["says"])
        for about in about_options()
    ]
    store = "An option of the store, as in [URLs and options](urls-and-options.md); the place for credentials."
    rows.append((f"`{STORE_PREFIX}NAME`", "text", "", "all", store))
    table = _listed(("option", "takes", "default", "for", "meaning"), rows)
    return f"""
Names may be written in any case. One that does not exist is refused. Times name their zone: `2026-02-15T10:00:00Z`.
Values of `{STORE_PREFIX}` options are never shown: not in a plan, not in an error.
{table}"""


def _writing() -> str:
    rows = [(f"`{name}`", about.takes, about.default, about.uses, about.says) for name, about in WRITING.items()]
    return _listed(("option", "takes", "default", "for", "meaning"), rows)


def _default(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, timedelta):
        return f"`{value.total_seconds() / 3600:g}h`"
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _meaning(table: Table, name: str) -> str:
    return OTHERWISE.get((table, name), MEANING[name])


def _listed(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
