"""Times, spans, counts and contents as people read them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.text import Text

from casque.clock import SystemClock
from casque.printable import printable
from casque.types import from_ms

TEXT_MAX = 60
COLOURS = {
    "ready": "green", "running": "cyan", "delayed": "yellow", "dead": "bold red", "done": "cyan", "cancelled": "yellow",
}  # fmt: skip


def now() -> datetime:
    return from_ms(SystemClock().wall_ms())


def clock_time(at: datetime | None, timespec: str = "seconds") -> str:
    return "" if at is None else at.astimezone(UTC).isoformat(sep=" ", timespec=timespec).removesuffix("+00:00")


def duration(span: timedelta) -> str:
    """A span in the unit that suits it; a negative one is 0."""
    seconds = max(span.total_seconds(), 0.0)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def of_max(count: int, maximum: int | None) -> str:
    return f"{count}" if maximum is None else f"{count}/{maximum}"


def jobs_noun(count: int) -> str:
    return "job" if count == 1 else "jobs"


def count_of(name: str) -> Callable[[Any], str]:
    """A cell with the number that a row has under this name."""
    return lambda row: f"{getattr(row, name):,}"


def colour_state(state: str) -> Text:
    return Text(state, COLOURS.get(state, ""))


def preview(content: str | bytes | None) -> str:
    """Enough of a text to recognise it, on one line."""
    if content is None:
        return ""
    if isinstance(content, bytes):
        content = text if (text := text_of(content)) is not None else repr(content)[1:]
    line = " ".join(content.split())
    return printable(line if len(line) <= TEXT_MAX else f"{line[:TEXT_MAX]}…")


def text_of(payload: bytes) -> str | None:
    """The payload, if it is text."""
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None
