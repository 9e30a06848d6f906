"""Parse times and spans as people write them: on a command line, in an option, in a file."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from casque.errors import InvalidInputError

_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}


def span(argument: str, text: str) -> timedelta:
    """How long: a number and its unit.

    >>> span("--delay", "90m")
    datetime.timedelta(seconds=5400)

    Raises:
        InvalidInputError: not such a span.
    """
    if (written := _SPAN.fullmatch(text.strip().lower())) is not None:
        try:
            return timedelta(seconds=float(written[1]) * _SECONDS[written[2]])
        except OverflowError:
            pass
    raise InvalidInputError(f"{argument} takes a span such as 500ms, 30s, 10m, 1h or 2d, not {text[:80]!r}")


def is_span(text: str) -> bool:
    """True if the text looks like a span, and not like a moment."""
    return _SPAN.fullmatch(text.strip().lower()) is not None


def moment(argument: str, text: str) -> datetime:
    """When: a day or a time, in UTC unless it names its zone.

    >>> moment("--to", "2026-02-15T10:00") == moment("--to", "2026-02-15 11:00+01:00")
    True

    Raises:
        InvalidInputError: not such a time.
    """
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInputError(
            f"{argument} takes a time in UTC such as 2026-02-15T10:00, or a date such as 2026-02-15; not {text[:80]!r}"
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def moment_or_ago(argument: str, text: str, now: datetime) -> datetime:
    """When, or how long before now.

    >>> moment_or_ago("--since", "24h", datetime(2026, 2, 15, tzinfo=UTC)).isoformat()
    '2026-02-14T00:00:00+00:00'
    """
    try:
        return now - span(argument, text) if is_span(text) else moment(argument, text)
    except (InvalidInputError, OverflowError):
        raise InvalidInputError(
            f"{argument} takes a time such as 2026-02-15T10:00, or how long ago: 90m, 24h, 7d; not {text[:80]!r}"
        ) from None
