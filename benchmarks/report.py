"""Tables and targets as sections make them, and how they are shown."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as RichTable

Cell: TypeAlias = str | float | int


@dataclass
class Table:
    """Rows of one comparison. Numbers stay numbers until they are shown, so JSON keeps them whole."""

    title: str
    columns: Sequence[str]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: Cell) -> None:
        self.rows.append(list(cells))


@dataclass(frozen=True)
class Target:
    """A figure that casque is meant to reach."""

    name: str
    wanted: str
    measured: str
    met: bool


@dataclass
class Section:
    """What one module found out."""

    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)

    def aim_for(self, name: str, measured: float, *, at_least: float, unit: str = "") -> None:
        met = measured >= at_least
        self.targets.append(Target(name, f"≥ {show(at_least)}{unit}", f"{show(measured)}{unit}", met))

    def keep_below(self, name: str, measured: float, *, at_most: float, unit: str = "") -> None:
        met = measured <= at_most
        self.targets.append(Target(name, f"≤ {show(at_most)}{unit}", f"{show(measured)}{unit}", met))


class Steps:
    """The progress bar, as far as a section needs to know it."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._name = name
        self._task = progress.add_task(name, total=None)
        self._total = 0

    def expect(self, steps: int) -> None:
        """So many more are to come."""
        self._total += steps
        self._progress.update(self._task, total=self._total)

    def done(self, what: str) -> None:
        self._progress.update(self._task, advance=1, description=f"{self._name}: {what}")

    def finish(self) -> None:
        self._progress.update(self._task, total=self._total, completed=self._total, description=self._name)


def print_section(console: Console, section: Section) -> None:
    for table in section.tables:
        _print(console, table)


def print_targets(console: Console, sections: dict[str, Section]) -> None:
    table = Table("Targets", ["section", "what", "wanted", "measured", ""])
    for name, section in sections.items():
        for target in section.targets:
            table.add(name, target.name, target.wanted, target.measured, "met" if target.met else "MISSED")
    if table.rows:
        _print(console, table)


def _print(console: Console, table: Table) -> None:
    # Markdown, so that what was printed can go into the README as it is.
    shown = RichTable(box=box.MARKDOWN, show_edge=True)
    for index, column in enumerate(table.columns):
        numbers = any(not isinstance(row[index], str) for row in table.rows)
        shown.add_column(column, justify="right" if numbers else "left", no_wrap=True)
    for row in table.rows:
        shown.add_row(*(cell if isinstance(cell, str) else show(cell) for cell in row))
    console.print(f"\n### {table.title}", style="bold", highlight=False)
    console.print(shown)
    for note in table.notes:
        console.print(note, highlight=False, soft_wrap=True)


def show(value: float) -> str:
    """Three digits that matter; whole numbers with separators."""
    if isinstance(value, int) or abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """Lowest to highest: how far the median can be trusted."""
    return f"{show(min(values))} to {show(max(values))}"


def interleaved(count: int, *sides: str) -> Iterator[str]:
    """A B A B, so that a busy minute of the machine meets all sides."""
    for _ in range(count):
        yield from sides
