"""What commands write: messages, JSON, tables and progress, with everything made printable on its way out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from casque.printable import printable, printable_json, printable_lines

Columns = Sequence[tuple[str, Callable[[Any], str | Text]]]
"""A table's columns: a heading, and the cell for a row."""

CONTINUATION = "\n  "
"""Starts every line of a message but the first, so that none of them looks like a message of its own."""
WIDTH_MAX = 100_000
WRAPPED_MIN = 12
WRAPPED = frozenset({"payload", "error", "worker", "entrypoint"})
"""Columns that may wrap on a narrow terminal."""


class Terminal(Console):
    """A Rich console that is safe for foreign text. Markup is shown as text unless `markup=True`, control characters
    are escaped, and colours come from the command alone."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(_indent_rest(one) if isinstance(one, str) else one for one in objects), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)


class Out(Terminal):
    """Standard output. A closed pipe raises instead of ending the process, so that what is open is closed first."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError


# --- Messages and JSON ---


def say(text: str, *, err: bool = False) -> None:
    """Print one message."""
    typer.echo(printable_lines(_indent_rest(text)), err=err)


def warn(text: str) -> None:
    """Print a warning to standard error."""
    Terminal(stderr=True).print(text, style="yellow", highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one line of JSON, and flush it for programs that read along."""
    typer.echo(printable_json(msgspec.json.encode(value)))


def answer(value: Any, text: str | Callable[[], object], *, json: bool) -> None:
    """Print the result of a command: the value as JSON for programs, or for people a text or what a function prints."""
    if json:
        print_json(value)
    elif isinstance(text, str):
        say(text)
    else:
        text()


def _indent_rest(text: str) -> str:
    return text.replace("\n", CONTINUATION) if "\n" in text else text


# --- Tables ---


def print_rows(columns: Columns, rows: Sequence[Any], *, json: bool, empty: str, limit: int | None = None) -> None:
    """Print a list: one line of JSON for each row, or a table, or what to say if there are none. Rows beyond the limit
    only show that there are more."""
    shown = rows[:limit]
    if json:
        for row in shown:
            print_json(row)
    elif shown:
        print_table(columns, shown)
    else:
        say(empty, err=True)
    if limit is not None and len(rows) > limit:
        say(f"there are more than {limit:,}: --limit shows more of them", err=True)


def print_table(columns: Columns, rows: Iterable[Any]) -> None:
    """Print a table without its empty columns. Ids are never truncated; in a pipe nothing is."""
    filled = [[cell(row) for _, cell in columns] for row in rows]
    wanted = [at for at in range(len(columns)) if any(str(row[at]) for row in filled)]
    console = Out(highlight=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for at in wanted:
        name = columns[at][0]
        wraps = name in WRAPPED
        table.add_column(name, no_wrap=not wraps, overflow="fold", min_width=WRAPPED_MIN if wraps else None)
    for row in filled:
        table.add_row(*(_cell(columns[at][0], row[at], is_first=at == wanted[0]) for at in wanted))
    needed = console.measure(table, options=console.options.update(max_width=WIDTH_MAX))
    console.width = max(console.width, needed.minimum if console.is_terminal else needed.maximum)
    console.print(table)


def _cell(name: str, value: str | Text, *, is_first: bool) -> Text:
    """As Text, so that markup in a payload or an error is shown as it is. A traceback keeps its lines: below other
    columns they cannot be mistaken for rows."""
    if isinstance(value, Text):
        return value
    return Text(printable_lines(value) if name in WRAPPED and not is_first else printable(value))


def print_facts(facts: Mapping[str, str | Text]) -> None:
    """Print names and values in two columns, without the empty ones."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        if value:
            table.add_row(Text(name, "bold"), value if isinstance(value, Text) else Text(printable(value)))
    Out(highlight=False).print(table, soft_wrap=True)


# --- Progress ---


@contextmanager
def progress(
    total: int | None, description: str, *, wanted: bool = True, counted: bool = False
) -> Iterator[tuple[Progress, TaskID]]:
    """A bar on standard error, for people at a terminal. `counted` adds "3/7"."""
    console = Terminal(stderr=True)
    width = 20 if counted else 16
    columns = (
        TextColumn(f"{{task.description:<{width}}}"),
        BarColumn(),
        *([MofNCompleteColumn()] if counted else []),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not wanted or not console.is_terminal) as bar:
        yield bar, bar.add_task(description, total=total)


@contextmanager
def counted_steps(*, wanted: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for work that reports what it does, and how many of how many steps are done."""
    with progress(None, "starting", wanted=wanted, counted=True) as (bar, task):
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


@contextmanager
def spinner(description: str, *, wanted: bool = True) -> Iterator[Callable[[str], None]]:
    """A spinner on standard error, for people at a terminal. The description can be changed."""
    console = Terminal(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description:<28}"), TimeElapsedColumn())
    shown = wanted and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown, refresh_per_second=4) as bar:
        task = bar.add_task(description)
        yield lambda text: bar.update(task, description=text)
