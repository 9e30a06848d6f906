"""A second opinion on the tables of a warehouse: DuckDB's, from the archive's lines and the change feed.

Written from what the columns mean, not from how the pipeline computes them. Wherever it can it follows the feed, which
has every claim: the archive, which the pipeline reads, has only what a finished job remembers. Times are milliseconds
and dates are days since 1970, so no time zone is involved.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isclose
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from casque.scan import Scan, Table
from casque.spark.models import models
from casque.spark.warehouse import Snapshot

STEPS = ("functions", "archive", "story", "attempts", "lives", "spans", "silver_jobs", "facts", "figures")
TABLES = tuple(name for name in models() if not name.startswith("quality/"))
"""Tables of the history. The others tell of runs."""
LINE = (
    "id entrypoint payload result state zone key error created_at run_at finished_at VARCHAR, "
    "attempts crashes priority max_attempts max_crashes position sequence blob_bytes expires_ms BIGINT, fifo BOOLEAN, "
    "tags VARCHAR[]"
)

EXACT = 400
"""A sketch of up to this many values has all of them."""
RANK_ERROR = 0.01

Row = dict[str, Any]


class Oracle:
    """What the tables of a queue's history should be. The queue is on local files and keeps its whole log."""

    def __init__(self, url: str) -> None:
        self.base = duckdb.connect()
        with Scan(url) as scan:
            feed = scan.table(list(scan.plan_events()), Table.EVENTS)
            # `at` is a word of DuckDB's SQL.
            self._register("feed", feed.rename_columns({"at": "at_ms"}))
            self._register("held", scan.table(list(scan.plan_jobs()), Table.JOBS).drop_columns(["tries", "headers"]))
        self.base.execute("CREATE TABLE run AS SELECT max(at_ms) AS as_of FROM feed")
        columns = {name: kind for part in LINE.split(", ") for *names, kind in [part.split()] for name in names}
        self.base.execute(
            f"CREATE VIEW lines AS FROM read_json('{url.removeprefix('file://')}/**/*.jsonl', columns = {columns}, "
            "format = 'newline_delimited', filename = true)"
        )
        for name in (*STEPS, *(models()[table].view for table in TABLES)):
            text = (Path(__file__).parent / f"{name}.sql").read_text("utf-8")
            made = text.startswith("CREATE")
            self.base.execute(text if made else f"CREATE TABLE IF NOT EXISTS {name} AS {text}")

    def rows(self, table: str) -> list[Row]:
        found: list[Row] = self.base.sql(f"FROM {models()[table].view}").to_arrow_table().to_pylist()
        return found

    def differences(self, snapshot: Snapshot) -> list[str]:
        """Where a warehouse has other rows or other values."""
        return [one for table in TABLES for one in self._compared(table, snapshot.arrow(table).to_pylist())]

    def _compared(self, table: str, found: list[Row]) -> Iterator[str]:
        model = models()[table]
        made = {_key(row, model.unique): {name: plain(value) for name, value in row.items()} for row in found}
        right = {_key(row, model.unique): row for row in self.rows(table)}
        if len(made) != len(found):
            yield f"{table}: {len(found) - len(made)} rows twice"
        yield from (f"{table}: no row {key}" for key in sorted(right.keys() - made.keys()))
        yield from (f"{table}: a row too many {key}" for key in sorted(made.keys() - right.keys()))
        for key in made.keys() & right.keys():
            for name in model.columns:
                if not name.endswith("_sketch") and not _same(name, made[key][name], right[key]):
                    yield f"{table}.{name} of {key}: {made[key][name]!r}, not {right[key][name]!r}"

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        return list(self.base.execute(query).fetchall())

    def _register(self, name: str, table: pa.Table) -> None:
        for place, field in enumerate(table.schema):
            if pa.types.is_timestamp(field.type):
                table = table.set_column(place, field.name, table[place].cast(pa.timestamp("ms", "UTC")).cast("int64"))
        self.base.register("arrow", table)
        self.base.execute(f"CREATE TABLE {name} AS FROM arrow")


def _key(row: Row, unique: Sequence[str]) -> str:
    return repr(tuple(plain(row[name]) for name in unique))


def _same(name: str, made: Any, right: Row) -> bool:
    if isinstance(made, float):
        return right[name] is not None and isclose(made, right[name], rel_tol=1e-8)
    percentile = re.fullmatch(r"(wait|run)_p(\d\d)_ms", name)
    if percentile and made is not None and len(right[f"{percentile[1]}s"]) > EXACT:
        # A sketch of many values: how many are below, and how many are not above it.
        values, wanted = right[f"{percentile[1]}s"], int(percentile[2]) / 100
        below, upto = (side(values, made) / len(values) for side in (bisect_left, bisect_right))
        return below - RANK_ERROR <= wanted <= upto + RANK_ERROR
    return bool(made == right[name])


def plain(value: Any) -> Any:
    """A value as the oracle has it."""
    match value:
        case datetime():
            return round(value.replace(tzinfo=value.tzinfo or UTC).timestamp() * 1000)
        case date():
            return (value - date(1970, 1, 1)).days
        case Decimal():
            return float(value)
        case list():
            return [plain(one) for one in value]
        case dict():
            return {name: plain(one) for name, one in value.items()}
    return value
