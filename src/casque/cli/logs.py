"""What a long-running command writes about itself: for people, or one JSON object per line for programs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from casque.printable import printable, printable_json, printable_lines

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
ABOUT_A_JOB = ("job_id", "entrypoint", "attempt", "elapsed_ms")
"""What a line about a job says besides its message."""


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@contextmanager
def telling(form: LogFormat, verbosity: int) -> Iterator[None]:
    """Send what casque's parts say to standard error meanwhile; warnings only, unless asked for more."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLine() if form is LogFormat.JSON else TextLine())
    parts = logging.getLogger("casque")
    level = parts.level
    parts.addHandler(handler)
    parts.setLevel(LEVELS[min(verbosity, len(LEVELS) - 1)])
    logging.getLogger("casque.audit").setLevel(logging.INFO)  # who changed what is no detail
    try:
        yield
    finally:
        parts.removeHandler(handler)
        parts.setLevel(level)


def said(record: logging.LogRecord) -> dict[str, Any]:
    """A line for programs."""
    line: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    line |= {name: value for name in ABOUT_A_JOB if (value := getattr(record, name, None)) is not None}
    if record.exc_info:
        line["error"] = logging.Formatter().formatException(record.exc_info)
    return line


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable_json(msgspec.json.encode(said(record)))


class TextLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = said(record)
        text = f"{line['time'][11:23]} {line['level']:<7} {line['logger'].removeprefix('casque.')}: {line['message']}"
        if "error" not in line:
            return printable(text)
        # Indented: a text in an exception must not look like a line of the log.
        trace = printable_lines(line["error"]).replace("\n", "\n    ")
        return f"{printable(text)}\n    {trace}"
