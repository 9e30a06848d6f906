"""Cron expressions in a time zone. Pure arithmetic, without a clock.

Two days a year have an hour too few or too many. A schedule that runs in every hour follows elapsed time: it skips an
hour that the clock skips, and runs in both passes of a repeated hour. A schedule that names hours runs once for every
time it names: at the moment of the jump for a skipped time, and in the first pass of a repeated hour.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from casque.errors import InvalidInputError

EXPRESSION_MAX = 256
YEARS_AHEAD = 9
"""A 29th of February is at most eight years away."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SPANS_MS = tuple(days * 86_400_000 for days in (1 / 24, 1, 32, 366, 366 * YEARS_AHEAD))

SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = {
    name: n
    for n, name in enumerate(("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1)
}
_DAYS = {name: n for n, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_FIELDS: tuple[tuple[str, int, int, Mapping[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)
_ENTRY = re.compile(r"(?P<star>\*)(?:/(?P<every>\w+))?|(?P<first>\w+)(?:-(?P<last>\w+)(?:/(?P<step>\w+))?)?")


class Cron:
    """A cron expression in a time zone; use `parse`."""

    def __init__(self, expression: str, tz: str, fields: tuple[frozenset[int], ...], stars: tuple[bool, ...]) -> None:
        self.expression = expression
        self.tz = tz
        self._zone = ZoneInfo(tz)
        minutes, hours, self._monthdays, self._months, weekdays = fields
        self._minutes, self._hours = sorted(minutes), sorted(hours)
        self._weekdays = frozenset(day % 7 for day in weekdays)
        # As in cron: if both day fields are restricted, either may match.
        self._either = not stars[2] and not stars[4]
        self._by_elapsed = len(hours) == 24

    def next_after(self, ms: int) -> int:
        """The first due moment after this one, in milliseconds since the epoch.

        >>> parse("*/5 * * * *").next_after(0)
        300000

        Raises:
            InvalidInputError: there is none.
        """
        return self._next_elapsed(ms) if self._by_elapsed else self._next_named(ms)

    def latest(self, first_ms: int, until_ms: int) -> int:
        """The last due moment up to `until_ms`; `first_ms` must be one, and not later than that."""
        latest = first_ms
        for span_ms in _SPANS_MS:
            # Search from ever further back, instead of counting through a whole year.
            at = max(first_ms, until_ms - int(span_ms))
            while (at := self.next_after(at)) <= until_ms:
                latest = at
            if latest != first_ms or until_ms - span_ms <= first_ms:
                break
        return latest

    # --- Elapsed time: from one change of the clock to the next ---

    def _next_elapsed(self, ms: int) -> int:
        at_ms, offset = ms, self._offset(ms)
        local = _plus(_EPOCH.replace(tzinfo=None), at_ms + offset)
        inclusive = False
        while True:
            found = self._match(local, inclusive=inclusive)
            found_ms = _ms(found.replace(tzinfo=UTC)) - offset
            after = self._offset(found_ms)
            if after == offset:
                return found_ms
            at_ms = self._change(at_ms, found_ms)
            offset = self._offset(at_ms)
            local = _plus(_EPOCH.replace(tzinfo=None), at_ms + offset)
            inclusive = True

    # --- Named times ---

    def _next_named(self, ms: int) -> int:
        local = _plus(_EPOCH.replace(tzinfo=None), ms + self._offset(ms))
        while True:
            local = self._match(local, inclusive=False)
            found_ms = self._moment(local)
            if found_ms > ms:
                return found_ms

    def _moment(self, local: datetime) -> int:
        """When the local clock shows this for the first time, or when it jumps over it."""
        first = _ms(local.replace(tzinfo=self._zone, fold=0))
        if self._offset(first) == _ms(local.replace(tzinfo=UTC)) - first:
            return first
        return self._change(_ms(local.replace(tzinfo=self._zone, fold=1)), first)

    # --- The calendar ---

    def _match(self, local: datetime, *, inclusive: bool) -> datetime:
        """The first time after, or not before, this one that the fields allow, on a clock that never jumps."""
        start = local.replace(second=0, microsecond=0)
        if not inclusive or start < local:
            start += timedelta(minutes=1)
        day, hour, minute = start.date(), start.hour, start.minute
        while True:
            if self._on(day):
                for at in self._hours:
                    if at < hour:
                        continue
                    for past in self._minutes:
                        if at > hour or past >= minute:
                            return datetime(day.year, day.month, day.day, at, past)  # noqa: DTZ001  of the zone's clock
            day, hour, minute = self._next_day(day, start.year), 0, 0

    def _on(self, day: date) -> bool:
        if day.month not in self._months:
            return False
        of_month, of_week = day.day in self._monthdays, day.isoweekday() % 7 in self._weekdays
        return of_month or of_week if self._either else of_month and of_week

    def _next_day(self, day: date, since: int) -> date:
        if day.month in self._months:
            day += timedelta(days=1)
        else:
            day = date(day.year + day.month // 12, day.month % 12 + 1, 1)
        if day.year > since + YEARS_AHEAD:
            raise InvalidInputError(f"cron {self.expression!r} is never due: there is no such day")
        return day

    # --- The zone ---

    def _offset(self, ms: int) -> int:
        """The zone's offset from UTC at that moment."""
        offset = _plus(_EPOCH, ms).astimezone(self._zone).utcoffset()
        assert offset is not None
        return offset // timedelta(milliseconds=1)

    def _change(self, before_ms: int, after_ms: int) -> int:
        """When the clock was changed: the first moment with another offset than at `before_ms`."""
        offset = self._offset(before_ms)
        while after_ms - before_ms > 1:
            middle_ms = (before_ms + after_ms) // 2
            if self._offset(middle_ms) == offset:
                before_ms = middle_ms
            else:
                after_ms = middle_ms
        return after_ms


@lru_cache(maxsize=1024)
def parse(expression: str, tz: str = "UTC") -> Cron:
    """
    >>> parse("30 6 * * mon-fri", "Europe/Berlin").expression
    '30 6 * * mon-fri'

    Raises:
        InvalidInputError: it is no such expression, no such time zone, or never due.
    """
    if len(expression) > EXPRESSION_MAX:
        raise InvalidInputError(f"cron must be at most {EXPRESSION_MAX} characters, not {len(expression)}")
    zone(tz)
    written = expression.strip().lower()
    if written.startswith("@"):
        if written not in SHORTHANDS:
            raise InvalidInputError(f"cron {expression!r} is unknown; there are {', '.join(SHORTHANDS)}")
        written = SHORTHANDS[written]
    texts = written.split()
    if len(texts) != len(_FIELDS):
        raise InvalidInputError(
            f"cron {expression!r} has {len(texts)} fields and not 5: minute, hour, day of the month, month, day of the "
            "week, for example '30 6 * * mon-fri'"
        )
    fields = tuple(_field(text, *field, whole=expression) for text, field in zip(texts, _FIELDS, strict=True))
    found = Cron(expression, tz, fields, tuple(text.startswith("*") for text in texts))
    found.next_after(0)
    return found


def zone(tz: Any) -> str:
    """
    Raises:
        InvalidInputError: no such time zone, as far as this machine knows.
    """
    if not isinstance(tz, str):
        raise InvalidInputError(f"tz must be the name of a time zone such as 'Europe/Berlin', not {type(tz).__name__}")
    try:
        ZoneInfo(tz)
    except (ValueError, OSError, LookupError) as error:
        raise InvalidInputError(
            f"tz {tz[:80]!r} is no time zone that this machine knows: give a name such as 'Europe/Berlin' or 'UTC'; if "
            "it is one, install the time zones with `pip install tzdata`"
        ) from error
    return tz


def _field(text: str, name: str, least: int, most: int, names: Mapping[str, int], *, whole: str) -> frozenset[int]:
    chosen: set[int] = set()
    for entry in text.split(","):
        read = _ENTRY.fullmatch(entry)
        if read is None:
            raise _wrong(whole, name, entry, "a number, a range such as 1-5, *, or steps such as */5 and 10-30/5")
        first, last, step = least, most, 1
        if read["star"] is None:
            first = last = _number(read["first"], name, least, most, names, whole=whole)
            if read["last"] is not None:
                last = _number(read["last"], name, least, most, names, whole=whole)
        elif name == "day of the week":
            last = 6
        written = read["every"] or read["step"]
        if written is not None:
            step = int(written) if written.isdecimal() else 0
            if not 1 <= step <= most:
                raise _wrong(whole, name, entry, f"steps from 1 to {most}")
        if last < first:
            raise _wrong(whole, name, entry, f"ranges that rise: write {read['first']}-{most},{least}-{read['last']}")
        chosen.update(range(first, last + 1, step))
    return frozenset(chosen)


def _number(text: str, name: str, least: int, most: int, names: Mapping[str, int], *, whole: str) -> int:
    if text in names:
        return names[text]
    if not text.isdecimal() or not least <= int(text) <= most:
        words = f", or {', '.join(names)}" if names else ""
        raise _wrong(whole, name, text, f"{least} to {most}{words}")
    return int(text)


def _wrong(whole: str, name: str, text: str, takes: str) -> InvalidInputError:
    return InvalidInputError(f"cron {whole!r}: the {name} cannot be {text[:40]!r}; it takes {takes}")


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _plus(moment: datetime, ms: int) -> datetime:
    return moment + timedelta(milliseconds=ms)
