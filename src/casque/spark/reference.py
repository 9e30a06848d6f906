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
    "shard": "Of a ring, which of its shards it is of; 0 of a queue without shards.",
    "position": "The commit. Times order nothing, positions do, within a shard.",
    "job_id": "The job's.",
    "payload_bytes": "Its size, wherever it lies.",
    "result": "What its worker said when it was done.",
    "index": "Its place in the commit, from 0. Unique together with shard and position.",
    "at": "The time of the commit, by the clock of whoever made it.",
    "kind": "What happened: `added`, `claimed`, `acked`, ...",
    "delayed": "Whether it has to wait until `due_at`.",
    "request_id": "Of `remembered`: the id of the call.",
    "verb": "Of `remembered`: what was asked.",
    "count": "How many jobs: that a batch added (`admitted`), or that a call was about (`remembered`).",
    "epoch": "The leadership under which the commit was made.",
    "writer": "Who made the commit.",
    "batch": "The number of the commit among those of its writer.",
    "hour": "The hour of the archive: that in which the job finished.",
    "finished_at": "When it was over.",
    "attempt": "Its number, from 1. A dead job that is given fresh attempts begins again with 1.",
    "ended_at": "When the attempt was over.",
    "outcome": "`failed`, `expired`, or of the last one what became of the job: `done`, `dead`, `cancelled`.",
    "last": "Whether the job ended with it.",
    "waiting": "Whether no worker had it when it ended, so that no attempt ended it.",
    "result_bytes": "The size of its result; null for none.",
}
OTHERWISE = {
    (Table.JOBS, "position"): "The commit as of which this is; the same in every row of a shard.",
    (Table.EVENTS, "job_id"): "The job it happened to; null for what is about a request.",
    (Table.EVENTS, "worker"): "Who claimed it.",
    (Table.EVENTS, "token"): "Of the lease.",
    (Table.EVENTS, "error"): "Why the attempt failed.",
    (Table.ARCHIVE, "position"): "The commit that finished it. Unique together with shard and id.",
    (Table.ARCHIVE, "state"): "`done`, `dead` or `cancelled`.",
    (Table.ARCHIVE, "worker"): "Who had it last.",
    (Table.ATTEMPTS, "position"): "The commit that finished the job.",
    (Table.ATTEMPTS, "token"): "Of its lease. Unique within a queue, and so names the attempt.",
    (Table.ATTEMPTS, "worker"): "Who made it.",
    (Table.ATTEMPTS, "claimed_at"): "When it began.",
    (Table.ATTEMPTS, "error"): "Why it failed.",
}
ABOUT = {
    Table.JOBS: "Jobs that are not over, and the dead ones: one row each, as of one commit.",
    Table.EVENTS: "The change feed: one row for each thing that happened. What an event does not have is null.",
    Table.ARCHIVE: "Finished jobs: one row for each time that a job was over.",
    Table.ATTEMPTS: "The attempts of finished jobs: one row each, those that came to nothing included.",
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
