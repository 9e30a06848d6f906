"""Axes: positions of values, tick marks, and number formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from casque.spark.report.period import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Period

SPANS_MS = (
    *(1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, MINUTE_MS, 3 * MINUTE_MS, 10 * MINUTE_MS, 30 * MINUTE_MS),
    *(HOUR_MS, 3 * HOUR_MS, 12 * HOUR_MS, DAY_MS, 3 * DAY_MS, 7 * DAY_MS, 30 * DAY_MS, 90 * DAY_MS, 365 * DAY_MS),
)
TICKS_MAX = 9
"""On a logarithmic axis."""
TIME_STEPS_MS = (
    *(SECOND_MS, 2 * SECOND_MS, 5 * SECOND_MS, 10 * SECOND_MS, 20 * SECOND_MS, 30 * SECOND_MS),
    *(MINUTE_MS, 5 * MINUTE_MS, 10 * MINUTE_MS, 15 * MINUTE_MS, 30 * MINUTE_MS),
    *(HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS, 6 * HOUR_MS, 12 * HOUR_MS),
    *(DAY_MS, 2 * DAY_MS, 7 * DAY_MS, 14 * DAY_MS, 28 * DAY_MS, 91 * DAY_MS, 364 * DAY_MS),
)


class Scale(msgspec.Struct, frozen=True):
    """Maps values to pixels, linearly or logarithmically."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self._of(self.low), self._of(self.high)
        share = (self._of(value) - low) / (high - low) if high != low else 0.0
        return self.begin + min(max(share, 0.0), 1.0) * (self.end - self.begin)

    def _of(self, value: float) -> float:
        return math.log(max(value, 1e-9)) if self.log else value


def nice_ticks(high: float, about: int = 5, *, whole: bool = False) -> list[float]:
    """From 0 to at least `high`.

    >>> nice_ticks(87)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    >>> nice_ticks(2, whole=True)
    [0.0, 1.0, 2.0]
    """
    if high <= 0:
        high = 1
    rough = high / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    step = max(step, 1.0) if whole else step
    return [n * step for n in range(math.ceil(high / step - 1e-9) + 1)]


def span_ticks(low_ms: float, high_ms: float) -> list[int]:
    """Familiar time spans, from below `low_ms` to above `high_ms`.

    >>> span_ticks(50, 2_000)
    [30, 100, 300, 1000, 3000]
    >>> span_ticks(2, 2 * HOUR_MS)
    [1, 10, 100, 1000, 10000, 60000, 600000, 3600000, 43200000]
    """
    fine = _around(SPANS_MS, low_ms, high_ms)
    return fine if len(fine) <= TICKS_MAX else _around(SPANS_MS[::2], low_ms, high_ms)


def _around(spans: Sequence[int], low_ms: float, high_ms: float) -> list[int]:
    first = max((n for n, span in enumerate(spans) if span <= low_ms), default=0)
    last = min((n for n, span in enumerate(spans) if span >= high_ms), default=len(spans) - 1)
    return list(spans[first : max(last, first + 1) + 1])


def time_ticks(period: Period, most: int = 8) -> list[int]:
    step = next((step for step in TIME_STEPS_MS if period.span_ms / step <= most), TIME_STEPS_MS[-1])
    return list(range(-(-period.from_ms // step) * step, period.to_ms + 1, step))


def time_label(at_ms: int, period: Period) -> str:
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    if period.span_ms > 8 * DAY_MS:
        return f"{moment:%b} {moment.day}" if period.span_ms < 330 * DAY_MS else f"{moment:%b %Y}"
    if at_ms % DAY_MS == 0:
        return f"{moment:%b} {moment.day}"
    return f"{moment:%H:%M:%S}" if period.span_ms <= 4 * MINUTE_MS else f"{moment:%H:%M}"


def span(ms: float | None) -> str:
    """
    >>> [span(ms) for ms in (None, 0, 4.26, 850, 1_500, 90_000, 5_400_000, 200_000_000)]
    ['–', '0 ms', '4.3 ms', '850 ms', '1.5 s', '1.5 min', '1.5 h', '2.3 d']
    """
    if ms is None:
        return "–"
    for unit, size in (("d", DAY_MS), ("h", HOUR_MS), ("min", MINUTE_MS), ("s", 1000)):
        if abs(ms) >= size * (2 if unit == "d" else 1):
            return f"{number(ms / size)} {unit}"
    return f"{number(ms)} ms"


def number(value: float | None) -> str:
    """
    >>> [number(value) for value in (None, 0, 12, 1234567, 0.0421, 3.14159, 98.76, 1e-7)]
    ['–', '0', '12', '1,234,567', '0.042', '3.1', '99', '1e-07']
    """
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 20:
        return f"{value:,.0f}"
    if abs(value) >= 1:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2g}"


def brief(text: str) -> str:
    """A shorter form, for a cell of a heat map; the full text is in its title.

    >>> [brief(text) for text in ("2.1 min", "480 ms", "31 s", "98", "12,345", "1,234,567")]
    ['2.1m', '480ms', '31s', '98', '12k', '1M']
    """
    if "," in text:
        return f"{text.partition(',')[0]}{' kMGT'[min(text.count(','), 4)]}"
    return text.replace(" min", "m").replace(" ", "")


def percent(share: float | None) -> str:
    """
    >>> [percent(share) for share in (None, 0.0, 0.0004, 0.0523, 0.5, 1.0)]
    ['–', '0 %', '0.04 %', '5.2 %', '50 %', '100 %']
    """
    if share is None:
        return "–"
    hundredth = share * 100
    return f"{hundredth:.0f} %" if hundredth >= 20 or hundredth == 0 else f"{number(hundredth)} %"


def rate(per_second: float | None) -> str:
    """
    >>> [rate(each) for each in (None, 0, 86.2, 0.5, 0.0078, 0.0001)]
    ['–', '0/s', '86/s', '30/min', '28/h', '8.6/d']
    """
    if per_second is None:
        return "–"
    units = (("s", 1), ("min", 60), ("h", 3600), ("d", 86_400))
    unit, seconds = next((one for one in units if per_second * one[1] >= 1 or not per_second), units[-1])
    return f"{number(per_second * seconds)}/{unit}"


def index(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def dollars(amount: float | None) -> str:
    """
    >>> [dollars(amount) for amount in (None, 0, 0.0061234, 12.5, 4321.0)]
    ['–', '$0', '$0.0061', '$12.50', '$4,321.00']
    """
    if amount is None:
        return "–"
    if amount == 0:
        return "$0"
    return f"${amount:,.2f}" if abs(amount) >= 1 else f"${amount:.2g}"


def size(count: int) -> str:
    """
    >>> size(1500), size(2_500_000)
    ('1.5 kB', '2.5 MB')
    """
    for unit, many in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 1000)):
        if count >= many:
            return f"{number(count / many)} {unit}"
    return f"{count} B"


def bounds(values: Sequence[float | None], least: float = 1.0) -> tuple[float, float] | None:
    """The smallest and the largest value for a logarithmic axis; None without values."""
    there = [max(value, least) for value in values if value is not None]
    return (min(there), max(there)) if there else None
