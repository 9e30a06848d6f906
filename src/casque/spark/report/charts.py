"""SVG charts for the report: colours come from its style sheet, so they follow light and dark mode.

Every mark has a `title` that explains it on hover, which needs no script. The page shows a table beside each chart, so
no number is in a chart alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

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

WIDTH = 900
HEIGHT = 260
LEFT, RIGHT, TOP, BOTTOM = 72, 30, 14, 44
HEAT_DAYS_MAX = 62


class Line(msgspec.Struct, frozen=True):
    """One line of a chart: a value for each time, None for a gap."""

    name: str
    style: str
    """Its class in the style sheet."""
    points: tuple[tuple[int, float | None], ...]
    step_ms: int
    """The time span of a point, from its own time on."""
    filled: bool = False


def depth_chart(title: str, lines: Sequence[Line], period: Period) -> Markup:
    """Counts over time, from 0."""
    high = max((value for line in lines for _, value in line.points if value is not None), default=0)
    ticks = nice_ticks(high, whole=high >= 3)
    return _over_time(title, lines, period, Scale(0, ticks[-1], HEIGHT - BOTTOM, TOP), ticks, number, "jobs")


def share_chart(title: str, lines: Sequence[Line], period: Period, unit: str) -> Markup:
    """Values from 0 to 1 over time."""
    ticks = [0, 0.25, 0.5, 0.75, 1]
    return _over_time(title, lines, period, Scale(0, 1, HEIGHT - BOTTOM, TOP), ticks, lambda v: f"{v:g}", unit)


def span_chart(title: str, lines: Sequence[Line], period: Period) -> Markup | None:
    """Spans over time on a logarithmic axis: a second and an hour fit on one chart. None without any."""
    ends = bounds([value for line in lines for _, value in line.points])
    if ends is None:
        return None
    ticks = span_ticks(*ends)
    scale = Scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP, log=True)
    return _over_time(title, lines, period, scale, ticks, span, "time, logarithmic")


def _over_time(
    title: str,
    lines: Sequence[Line],
    period: Period,
    y: Scale,
    ticks: Sequence[float],
    label: Callable[[float], str],
    unit: str,
) -> Markup:
    x = Scale(period.from_ms, period.to_ms, LEFT, WIDTH - RIGHT)
    drawn = [_line(line, x, y, label) for line in lines]
    return _svg(title, HEIGHT, _grid(y, ticks, label, unit), _time_axis(x, period, HEIGHT), *drawn)


def _line(line: Line, x: Scale, y: Scale, label: Callable[[float], str]) -> Markup:
    half = line.step_ms / 2
    parts: list[Markup] = []
    dots: list[Markup] = []
    # A stretch without values is a gap, without a line across it.
    for there, run in groupby(line.points, key=lambda point: point[1] is not None):
        places = [(x(at + half), y(value), at, value) for at, value in run if there and value is not None]
        if not places:
            continue
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py, _, _ in places)
        if line.filled:
            floor = f"{y.begin:.1f}"
            area = f"{places[0][0]:.1f},{floor} {path} {places[-1][0]:.1f},{floor}"
            parts.append(tag("polygon", points=area, class_=f"area {line.style}"))
        parts.append(tag("polyline", points=path, class_=f"line {line.style}"))
        dots += [
            tag(
                "circle",
                tag("title", f"{line.name}: {label(value)}, {at_utc(at)} UTC"),
                cx=px,
                cy=py,
                r=2.5 if len(places) == 1 else 5,
                # Only a lone point is visible; the others only react to the pointer.
                class_=f"dot {line.style}" if len(places) == 1 else "ghost",
            )
            for px, py, at, value in places
        ]
    return joined(*parts, *dots)


def histogram(title: str, counts: dict[int, int]) -> Markup | None:
    """The distribution of spans, counted by the longest of each bar. None if there are none."""
    if not counts:
        return None
    spans = {most: max(float(most), 1.0) for most in counts}
    ticks = span_ticks(min(spans.values()), max(spans.values()))
    x = Scale(ticks[0], ticks[-1], LEFT, WIDTH - RIGHT, log=True)
    bars = 60
    width = (WIDTH - RIGHT - LEFT) / bars
    heights = [0] * bars
    for most, count in counts.items():
        heights[min(int((x(spans[most]) - LEFT) / width), bars - 1)] += count
    steps = nice_ticks(max(heights), whole=True)
    y = Scale(0, steps[-1], HEIGHT - BOTTOM, TOP)
    ratio = (ticks[-1] / ticks[0]) ** (1 / bars)
    drawn = [
        tag(
            "rect",
            tag("title", f"{span(ticks[0] * ratio**n)} to {span(ticks[0] * ratio ** (n + 1))}: {count:,}"),
            x=LEFT + n * width + 0.5,
            y=y(count),
            width=width - 1,
            height=max(y.begin - y(count), 0.8),
            class_="bar one",
        )
        for n, count in enumerate(heights)
        if count
    ]
    marks = [
        joined(
            tag("line", x1=x(tick), x2=x(tick), y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM + 5, class_="axis"),
            tag("text", span(tick), x=x(tick), y=HEIGHT - BOTTOM + 18, text_anchor="middle"),
        )
        for tick in ticks
    ]
    under = tag("text", "time, logarithmic", x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 6, class_="unit centred")
    return _svg(title, HEIGHT, _grid(y, steps, number, "how many"), *drawn, *marks, under)


def heat_map(title: str, values: Mapping[int, float], period: Period, label: Callable[[float], str]) -> Markup | None:
    """A row for each day and a column for each hour; values by the start of the hour. None without any."""
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
            drawn.append(
                tag(
                    "rect",
                    tag("title", f"{at_utc(hour)} UTC: {text}"),
                    x=LEFT + column * width + 1,
                    y=y + 1,
                    width=width - 2,
                    height=cell - 2,
                    rx=2,
                    class_=f"heat h{warmth}",
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
    return _svg(title, height, *drawn, *hours, unit)


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
    ticks = span_ticks(*ends)
    y = Scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP, log=True)
    shares = nice_ticks(max(spot.share for spot in spots) * 1.05)
    x = Scale(0, shares[-1], LEFT, WIDTH - RIGHT)
    most = max(spot.jobs for spot in spots)
    marks = [
        joined(
            tag("line", x1=x(tick), x2=x(tick), y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM + 5, class_="axis"),
            tag("text", percent(tick), x=x(tick), y=HEIGHT - BOTTOM + 18, text_anchor="middle"),
        )
        for tick in shares
    ]
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
    under = tag("text", "share of the run time", x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 6, class_="unit centred")
    return _svg(title, HEIGHT, _grid(y, ticks, span, "mean wait"), *marks, *drawn, *_names(spots, x, y, most), under)


def _radius(spot: Spot, most: int) -> float:
    return 4 + 10 * math.sqrt(spot.jobs / most)


def _names(spots: Sequence[Spot], x: Scale, y: Scale, most: int) -> list[Markup]:
    """Labels that have room beside their spot, the largest zones first."""
    taken: list[tuple[float, float, float, float]] = []
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


def _grid(y: Scale, ticks: Sequence[float], label: Callable[[float], str], unit: str) -> Markup:
    middle = (y.begin + y.end) / 2
    return joined(
        *(
            joined(
                tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(tick), y2=y(tick), class_="grid"),
                tag("text", label(tick), x=LEFT - 8, y=y(tick) + 4, text_anchor="end"),
            )
            for tick in ticks
        ),
        tag("text", unit, x=14, y=middle, class_="unit centred", transform=f"rotate(-90 14 {middle:.0f})"),
    )


def _time_axis(x: Scale, period: Period, height: int) -> Markup:
    base = height - BOTTOM
    return joined(
        tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base, class_="axis"),
        *(
            joined(
                tag("line", x1=x(tick), x2=x(tick), y1=base, y2=base + 5, class_="axis"),
                tag("text", time_label(tick, period), x=x(tick), y=base + 18, text_anchor="middle"),
            )
            for tick in time_ticks(period)
        ),
        tag("text", "time (UTC)", x=(LEFT + WIDTH - RIGHT) / 2, y=height - 6, class_="unit centred"),
    )


def _svg(title: str, height: int, *drawn: Markup) -> Markup:
    return tag(
        "svg",
        *drawn,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_label=title,
        class_="chart",
    )
