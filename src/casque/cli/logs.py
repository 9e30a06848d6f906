"""Logging of long-running commands to standard error: text for people, or one JSON object per line for programs."""

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
JOB_FIELDS = ("job_id", "entrypoint", "attempt", "elapsed_ms")
"""Fields of a record about a job, besides its message."""


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@contextmanager
def log_to_stderr(form: LogFormat, verbosity: int) -> Iterator[None]:
    """Log to standard error meanwhile; only warnings unless verbosity is 1 or 2."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else TextFormatter())
    root = logging.getLogger("casque")
    level = root.level
    root.addHandler(handler)
    root.setLevel(LEVELS[min(verbosity, len(LEVELS) - 1)])
    logging.getLogger("casque.audit").setLevel(logging.INFO)  # an audit entry is never a detail
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def log_fields(record: logging.LogRecord) -> dict[str, Any]:
    """A log record as JSON fields."""
    line: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    line |= {name: value for name in JOB_FIELDS if (value := getattr(record, name, None)) is not None}
    if (failure := getattr(record, "failure", None)) and "\n" in failure:
        line["error"] = failure  # the traceback of a handler, whose first line is in the message
    if record.exc_info:
        line["error"] = logging.Formatter().formatException(record.exc_info)
    return line


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable_json(msgspec.json.encode(log_fields(record)))


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = log_fields(record)
        text = f"{line['time'][11:23]} {line['level']:<7} {line['logger'].removeprefix('casque.')}: {line['message']}"
        if "error" not in line:
            return printable(text)
        # Indented, so that text in an exception cannot look like a log line. The message of a failed job has the first
        # line of its error already.
        error = line["error"].partition("\n")[2] if hasattr(record, "failure") else line["error"]
        trace = printable_lines(error).replace("\n", "\n    ")
        return f"{printable(text)}\n    {trace}"
