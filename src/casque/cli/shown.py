"""Jobs as the commands show them: as JSON for programs, in tables for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from casque.cli.terminal import Terminal
from casque.client.job import Job
from casque.clock import SystemClock
from casque.engine.embedded import state_at
from casque.printable import printable, printable_lines
from casque.types import Ending, JobState, from_ms

TEXT_MAX = 60
WIDE = 100_000
WRAPPED_MIN = 12
WRAPPED = frozenset({"payload", "error", "worker", "entrypoint"})
"""Columns that may go over several lines of a narrow terminal."""
COLOURS = {"ready": "green", "running": "cyan", "delayed": "yellow", "dead": "bold red", "done": "cyan"}


class ShownAttempt(msgspec.Struct, frozen=True):
    """An attempt that came to nothing."""

    claimed_at: datetime | None
    ended_at: datetime
    how: Ending
    worker: str | None
    token: int
    error: str | None


class ShownProgress(msgspec.Struct, frozen=True):
    """How far an attempt has come."""

    done: float
    total: float | None
    note: str | None


class ShownJob(msgspec.Struct, frozen=True):
    """A job in the queue, with times that people and programs can read."""

    id: str
    entrypoint: str
    state: JobState
    payload: bytes | None
    """In JSON base64; None if it lay in an object of its own that is gone."""
    text: str | None
    """The payload, if it is text."""
    priority: int
    attempts: int
    max_attempts: int | None
    created_at: datetime
    due_at: datetime
    token: int
    worker: str | None
    claimed_at: datetime | None
    heartbeat_at: datetime | None
    lease_s: float | None
    error: str | None
    key: str | None
    zone: str | None
    headers: dict[str, str] | None
    tries: tuple[ShownAttempt, ...]
    crashes: int
    max_crashes: int | None
    declined: int
    progress: ShownProgress | None
    fifo: bool


class Out(Terminal):
    """Standard output. Nobody reading it any more is an ordinary error, not the end of the process: what is under way
    is closed first."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError


def now() -> datetime:
    return from_ms(SystemClock().wall_ms())


def show(job: Job[bytes]) -> ShownJob:
    record, spec = job.record, job.record.spec
    payload = None if spec.blob is not None else spec.payload
    running = record.state is JobState.RUNNING
    return ShownJob(
        id=spec.id,
        entrypoint=spec.entrypoint,
        state=state_at(record, SystemClock().wall_ms()),
        payload=payload,
        text=None if payload is None else text_of(payload),
        priority=spec.priority,
        attempts=record.attempts,
        max_attempts=spec.attempts_max,
        created_at=from_ms(record.created_ms),
        due_at=from_ms(record.due_ms),
        token=record.token,
        worker=record.worker,
        claimed_at=None if record.claimed_ms is None else from_ms(record.claimed_ms),
        heartbeat_at=None if record.beat_ms is None else from_ms(record.beat_ms),
        lease_s=record.lease_ms / 1000 if running else None,
        error=record.error,
        key=spec.key,
        zone=spec.zone,
        headers=spec.headers,
        tries=tuple(
            ShownAttempt(
                None if tried.claimed_ms is None else from_ms(tried.claimed_ms),
                from_ms(tried.ended_ms),
                tried.how,
                tried.worker,
                tried.token,
                tried.error,
            )
            for tried in record.tries
        ),
        crashes=record.crashes,
        max_crashes=spec.max_crashes,
        declined=record.declined,
        progress=None if (far := record.progress) is None else ShownProgress(far.done, far.total, far.note),
        fifo=spec.fifo,
    )


def print_table(columns: Sequence[tuple[str, Callable[[Any], str | Text]]], rows: Iterable[Any]) -> None:
    """A table without the columns that would be empty. Ids are never cut, and into a pipe nothing is."""
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
    needed = console.measure(table, options=console.options.update(max_width=WIDE))
    console.width = max(console.width, needed.minimum if console.is_terminal else needed.maximum)
    console.print(table)


def _cell(name: str, value: str | Text, *, is_first: bool) -> Text:
    """As Text: what looks like markup in a payload or an error is shown as it is. A traceback keeps its lines, which
    cannot pretend to be rows: they stand below other columns."""
    if isinstance(value, Text):
        return value
    return Text(printable_lines(value) if name in WRAPPED and not is_first else printable(value))


@contextmanager
def progress(total: int | None, what: str, *, wanted: bool) -> Iterator[tuple[Progress, TaskID]]:
    """How far something long has come, for whoever sits at a terminal. Without a total: that it goes on."""
    console = Terminal(stderr=True)
    columns = (TextColumn("{task.description:<16}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not wanted or not console.is_terminal) as bar:
        yield bar, bar.add_task(what, total=total)


def coloured(state: str) -> Text:
    return Text(state, COLOURS.get(state, ""))


def clock_time(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")


def of_most(attempts: int, most: int | None) -> str:
    return f"{attempts}" if most is None else f"{attempts}/{most}"


def cut(text: str | bytes | None) -> str:
    """Enough of it to recognise it by, on one line."""
    if text is None:
        return ""
    if isinstance(text, bytes):
        text = text_of(text) if text_of(text) is not None else repr(text)[1:]
    assert isinstance(text, str)
    line = " ".join(text.split())
    return printable(line if len(line) <= TEXT_MAX else f"{line[:TEXT_MAX]}…")


def length(span: timedelta) -> str:
    """How long, in the unit that suits it."""
    seconds = span.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def text_of(payload: bytes) -> str | None:
    """The payload, if it is text."""
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None
