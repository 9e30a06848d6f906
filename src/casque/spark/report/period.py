"""The period of a report, and its resolution."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from casque import times
from casque.errors import InvalidInputError

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
STEPS_MS = (
    *(SECOND_MS, 10 * SECOND_MS, MINUTE_MS, 5 * MINUTE_MS, 15 * MINUTE_MS),
    *(HOUR_MS, 6 * HOUR_MS, DAY_MS, 7 * DAY_MS, 28 * DAY_MS),
)
POINTS_MAX = 180
"""More points than this do not fit on a chart."""


class Period(msgspec.Struct, frozen=True):
    """A half-open range of minutes; of seconds if a whole history is that short.

    >>> Period(0, 3 * HOUR_MS).step_ms // MINUTE_MS
    1
    >>> Period(0, 30 * DAY_MS).step_ms // HOUR_MS
    6
    >>> Period(0, 30 * MINUTE_MS).step_ms // SECOND_MS
    10
    """

    from_ms: int
    to_ms: int

    @property
    def span_ms(self) -> int:
        return self.to_ms - self.from_ms

    @property
    def step_ms(self) -> int:
        """Time span of one point of a chart."""
        return next((step for step in STEPS_MS if self.span_ms / step <= POINTS_MAX), STEPS_MS[-1])

    @property
    def tick_ms(self) -> int:
        """Resolution of the tables that it is asked from."""
        return SECOND_MS if self.step_ms < MINUTE_MS else MINUTE_MS

    @property
    def steps(self) -> range:
        """The starts of all steps; the first may be before the period."""
        return range(self.from_ms // self.step_ms * self.step_ms, self.to_ms, self.step_ms)

    @property
    def hours(self) -> range:
        """The starts of all hours that overlap the period."""
        return range(self.from_ms // HOUR_MS * HOUR_MS, self.to_ms, HOUR_MS)

    def __str__(self) -> str:
        return f"{at_utc(self.from_ms)} to {at_utc(self.to_ms)} UTC"


def parse_moments(name: str, text: str) -> tuple[datetime, datetime]:
    """`FROM..TO`."""
    before, dots, after = text.partition("..")
    if not dots:
        raise InvalidInputError(
            f"{name} takes two times with two dots between them, such as 2026-02-14..2026-02-15; not {text!r}"
        )
    begin, end = times.moment(name, before), times.moment(name, after)
    checked(name, Period(minute_ms(begin), minute_ms(end)))
    return begin, end


def minute_ms(moment: datetime) -> int:
    """The start of its minute."""
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(minutes=1) * MINUTE_MS


def checked(name: str, period: Period) -> Period:
    if period.span_ms <= 0:
        raise InvalidInputError(
            f"{name} ends before it begins, or at the same minute: {period}. Choose a later end or an earlier beginning"
        )
    return period


def at_utc(at_ms: int) -> str:
    """
    >>> at_utc(1_771_189_800_000)
    '2026-02-15 21:10'
    """
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M{':%S' if at_ms % MINUTE_MS else ''}}"
