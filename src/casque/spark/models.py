"""The tables of a warehouse: each is a SQL file, whose head says what a row is and what every column means.

A model describes its table from the whole history. A run computes only the hours that changed: it gives the same SQL
fewer files to read, and keeps the rows of those hours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import msgspec

from casque.errors import InvalidInputError

ORDER = (
    "bronze/events",
    "bronze/gaps",
    "silver/jobs",
    "silver/attempts",
    "silver/queue",
    "gold/minutes",
    "gold/hours",
    "gold/dead_letters",
    "gold/depth",
    "gold/workers",
    "gold/fairness",
    "gold/requests",
    "quality/rules",
    "quality/rows",
)
"""Every table after those that it reads."""
_COLUMN = re.compile(r"(\w+) ([a-z]+(?:[(<].*?[)>])?): (.+)")

_RULE = re.compile(r"expect (\w+): (.+)")


class Column(NamedTuple):
    """The type of a column in Spark, and its meaning."""

    type: str
    meaning: str


class Model(msgspec.Struct, frozen=True):
    """A table and the query that makes it."""

    name: str
    """`gold/minutes`: its folder in the warehouse."""
    rows: str
    """What a row is."""
    unique: tuple[str, ...]
    time: str
    """The column whose hours are replaced."""
    columns: Mapping[str, Column]
    rules: Mapping[str, str]
    """Conditions that hold for every row, by name."""
    sql: str

    @property
    def view(self) -> str:
        """Its name in the SQL of other models."""
        return self.name.replace("/", "_")

    @property
    def types(self) -> dict[str, str]:
        return {name: column.type for name, column in self.columns.items()}

    @property
    def query(self) -> str:
        """The documented columns, in their order and types."""
        columns = ", ".join(f"CAST(`{name}` AS {column.type}) AS `{name}`" for name, column in self.columns.items())
        return f"SELECT {columns} FROM ({self.sql})"


def ddl(columns: Mapping[str, str]) -> str:
    """Columns as Spark's DDL.

    >>> ddl({"id": "string", "n": "int"})
    '`id` string, `n` int'
    """
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


@cache
def models() -> Mapping[str, Model]:
    """All tables by name, each after those that it reads."""
    return {name: parse(text(name.replace("/", "_")), f"sql/{name}") for name in ORDER}


def own_models(folder: Path) -> dict[str, Model]:
    """The models of a user: the SQL files of a folder, each after those that it reads.

    Raises:
        InvalidInputError: there is none, one does not describe its table or has a name that is taken, or they read each
            other in a circle.
    """
    found: dict[str, Model] = {}
    for path in sorted(folder.glob("*.sql")):
        model = parse(path.read_text("utf-8"), path.name)
        if model.view in {one.view for one in (*models().values(), *found.values())}:
            raise InvalidInputError(f"{path}: there is a table {model.name} already; call it something else")
        if model.columns.get("date", Column("", "")).type != "date":
            raise InvalidInputError(f"{path}: a table needs a column `date` of type date: whole dates are replaced")
        found[model.name] = model
    if not found:
        raise InvalidInputError(f"there are no .sql files in {folder}")
    return _in_order(found)


def _in_order(found: dict[str, Model]) -> dict[str, Model]:
    ordered: dict[str, Model] = {}
    while left := {name: model for name, model in found.items() if name not in ordered}:
        views = {model.view for model in left.values()}
        ready = {n: m for n, m in left.items() if not (views - {m.view}) & set(re.findall(r"\w+", m.sql))}
        if not ready:
            raise InvalidInputError(f"these models read each other in a circle: {', '.join(sorted(left))}")
        ordered |= ready
    return ordered


def text(name: str) -> str:
    """A SQL file of this package."""
    return files("casque.spark").joinpath(f"sql/{name}.sql").read_text("utf-8")


def parse(text_: str, file: str) -> Model:
    """A SQL file as a model.

    >>> head = "-- mine/days: one day\\n-- unique: date\\n-- time: date\\n-- date date: the day\\n"
    >>> parse(head + "SELECT current_date() AS date", "days.sql").name
    'mine/days'

    Raises:
        InvalidInputError: the head does not describe a table.
    """
    lines = text_.splitlines()
    head = [line.removeprefix("-- ") for line in lines if line.startswith("-- ")]
    body = "\n".join(line for line in lines if not line.startswith("-- "))
    try:
        if len(head) < 4:
            raise ValueError("it should begin with comments: the table and its rows, unique, time, and each column")
        title, unique, time = head[:3]
        name, _, rows = title.partition(": ")
        if not re.fullmatch(r"[a-z][a-z0-9_]*/[a-z][a-z0-9_]*", name) or not rows:
            raise ValueError(f"{title!r} should be the table and what a row is, such as 'mine/days: one day'")
        columns, rules = {}, {}
        for line in head[3:]:
            if rule := _RULE.fullmatch(line):
                rules[rule[1]] = rule[2]
                continue
            match = _COLUMN.fullmatch(line)
            if match is None:
                raise ValueError(f"{line!r} is no column")
            columns[match[1]] = Column(match[2], match[3])
        return Model(
            name,
            rows,
            tuple(_after(unique, "unique: ").split(", ")),
            _after(time, "time: "),
            columns,
            rules,
            body,
        )
    except ValueError as error:
        raise InvalidInputError(f"{file} does not say what its table is: {error}") from error


def _after(line: str, start: str) -> str:
    if not line.startswith(start):
        raise ValueError(f"{line!r} should begin with {start!r}")
    return line.removeprefix(start)
