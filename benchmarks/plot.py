"""A small chart as SVG, both scales logarithmic. Written by hand: a plotting library is a lot for three lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 80, 200, 50, 60
COLOURS = ("#c2410c", "#0f766e", "#4338ca", "#64748b")


@dataclass(frozen=True)
class Curve:
    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Plot:
    title: str
    across: str
    up: str
    curves: Sequence[Curve] = field(default_factory=list)


class _Scale:
    """Powers of ten along an axis. Zero has no place on it, and is put one step before one."""

    def __init__(self, values: list[float], start: float, end: float, *, lowest: float) -> None:
        logs = [math.log10(max(value, lowest)) for value in values]
        self._lowest = lowest
        self.first, self.last = math.floor(min(logs)), max(math.ceil(max(logs)), math.floor(min(logs)) + 1)
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = (math.log10(max(value, self._lowest)) - self.first) / (self.last - self.first)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.first, self.last + 1)]


def drawn(plot: Plot) -> str:
    points = [point for curve in plot.curves for point in curve.points]
    x = _Scale([px for px, _ in points], LEFT, WIDTH - RIGHT, lowest=0.1)
    y = _Scale([py for _, py in points], HEIGHT - BOTTOM, TOP, lowest=1.0)
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {view}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 28, plot.title, size=16),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, plot.across, anchor="middle"),
        _text(LEFT, TOP - 8, plot.up, size=12),
        *(_line(LEFT, y.at(tick), WIDTH - RIGHT, y.at(tick)) for tick in y.ticks()),
        *(_text(LEFT - 8, y.at(tick) + 4, _named(tick), anchor="end") for tick in y.ticks()),
        *(_line(x.at(tick), TOP, x.at(tick), HEIGHT - BOTTOM) for tick in x.ticks()),
        *(_text(x.at(tick), HEIGHT - BOTTOM + 20, _named(tick), anchor="middle") for tick in x.ticks()),
    ]
    for number, curve in enumerate(plot.curves):
        parts += _curve(curve, COLOURS[number % len(COLOURS)], x, y)
    return "\n".join([*parts, "</svg>", ""])


def _curve(curve: Curve, colour: str, x: _Scale, y: _Scale) -> list[str]:
    places = [(x.at(px), y.at(py)) for px, py in curve.points]
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
    end_x, end_y = places[-1]
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>',
        *(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="{colour}"/>' for px, py in places),
        _text(end_x + 10, end_y + 4, curve.name, colour=colour),
    ]


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e2e8f0"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 13, colour: str = "#334155") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"'
    return f"<text {place}>{escape(text)}</text>"


def _named(tick: float) -> str:
    return f"{tick:,.0f}" if tick >= 1 else "0"
