"""Draws a picture of a queue, on a terminal of any size or as plain lines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from casque.cli.formats import clock_time, duration
from casque.cli.queue.gates import describe_gates
from casque.cli.top.board import Picture
from casque.printable import printable

WIDE = 120
"""From this width on, tables stand side by side."""
BARS = " ▁▂▃▄▅▆▇█"
STATES = {
    "ready": "green", "delayed": "yellow", "running": "cyan", "dead": "bold red",
    "done": "", "cancelled": "dim", "purged": "dim",
}  # fmt: skip
HEADING_LINES = 7
SCHEDULES_SHOWN = 5
ROWS_SHOWN = 20
COMMITS_SHOWN = 10
"""Where there is room for all: jobs that run, and commits, are many."""
NAME_MIN = 12
ROWS_MIN = 2


def draw(picture: Picture, depths: Sequence[int] = (), *, width: int, height: int | None = None) -> RenderableType:
    """Draw all of it, or what fits into this height. `depths` is how many jobs were ready at earlier looks."""
    heading = _heading(picture, depths, width)
    tables = (_entrypoints, _workers, _running, _commits)
    running, commits = len(picture.running), len(picture.commits)
    if height is None:
        running, commits = min(running, ROWS_SHOWN), min(commits, COMMITS_SHOWN)
    wants = (len(picture.entrypoints), len(picture.workers), running, commits)
    if width >= WIDE:
        rows = _shares(height, [max(wants[:2]), max(wants[2:])])
        shown = [table(picture, rows[at // 2]) for at, table in enumerate(tables)]
        grid = Table.grid(padding=(0, 3), expand=True)
        grid.add_column(ratio=3)
        grid.add_column(ratio=2)
        grid.add_row(shown[0], shown[1])
        grid.add_row("", "")
        grid.add_row(shown[2], shown[3])
        return Group(heading, Text(), grid)
    rows = _shares(height, list(wants))
    parts: list[RenderableType] = [heading]
    for table, most in zip(tables, rows, strict=True):
        parts += [Text(), table(picture, most)]
    return Group(*parts)


def _shares(height: int | None, wants: list[int]) -> list[int]:
    """Split the rows evenly between tables; rows that one does not need go to the others."""
    if height is None:
        return wants
    left = max(height - HEADING_LINES - 3 * len(wants), ROWS_MIN * len(wants))
    shares = [0] * len(wants)
    for done, at in enumerate(sorted(range(len(wants)), key=wants.__getitem__)):
        shares[at] = min(wants[at], left // (len(wants) - done))
        left -= shares[at]
    return shares


def _heading(picture: Picture, depths: Sequence[int], width: int) -> RenderableType:
    leader = picture.leader or ("" if picture.layout is None else "none (embedded writers)")
    title = Text(printable(picture.url), "bold", no_wrap=True, overflow="ellipsis")
    facts = Text(no_wrap=True, overflow="ellipsis")
    for what, value in (("position", f"{picture.position:,}"), ("layout", picture.layout or ""), ("leader", leader)):
        if value:
            facts.append(f"{what} ", "dim")
            facts.append(f"{value}   ")
    facts.append(f"{clock_time(picture.at)} UTC", "dim")
    counts = Text(no_wrap=True, overflow="ellipsis")
    for name, style in STATES.items():
        if name == "purged" and not picture.totals.purged:
            continue
        counts.append(f"{name} ", "dim")
        counts.append(f"{getattr(picture.totals, name):,}   ", style)
    speeds = Text(no_wrap=True, overflow="ellipsis")
    for name in ("enqueued", "done", "failed"):
        speeds.append(f"{name}/s ", "dim")
        speeds.append(f"{_speed(getattr(picture.rates, name))}   ")
    lines: list[RenderableType] = [title, facts, counts, speeds]
    if depths:
        lines.append(Text(f"ready {_bars(depths, max(width - 20, 10))} {depths[-1]:,}", "green", no_wrap=True))
    if picture.schedules:
        soon = Text("cron ", "dim", no_wrap=True, overflow="ellipsis")
        for due in picture.schedules[:SCHEDULES_SHOWN]:
            when = "paused" if due.paused else f"in {duration(due.next_at - picture.at)}"
            soon.append(f"{printable(due.name)} ", "default").append(f"{when}   ", "dim")
        lines.append(soon)
    if picture.gates:
        lines.append(Text(printable(describe_gates(picture.gates)), "yellow", no_wrap=True, overflow="ellipsis"))
    if picture.problem is not None:
        lines.append(Text(printable(f"not up to date: {picture.problem}"), "yellow", no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def _bars(depths: Sequence[int], width: int) -> str:
    last = depths[-width:]
    most = max(*last, 1)
    return "".join(BARS[-(-depth * (len(BARS) - 1) // most)] for depth in last)


def _table(title: str, columns: Sequence[tuple[str, str]]) -> Table:
    """Columns by name and kind: `right` for numbers; `wide` ones share the width that is left."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for at, (name, justify) in enumerate(columns):
        table.add_column(
            name if at else title,
            justify="right" if justify == "right" else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if justify == "wide" else None,
            min_width=NAME_MIN if justify == "wide" else None,
        )
    return table


def _entrypoints(picture: Picture, most: int) -> Table:
    names = ("ready", "delayed", "running", "dead")
    table = _table(
        "ENTRYPOINT",
        [("", "wide"), *((name, "right") for name in (*names, "oldest", "in/s", "done/s", "failed/s"))],
    )
    busiest = sorted(picture.entrypoints, key=lambda one: (-(one.ready + one.running), one.entrypoint))
    for one in busiest[:most]:
        counts = (
            Text(f"{count:,}", STATES[name] if count else "dim") for name in names for count in (getattr(one, name),)
        )
        rates = (_speed(getattr(one.rates, name)) for name in ("enqueued", "done", "failed"))
        table.add_row(Text(printable(one.entrypoint)), *counts, _ago(picture.at, one.oldest_due_at), *rates)
    return _with_rest(table, len(busiest), most)


def _workers(picture: Picture, most: int) -> Table:
    table = _table(
        "WORKER", [("", "wide"), ("running", "right"), ("done", "right"), ("failed", "right"), ("seen", "right")]
    )
    busiest = sorted(picture.workers, key=lambda one: (-one.running, one.name))
    for one in busiest[:most]:
        seen = _ago(picture.at, one.seen_at)
        table.add_row(Text(printable(one.name)), f"{one.running:,}", f"{one.done:,}", f"{one.failed:,}", seen)
    return _with_rest(table, len(busiest), most)


def _running(picture: Picture, most: int) -> Table:
    columns = [
        ("", ""),
        ("entrypoint", "wide"),
        ("try", "right"),
        ("age", "right"),
        ("beat", "right"),
        ("worker", "wide"),
    ]
    has_progress = any(job.progress for job in picture.running[:most])
    table = _table("RUNNING", [*columns, ("progress", "wide")] if has_progress else columns)
    for job in picture.running[:most]:
        table.add_row(
            job.id[:8],
            Text(printable(job.entrypoint)),
            str(job.attempt),
            _ago(picture.at, job.claimed_at),
            _ago(picture.at, job.heartbeat_at),
            Text(printable(job.worker or "")),
            *([Text(printable(job.progress or ""))] if has_progress else []),
        )
    return _with_rest(table, len(picture.running), most)


def _commits(picture: Picture, most: int) -> Table:
    table = _table("COMMIT", [("", ""), ("at", ""), ("what", "wide")])
    for commit in picture.commits[:most]:
        what = ", ".join(f"{many:,} {kind}" for kind, many in commit.events.items())
        at = commit.at.isoformat(timespec="milliseconds")[11:23]
        table.add_row(f"{commit.position:,}", at, Text(printable(what)))
    return table


def _with_rest(table: Table, there: int, most: int) -> Table:
    if there > most:
        table.caption = Text(f"and {there - most:,} more", "dim")
        table.caption_justify = "left"
    return table


def _speed(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.1f}"


def _ago(at: datetime, then: datetime | None) -> str:
    return "" if then is None else duration(at - then).replace(" ", "")
