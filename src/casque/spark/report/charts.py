"""SVG charts for the report: colours come from its style sheet, so they follow light and dark mode.

Every mark has a `title` that explains it on hover, which needs no script. The page shows a table beside each chart, so
no number is in a chart alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from casque.spark.report.markup import Markup, joined, tag
from casque.spark.report.period import DAY_MS, HOUR_MS, Period, at_utc
from casque.spark.report.scales import (
    Scale,
    bounds,
    brief,
    nice_ticks,
    number,
    percent,
    span,
    span_ticks,
    time_label,
    time_ticks,
)

WIDTH, HALF = 900, 470
HEIGHT = 260
LEFT, RIGHT, TOP, BOTTOM = 72, 30, 14, 44
HEAT_DAYS_MAX = 62


class Line(msgspec.Struct, frozen=True):
    """One line of a chart: a value for each step, None for a gap."""

    name: str
    style: str
    """Its class in the style sheet."""
    points: tuple[tuple[int, float | None], ...]
    note: str = ""
    """Its numbers, beside its name."""
    filled: bool = False


class Axis(NamedTuple):
    """The vertical one."""

    ticks: Sequence[float]
    label: Callable[[float], str]
    unit: str
    log: bool = False

    def scale(self) -> Scale:
        return Scale(self.ticks[0], self.ticks[-1], HEIGHT - BOTTOM, TOP, log=self.log)


def counts(lines: Sequence[Line], unit: str) -> Axis:
    """From 0 on."""
    high = max((value for line in lines for _, value in line.points if value is not None), default=0)
    return Axis(nice_ticks(high, whole=high >= 3), number, unit)


def shares(unit: str) -> Axis:
    return Axis([0, 0.25, 0.5, 0.75, 1], lambda value: f"{value:g}", unit)


def spans(lines: Sequence[Line]) -> Axis | None:
    """Logarithmic: a second and an hour fit on one chart. None without any."""
    ends = bounds([value for line in lines for _, value in line.points])
    return None if ends is None else Axis(span_ticks(*ends), span, "time, logarithmic", log=True)


def over_time(
    title: str, lines: Sequence[Line], axis: Axis, period: Period, known_ms: int, *, half: bool = False
) -> Markup:
    """Lines over the steps of a period. Steps that are not known to their end, at `known_ms`, are marked."""
    width = HALF if half else WIDTH
    x, y = Scale(period.from_ms, period.to_ms, LEFT, width - RIGHT), axis.scale()
    base = HEIGHT - BOTTOM
    parts = [_grid(y, axis, width)]
    if known_ms % period.step_ms or known_ms < period.to_ms:
        begin = x(known_ms // period.step_ms * period.step_ms)
        said = tag("title", f"incomplete: ends at {at_utc(known_ms)} UTC")
        parts.append(
            tag("rect", said, x=begin, y=TOP, width=max(width - RIGHT - begin, 1), height=base - TOP, class_="partial")
        )
    ticks = {tick: time_label(tick, period) for tick in time_ticks(period, 4 if half else 8)}
    parts += [tag("line", x1=LEFT, x2=width - RIGHT, y1=base, y2=base, class_="axis"), _marks(x, ticks, "time (UTC)")]
    return _svg(title, *parts, *(_line(line, x, y, axis, period.step_ms) for line in lines), width=width)


def _line(line: Line, x: Scale, y: Scale, axis: Axis, step_ms: int) -> Markup:
    parts: list[Markup] = []
    dots: list[Markup] = []
    # A stretch without values is a gap, without a line across it.
    for there, run in groupby(line.points, key=lambda point: point[1] is not None):
        places = [(x(at + step_ms / 2), y(value), at, value) for at, value in run if there and value is not None]
        if not places:
            continue
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py, _, _ in places)
        if line.filled and not axis.log:  # there is no 0 on a logarithmic axis that an area could begin at
            floor = f"{y.begin:.1f}"
            area = f"{places[0][0]:.1f},{floor} {path} {places[-1][0]:.1f},{floor}"
            parts.append(tag("polygon", points=area, class_=f"area {line.style}"))
        parts.append(tag("polyline", points=path, class_=f"line {line.style}"))
        dots += [
            tag(
                "circle",
                tag("title", f"{line.name}: {axis.label(value)}, {at_utc(at)} UTC"),
                cx=px,
                cy=py,
                r=2.5 if len(places) == 1 else 5,
                # Only a lone point is visible; the others only react to the pointer.
                class_=f"dot {line.style}" if len(places) == 1 else "ghost",
            )
            for px, py, at, value in places
        ]
    return joined(*parts, *dots)


def histogram(title: str, counted: Mapping[int, int], edges: Sequence[int]) -> Markup | None:
    """The distribution of spans, a bar for each edge: as many as are that long and longer than the edge before. None
    without any."""
    if not counted:
        return None
    first, last = edges.index(min(counted)), edges.index(max(counted))
    shown = edges[max(first - 1, 0) : last + 2]
    axis = Axis(nice_ticks(max(counted.values()), whole=True), number, "how many")
    y, each = axis.scale(), min((WIDTH - RIGHT - LEFT) / len(shown), 48)
    drawn = [
        tag(
            "rect",
            tag("title", f"{span(edges[max(edges.index(edge) - 1, 0)])} to {span(edge)}: {counted[edge]:,}"),
            x=LEFT + n * each + 0.5,
            y=y(counted[edge]),
            width=each - 1,
            height=max(y.begin - y(counted[edge]), 0.8),
            class_="bar one",
        )
        for n, edge in enumerate(shown)
        if edge in counted
    ]
    x = Scale(0, len(shown), LEFT, LEFT + len(shown) * each)
    every = max(1, math.ceil(56 / each))
    ticks = {n + 1: span(edge) for n, edge in enumerate(shown) if n % every == every - 1}
    return _svg(title, _grid(y, axis), *drawn, _marks(x, ticks, "at most this long"))


def heat_map(
    title: str, values: Mapping[int, float], period: Period, known_ms: int, label: Callable[[float], str]
) -> Markup | None:
    """A row for each day and a column for each hour; values by the start of the hour. Hours of which the period has
    only a part have a dashed border. None without any."""
    if not values:
        return None
    days = sorted({hour // DAY_MS for hour in period.hours})[-HEAT_DAYS_MAX:]
    cell, high = 24 if len(days) <= 14 else 14, max(values.values()) or 1
    width = (WIDTH - LEFT - RIGHT) / 24
    height = TOP + len(days) * cell + BOTTOM
    drawn: list[Markup] = []
    for row, day in enumerate(days):
        y = TOP + row * cell
        name = at_utc(day * DAY_MS)[5:10]
        drawn.append(tag("text", name, x=LEFT - 8, y=y + cell / 2 + 4, text_anchor="end"))
        for column in range(24):
            hour = day * DAY_MS + column * HOUR_MS
            if hour not in period.hours:
                continue
            value = values.get(hour)
            # The square root keeps differences among small values visible beside one large one.
            warmth = 0 if value is None else 1 + min(int((value / high) ** 0.5 * 8), 7)
            text = "nothing" if value is None else label(value)
            begin_ms, end_ms = max(hour, period.from_ms), min(hour + HOUR_MS, period.to_ms, known_ms)
            partial = end_ms - begin_ms < HOUR_MS
            about = f"{at_utc(begin_ms)} to {at_utc(end_ms)[11:]} UTC, incomplete" if partial else f"{at_utc(hour)} UTC"
            drawn.append(
                tag(
                    "rect",
                    tag("title", f"{about}: {text}"),
                    x=LEFT + column * width + 1,
                    y=y + 1,
                    width=width - 2,
                    height=cell - 2,
                    rx=2,
                    class_=f"heat h{warmth} part" if partial else f"heat h{warmth}",
                )
            )
            if value is not None and cell >= 24:
                style = "cell strong" if warmth > 4 else "cell"
                middle = LEFT + (column + 0.5) * width
                drawn.append(tag("text", brief(text), x=middle, y=y + cell / 2 + 4, class_=style))
    below = TOP + len(days) * cell
    hours = [
        tag("text", f"{column:02}", x=LEFT + (column + 0.5) * width, y=below + 16, text_anchor="middle")
        for column in range(0, 24, 1 if cell >= 24 else 3)
    ]
    unit = tag("text", "hour of the day (UTC)", x=(LEFT + WIDTH - RIGHT) / 2, y=height - 6, class_="unit centred")
    return _svg(title, *drawn, *hours, unit, height=height)


class Spot(msgspec.Struct, frozen=True):
    """One zone in a scatter plot."""

    name: str
    share: float
    wait_ms: float
    jobs: int


def scatter(title: str, spots: Sequence[Spot]) -> Markup | None:
    """Share of the service and waiting time of each zone. None without any."""
    ends = bounds([spot.wait_ms for spot in spots])
    if ends is None:
        return None
    axis = Axis(span_ticks(*ends), span, "mean wait", log=True)
    ticks = nice_ticks(min(max(spot.share for spot in spots) * 1.05, 1))
    x, y = Scale(0, ticks[-1], LEFT, WIDTH - RIGHT), axis.scale()
    most = max(spot.jobs for spot in spots)
    marks = _marks(x, {tick: percent(tick) for tick in ticks}, "share of the run time")
    drawn = [
        tag(
            "circle",
            tag(
                "title",
                f"{spot.name}: {percent(spot.share)} of the run time, wait {span(spot.wait_ms)}, {spot.jobs:,} jobs",
            ),
            cx=x(spot.share),
            cy=y(spot.wait_ms),
            r=_radius(spot, most),
            class_="spot one",
        )
        for spot in spots
    ]
    return _svg(title, _grid(y, axis), marks, *drawn, *_names(spots, x, y, most))


def _radius(spot: Spot, most: int) -> float:
    return 4 + 10 * math.sqrt(spot.jobs / most)


def _names(spots: Sequence[Spot], x: Scale, y: Scale, most: int) -> list[Markup]:
    """Labels that have room beside their spot, the largest zones first."""
    places = [(x(spot.share), y(spot.wait_ms), _radius(spot, most)) for spot in spots]
    taken = [(cx - r, cy - r, cx + r, cy + r) for cx, cy, r in places]
    names: list[Markup] = []
    for spot in sorted(spots, key=lambda spot: -spot.jobs)[:24]:
        text = spot.name if len(spot.name) <= 18 else f"{spot.name[:17]}…"
        at, width, gap = x(spot.share), 7.0 * len(text), _radius(spot, most) + 4
        left = at + gap if at + gap + width < WIDTH - RIGHT else at - gap - width
        box = (left, y(spot.wait_ms) - 8, left + width, y(spot.wait_ms) + 8)
        if any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
            continue
        taken.append(box)
        names.append(tag("text", text, x=left, y=y(spot.wait_ms) + 4, class_="name"))
    return names


def strip(values: dict[int, float], period: Period, name: str) -> Markup:
    """One row of a heat map, small enough for a table: utilisation over time."""
    width, steps = 320, list(period.steps)
    each = width / len(steps)
    drawn = [
        tag(
            "rect",
            tag("title", f"{at_utc(step)} UTC: {percent(values[step])}"),
            x=n * each,
            y=0,
            width=max(each - 0.3, 0.5),
            height=16,
            class_=f"heat h{1 + min(int(values[step] * 8), 7)}",
        )
        for n, step in enumerate(steps)
        if step in values
    ]
    base = tag("rect", x=0, y=0, width=width, height=16, class_="heat h0")
    return tag(
        "svg",
        base,
        *drawn,
        viewBox=f"0 0 {width} 16",
        preserveAspectRatio="none",
        class_="strip",
        role="img",
        aria_label=f"utilisation of {name} over the period",
    )


def _grid(y: Scale, axis: Axis, width: int = WIDTH) -> Markup:
    middle = (y.begin + y.end) / 2
    return joined(
        *(
            joined(
                tag("line", x1=LEFT, x2=width - RIGHT, y1=y(tick), y2=y(tick), class_="grid"),
                tag("text", axis.label(tick), x=LEFT - 8, y=y(tick) + 4, text_anchor="end"),
            )
            for tick in axis.ticks
        ),
        tag("text", axis.unit, x=14, y=middle, class_="unit centred", transform=f"rotate(-90 14 {middle:.0f})"),
    )


def _marks(x: Scale, ticks: Mapping[int, str] | Mapping[float, str], unit: str) -> Markup:
    """The horizontal axis."""
    base = HEIGHT - BOTTOM
    return joined(
        *(
            joined(
                tag("line", x1=x(tick), x2=x(tick), y1=base, y2=base + 5, class_="axis"),
                tag("text", label, x=x(tick), y=base + 18, text_anchor="middle"),
            )
            for tick, label in ticks.items()
        ),
        tag("text", unit, x=(x.begin + x.end) / 2, y=HEIGHT - 6, class_="unit centred"),
    )


def _svg(title: str, *drawn: Markup, width: int = WIDTH, height: int = HEIGHT) -> Markup:
    style = "chart" if width == WIDTH else "chart half"
    return tag("svg", *drawn, viewBox=f"0 0 {width} {height}", role="img", aria_label=title, class_=style)
