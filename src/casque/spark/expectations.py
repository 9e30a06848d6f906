"""What must hold for the rows of a table: the rules in the head of its SQL file (`-- expect NAME: CONDITION`).

A run counts the rows that break a rule while Spark writes them, so that no query is added. `check` asks whole tables,
and then also for rows that are there twice and for jobs that went missing between tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from casque.spark.models import Model, models, text
from casque.spark.session import activate, own_session
from casque.spark.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNIQUE = "unique"
_ROWS = "*"

Progress = Callable[[str, int, int], None]
"""Called with the title of a step, its number and the total."""


class Expect(StrEnum):
    """What a run does about rows that break a rule of their table."""

    WARN = "warn"
    """Report them."""
    FAIL = "fail"
    """Stop before the table takes them."""
    QUARANTINE = "quarantine"
    """Leave them out of the table, and keep them in `quality/rows`."""
    OFF = "off"


class Found(msgspec.Struct, frozen=True):
    """How many of the rows of a table break a rule."""

    table: str
    rule: str
    rows: int
    broken: int

    def __str__(self) -> str:
        return f"{self.table}: {self.broken:,} of {self.rows:,} rows break the rule {self.rule!r}"


def breaks(model: Model, *rules: str) -> str:
    """Which rows break any of these rules, or of all. A condition that is null does not hold."""
    return " OR ".join(f"NOT coalesce(({model.rules[rule]}), false)" for rule in rules or model.rules)


def watched(df: DataFrame, model: Model | None) -> tuple[DataFrame, Callable[[], list[Found]]]:
    """A frame of a table's rows; and what was found in it, once it has been written."""
    if model is None or not model.rules:
        return df, list
    from pyspark.sql import Observation, functions

    seen = Observation()
    counts = [functions.expr(count).alias(name) for name, count in _counts(model).items()]
    return df.observe(seen, *counts), lambda: _found(model, model.rules, seen.get)


def check(
    spark: SparkSession, warehouse: Warehouse, own: Sequence[Model] = (), progress: Progress | None = None
) -> list[Found]:
    """Ask whole tables, ours and those of `own`, as the last run left them.

    Raises:
        InvalidInputError: the warehouse has no tables yet.
    """
    snapshot = warehouse.snapshot()
    every = [model for model in (*models().values(), *own) if model.name in snapshot.root.tables]
    found: list[Found] = []
    session = own_session(spark)
    try:
        for number, model in enumerate(every):
            if progress is not None:
                progress(model.name, number, len(every) + 1)
            snapshot.read(session, model.name).createOrReplaceTempView(model.view)
            sums = {name: f"sum(`{name}`)" for name in (_ROWS, *model.rules)} | {UNIQUE: f"sum(`{_ROWS}` - 1)"}
            [row] = session.sql(
                f"SELECT {_named({name: f'coalesce({total}, 0L)' for name, total in sums.items()})} FROM "
                f"(SELECT {_named(_counts(model))} FROM {model.view} GROUP BY {', '.join(model.unique)})"
            ).collect()
            found += _found(model, (UNIQUE, *model.rules), row.asDict())
        if progress is not None:
            progress("jobs of all tables", len(every), len(every) + 1)
        rows = session.sql(text("conservation")).collect()
        return found + [Found(row["table"], row["rule"], row["rows"], row["broken"]) for row in rows]
    finally:
        activate(spark)


def _counts(model: Model) -> dict[str, str]:
    return {_ROWS: "count(*)"} | {rule: f"count_if({breaks(model, rule)})" for rule in model.rules}


def _named(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{column} AS `{name}`" for name, column in columns.items())


def _found(model: Model, rules: Iterable[str], counts: Mapping[str, int]) -> list[Found]:
    return [Found(model.name, rule, counts[_ROWS], counts[rule]) for rule in rules]
