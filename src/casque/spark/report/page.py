"""Renders the figures as one self-contained HTML document, without scripts.

A table is a tuple of columns, and a chart a tuple of lines: each says which attribute it shows, and how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from casque.spark.report import charts
from casque.spark.report.charts import Axis, Line, Spot
from casque.spark.report.figures import Figures, Named
from casque.spark.report.headline import WRITTEN, Comparison, Difference, EntrypointDifference, Unit, headlines
from casque.spark.report.markup import Child, Markup, joined, tag
from casque.spark.report.period import HOUR_MS, MINUTE_MS, Period, at_utc
from casque.spark.report.queries import EDGES_MS
from casque.spark.report.scales import dollars, index, number, percent, size, span
from casque.spark.report.style import CSS

ROWS_MAX = 15
WORKERS_MAX = 40
TABLE_MAX = 400
FAIR_HOURS_MAX = 31 * 24
ERROR_MAX = 240
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""With this policy a browser fetches nothing and runs nothing, whatever a name may contain."""


class Origin(msgspec.Struct, frozen=True):
    """Where the figures come from."""

    warehouse: str
    made_ms: int
    """When the report was made."""
    known: Period
    """The period that the warehouse covers."""
    queue: str = ""
    """Its URL without options; of older warehouses its id."""

    @property
    def name(self) -> str:
        return self.queue.rstrip("/").rpartition("/")[2] or self.queue


class Column(NamedTuple):
    """One column of a table."""

    name: str
    of: str | Callable[[Any], Any]
    """Path of the attribute that it shows, or what computes the value."""
    write: Callable[[Any], Child] = number
    bar: float | None = None
    """The value of a full bar below the number; 0 for the column's largest."""
    style: str = "n"

    def value(self, row: Any) -> Any:
        return attrgetter(self.of)(row) if isinstance(self.of, str) else self.of(row)


def _text(value: Any) -> Child:
    return str(value)


def _zone(name: str | None) -> str:
    return "no zone" if name is None else name


def _day(at_ms: int) -> str:
    return at_utc(at_ms)[5:16]


def _error(text: str | None) -> str:
    said = text or "–"
    return said if len(said) <= ERROR_MAX else f"{said[:ERROR_MAX]}…"


TIME = Column("time (UTC)", "at_ms", at_utc)
THROUGHPUT = (
    TIME,
    Column("enqueued", "tally.enqueued"),
    Column("finished", "tally.finished"),
    Column("done", "tally.done"),
    Column("died", "tally.died"),
    Column("cancelled", "tally.cancelled"),
    Column("attempts", "tally.attempts"),
    Column("attempts failed", "tally.failed"),
)
DEPTH = (
    TIME,
    Column("waiting", "waiting"),
    Column("waiting, most", "waiting_max"),
    Column("running", "running"),
    Column("scheduled", "scheduled"),
)
HOURS = (
    Column("hour (UTC)", "at_ms", at_utc),
    Column("finished", "tally.finished"),
    Column("wait, p90", "tally.wait.p90_ms", span),
    Column("attempts failed", "tally.attempt_failure_rate", percent),
)
SLOWEST = (
    Column("entrypoint", "name", _text),
    Column("attempts", "tally.attempts"),
    Column("run, median", "tally.run.p50_ms", span),
    Column("run, p90", "tally.run.p90_ms", span, 0),
    Column("run, p99", "tally.run.p99_ms", span),
    Column("longest", "tally.run.max_ms", span),
    Column("wait, p90", "tally.wait.p90_ms", span),
)
FAILING = (
    Column("entrypoint", "name", _text),
    Column("attempts", "tally.attempts"),
    Column("failed", "tally.failed"),
    Column("share of attempts", "tally.attempt_failure_rate", percent, 1, "n bad"),
    Column("done", "tally.done"),
    Column("died", "tally.died"),
    Column("retry rate", "tally.retry_rate", percent),
)
DEAD_LETTERS = (
    Column("error", lambda one: one.error_class or "no error given", _text),
    Column("entrypoint", "entrypoint", _text, style="text"),
    Column("jobs", "jobs", number, 0, "n bad"),
    Column(
        "the first of them",
        lambda one: joined(_error(one.sample_error), tag("span", f"job {one.sample_job}", class_="about")),
        lambda text: text,  # markup already
        style="text sample",
    ),
    Column("first (UTC)", "first_ms", _day),
    Column("last (UTC)", "last_ms", _day),
)
COST = (
    Column("zone", "zone", _zone),
    Column("operations", "operations"),
    Column("commits", "commits", lambda commits: number(round(commits, 1))),
    Column("payloads", "bytes", size),
    Column("dollars", "dollars", dollars, 0),
)
FAIR = (
    Column("hour (UTC)", "at_ms", at_utc),
    Column("zones", "fairness.zones"),
    Column("service", "fairness.jain_service", index),
    Column("waits", "fairness.jain_wait", index),
    Column("wait of the large", "fairness.large_wait_ms", span),
    Column("wait of the small", "fairness.small_wait_ms", span),
    Column("ratio", "fairness.small_to_large"),
)


def page(figures: Figures, origin: Origin, comparison: Comparison | None = None, before: Figures | None = None) -> str:
    """The whole document."""
    sections = list(_sections(figures, origin, comparison, before))
    head = tag(
        "head",
        Markup('<meta charset="utf-8"/>'),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1"/>'),
        Markup('<link rel="icon" href="data:,"/>'),
        tag("title", f"casque report: {origin.name}, {figures.period}"),
        tag("style", Markup(CSS)),
    )
    nav = tag("nav", *(tag("a", one.short, href=f"#{one.key}") for one in sections), aria_label="sections")
    facts = {
        "queue": origin.queue,
        "period": str(figures.period),
        "warehouse": origin.warehouse,
        "knows about": str(origin.known),
        "made": f"{at_utc(origin.made_ms // MINUTE_MS * MINUTE_MS)} UTC",
    }
    listed = (tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items() if value)
    header = tag("header", tag("h1", f"casque report: {origin.name}"), tag("dl", *listed, class_="facts"))
    footer = tag("footer", tag("p", f"All times are UTC. {_known(origin)} Numbers come from the warehouse's tables."))
    body = tag("body", header, tag("main", nav, *(one.markup for one in sections)), footer)
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


# --- The sections ---


class Section(NamedTuple):
    key: str
    short: str
    """Its name in the list of sections."""
    markup: Markup


def _sections(
    figures: Figures, origin: Origin, comparison: Comparison | None, before: Figures | None
) -> Iterable[Section]:
    view = View(figures, min(figures.period.to_ms, origin.known.to_ms))
    if figures.empty:
        hint = "Choose another with --from and --to."
        nothing = _nothing(f"Nothing happened in this period. {_known(origin)} {hint}")
        yield _section("figures", "At a glance", "At a glance", "", nothing)
    else:
        yield _section("figures", "At a glance", "At a glance", "", _tiles(figures))
    if comparison is not None:
        earlier = None if before is None else View(before, min(before.period.to_ms, origin.known.to_ms))
        yield _comparison(comparison, view, earlier)
    if figures.empty:
        return
    yield _throughput(view)
    yield _depth(view)
    yield _latency(view)
    if len(figures.period.hours) > 2:
        yield _heat(view)
    yield _entrypoints(figures)
    yield _section(
        "dead",
        "Dead letters",
        "Dead letters by error",
        "Jobs that ran out of attempts, by the class of their last error.",
        _rows_or("No job died in this period.", DEAD_LETTERS, figures.dead_letters[: 2 * ROWS_MAX]),
    )
    yield _workers(figures)
    if figures.fairness.zones > 1:
        yield _zones(view)
    if figures.costs:
        yield _cost(figures)


def _tiles(figures: Figures) -> Markup:
    tiles = (
        tag(
            "div",
            tag("dt", one.name),
            tag("dd", str(one), tag("span", one.about, class_="about")),
            class_="tile",
        )
        for one in headlines(figures)
        if one.value is not None
    )
    return tag("dl", *tiles, class_="tiles")


class View(NamedTuple):
    """The figures of a period, and until when its steps are known."""

    figures: Figures
    known_ms: int

    @property
    def period(self) -> Period:
        return self.figures.period

    @property
    def step(self) -> str:
        written = span(self.period.step_ms)
        return {"1 s": "second", "1 min": "minute", "1 h": "hour", "24 h": "day"}.get(written, written)

    def line(
        self,
        name: str,
        style: str,
        rows: Iterable[Any],
        path: str,
        note: str = "",
        *,
        empty: float | None = None,
        per_ms: int = 0,
        filled: bool = False,
    ) -> Line:
        """An attribute over the steps, `empty` where there is no row; `per_ms` makes a count a rate."""
        of = attrgetter(path)
        there = {row.at_ms: of(row) for row in rows}
        factor = per_ms / self.period.step_ms if per_ms else 1
        points = ((at, there.get(at, empty) if at < self.known_ms else None) for at in self.period.steps)
        scaled = tuple((at, None if value is None else value * factor) for at, value in points)
        return Line(name, style, scaled, note, filled)

    def chart(
        self, title: str, lines: Sequence[Line], axis: Axis, columns: Sequence[Column], rows: Sequence[Any]
    ) -> Markup:
        drawn = charts.over_time(title, lines, axis, self.period, self.known_ms)
        return _figure(drawn, _legend(lines), _data(columns, rows))


def _throughput(view: View) -> Section:
    total, rows = view.figures.total, view.figures.over_time
    each = [("enqueued", "four", False), ("finished", "one", True), ("failed", "two", False), ("died", "bad", True)]
    lines = []
    for name, style, filled in each:
        counted = getattr(total, name)
        most = max((getattr(row.tally, name) for row in rows), default=0)
        note = f"{number(counted)}, at most {number(most)} per {view.step}"
        title = "attempts failed" if name == "failed" else "jobs died" if name == "died" else name
        lines.append(view.line(title, style, rows, f"tally.{name}", note, empty=0, filled=filled))
    done, failed = lines[:2], lines[2:]
    failures = joined(tag("h3", "Failures"), _nothing("No attempt failed in this period."))
    if total.failed or total.died:
        axis = charts.counts(failed, f"per {view.step}")
        failures = joined(
            tag("h3", "Failures"),
            _figure(
                charts.over_time("Failed attempts and jobs that died", failed, axis, view.period, view.known_ms),
                _legend(failed),
            ),
        )
    axis = charts.counts(done, f"jobs per {view.step}")
    return _section(
        "throughput",
        "Throughput",
        "Throughput and failures",
        f"How many jobs and attempts, per {view.step}.",
        view.chart("Jobs enqueued and finished", done, axis, THROUGHPUT, rows),
        failures,
    )


def _depth(view: View) -> Section:
    rows, now = view.figures.depth, view.figures.standing
    lines = []
    for name, style in (("waiting", "one"), ("running", "two"), ("scheduled", "three")):
        mean = sum(getattr(row, name) for row in rows) / max(len(rows), 1)
        most = f", at most {number(view.figures.depth_max)}" if name == "waiting" else ""
        note = f"{number(mean)} on average{most}, {number(getattr(now, name))} at the end"
        lines.append(view.line(name, style, rows, name, note, filled=name == "waiting"))
    return _section(
        "depth",
        "Depth",
        "Depth over time",
        f"Jobs in the queue, on average per {view.step}. Waiting: due and not running. Scheduled: not due yet.",
        view.chart("Jobs waiting, running and scheduled over time", lines, charts.counts(lines, "jobs"), DEPTH, rows),
    )


def _latency(view: View) -> Section:
    parts: list[Markup] = []
    for title, about, name, counted in (
        ("Wait", "From due to first claimed, of the jobs that finished.", "wait", view.figures.wait_histogram),
        ("Run time", "From claimed to ended, of every attempt.", "run", view.figures.run_histogram),
    ):
        parts += [tag("h3", title), tag("p", about, class_="soft")]
        columns = (
            TIME,
            Column("how many", f"tally.{name}.count"),
            *(Column(word, f"tally.{name}.{word}_ms", span) for word in ("p50", "p90", "p99")),
            Column("longest", f"tally.{name}.max_ms", span),
        )
        rows = [row for row in view.figures.over_time if getattr(row.tally, name).count]
        lines = [
            view.line(label, style, rows, f"tally.{name}.{word}_ms", span(getattr(_of(view, name), f"{word}_ms")))
            for label, style, word in (("p99", "two", "p99"), ("p90", "four", "p90"), ("median", "one", "p50"))
        ]
        axis = charts.spans(lines)
        bars = charts.histogram(f"{title}: how often which span occurred", counted, EDGES_MS)
        if axis is None or bars is None:
            parts.append(_nothing("Nothing was measured in this period."))
        else:
            parts += [view.chart(f"{title}: median, p90 and p99", lines, axis, columns, rows), _figure(bars)]
    about = f"Percentiles are true to 2 % of the rank. One point per {view.step}; beside the names, the whole period."
    return _section("latency", "Latency", "Latency", about, *parts)


def _of(view: View, name: str) -> Any:
    return getattr(view.figures.total, name)


def _heat(view: View) -> Section:
    hours, period = view.figures.hours, view.period
    finished = {row.at_ms: float(row.tally.finished) for row in hours if row.tally.finished}
    waits = {row.at_ms: row.tally.wait.p90_ms for row in hours if row.tally.wait.p90_ms is not None}
    maps = [
        ("Finished jobs", charts.heat_map("Finished jobs by hour", finished, period, view.known_ms, number)),
        ("p90 of the wait", charts.heat_map("p90 of the wait by hour", waits, period, view.known_ms, span)),
    ]
    return _section(
        "heat",
        "By hour",
        "By hour",
        "The darker, the more (in a dark page, the brighter); a dashed border marks an hour that is not complete. "
        f"At most the last {charts.HEAT_DAYS_MAX} days.",
        *(joined(tag("h3", title), _figure(drawn)) for title, drawn in maps if drawn is not None),
        _data(HOURS, hours),
    )


def _entrypoints(figures: Figures) -> Section:
    ran = [one for one in figures.entrypoints if one.tally.run.p90_ms is not None]
    slowest = sorted(ran, key=lambda one: -(one.tally.run.p90_ms or 0))[:ROWS_MAX]
    failing = sorted(
        (one for one in figures.entrypoints if one.tally.failed),
        key=lambda one: (-(one.tally.attempt_failure_rate or 0), -one.tally.failed),
    )[:ROWS_MAX]
    return _section(
        "entrypoints",
        "Entrypoints",
        "Entrypoints",
        f"{number(len(figures.entrypoints))} in this period; at most {ROWS_MAX} are shown.",
        tag("h3", "The slowest, by p90 of the run time"),
        _rows_or("Nothing ran in this period.", SLOWEST, slowest),
        tag("h3", "The most failing, by share of attempts"),
        _rows_or("No attempt failed in this period.", FAILING, failing),
    )


def _workers(figures: Figures) -> Section:
    columns = (
        Column("worker", lambda use: use.worker or "without a name", _text),
        Column("utilisation", "utilisation", percent, 1),
        Column("busy", "busy_ms", span),
        Column("attempts", "attempts"),
        Column("failed", "failed"),
        Column(
            "over time",
            lambda use: charts.strip(use.over_time, figures.period, use.worker or "workers without a name"),
            lambda drawn: drawn,
            style="drawn",
        ),
    )
    return _section(
        "workers",
        "Workers",
        "Worker utilisation",
        "The share of the period in which a worker had a job; more than 100 % if it had several at once."
        + _left_out(len(figures.workers), WORKERS_MAX, "workers"),
        _rows_or("No worker had a job in this period.", columns, figures.workers[:WORKERS_MAX]),
    )


def _zones(view: View) -> Section:
    figures, f = view.figures, view.figures.fairness
    served = [one for one in figures.zones if one.tally.finished]
    work = max(figures.total.run.sum_ms, 1)
    others = figures.other_zones
    rest = [Named(f"{number(f.zones - len(served))} other zones", others)] if others and others.finished else []
    columns = (
        Column("zone", "name", _zone),
        Column("finished", "tally.finished"),
        Column("share of run time", lambda one: one.tally.run.sum_ms / work, percent, 1),
        Column("wait, mean", "tally.wait.mean_ms", span),
        Column("wait, median", "tally.wait.p50_ms", span),
        Column("wait, p90", "tally.wait.p90_ms", span),
        Column("attempts failed", "tally.attempt_failure_rate", percent),
    )
    spots = [
        Spot(_zone(one.name), one.tally.run.sum_ms / work, one.tally.wait.mean_ms, one.tally.finished)
        for one in served
        if one.tally.wait.mean_ms is not None
    ]
    cloud = charts.scatter("Zones: share of the run time against mean wait", spots)
    hours = figures.period.hours[-FAIR_HOURS_MAX:]
    by_hour = View(msgspec.structs.replace(figures, period=Hours(hours[0], hours[-1] + HOUR_MS)), view.known_ms)
    lines = [
        by_hour.line("run time", "one", figures.fair_hours, "fairness.jain_service", index(f.jain_service)),
        by_hour.line("waits", "two", figures.fair_hours, "fairness.jain_wait", index(f.jain_wait)),
    ]
    large = "the largest zone" if f.large_zones == 1 else f"the {number(f.large_zones)} largest zones"
    about = (
        "The share of each zone in the service, and how long its jobs wait for it. "
        f"Jain's index of the run time is {index(f.jain_service)} between {number(f.zones)} zones, of their "
        f"mean waits {index(f.jain_wait)}: 1 is even, {number(1 / f.zones)} means that one has all. "
        f"Jobs of {large} waited {span(f.large_wait_ms)} on average, those of the others {span(f.small_wait_ms)}"
    )
    parts = [_figure(cloud)] if cloud is not None else []
    parts.append(_long(columns, [*served, *rest]))
    if len(figures.fair_hours) > 1:
        late = ", the last 31 days" if len(figures.period.hours) > FAIR_HOURS_MAX else ""
        title = "Jain's index between zones by hour"
        fair = by_hour.chart(title, lines, charts.shares("Jain's index"), FAIR, figures.fair_hours)
        parts += [tag("h3", f"Evenness between zones, hour by hour{late}"), fair]
    ratio = f": {number(f.small_to_large)} times as long." if f.small_to_large is not None else "."
    return _section("zones", "Zones", "Noisy neighbours", about + ratio, *parts)


class Hours(Period, frozen=True):
    """A period whose steps are hours."""

    @property
    def step_ms(self) -> int:
        return HOUR_MS


def _cost(figures: Figures) -> Section:
    rows, other, hours = figures.costs, figures.other_costs, figures.period.hours
    rest = [msgspec.structs.replace(other, zone=f"{number(other.zones)} other zones")] if other else []
    return _section(
        "cost",
        "Cost",
        "Cost by zone" if len(rows) > 1 else "Cost",
        f"Operations, and each zone's share of the queue's write requests. By whole hours, from {at_utc(hours[0])} to "
        f"{at_utc(hours[-1] + hours.step)} UTC. All together {dollars(figures.dollars)} for "
        f"{number(round(figures.commits, 1))} commits.",
        _long(COST, [*rows, *rest]),
    )


# --- Two periods ---


def _comparison(comparison: Comparison, after: View, before: View | None) -> Section:
    headline = (
        Column("", "name", _text),
        Column("before", lambda one: WRITTEN[one.unit](one.before), _text),
        Column("after", lambda one: WRITTEN[one.unit](one.after), _text),
        Column("difference", _signed, _text),
        Column("ratio", _ratio, _text),
    )
    names = [one.name for one in comparison.entrypoints[0].differences] if comparison.entrypoints else []
    entrypoints = [Column("entrypoint", "entrypoint", _text)]
    for n, name in enumerate(names):
        of = partial(_nth, n)
        entrypoints += [Column(name, of, _short), Column("ratio", of, _ratio)]
    return _section(
        "comparison",
        "Comparison",
        "Comparison of two periods",
        f"Before: {comparison.before}. After: {comparison.after}.",
        *([_side_by_side(before, after)] if before is not None else []),
        _wide(
            _table(headline, [one for one in comparison.headline if one.before is not None or one.after is not None])
        ),
        tag("h3", "By entrypoint: before → after"),
        _rows_or("No entrypoint had jobs in either period.", entrypoints, comparison.entrypoints[:ROWS_MAX]),
    )


def _side_by_side(before: View, after: View) -> Markup:
    """The same chart of both periods, with the same axis."""
    both, parts = (("Before", before), ("After", after)), []
    for title, path, style, per_ms in (
        ("Finished jobs per minute", "tally.finished", "one", MINUTE_MS),
        ("Failed attempts per minute", "tally.failed", "two", MINUTE_MS),
        ("p90 of the wait", "tally.wait.p90_ms", "four", 0),
    ):
        empty = 0 if per_ms else None
        lines = [
            view.line(title, style, view.figures.over_time, path, empty=empty, per_ms=per_ms, filled=bool(per_ms))
            for _, view in both
        ]
        axis = charts.counts(lines, "per minute") if per_ms else charts.spans(lines)
        if axis is None:
            continue
        drawn = (
            tag(
                "figure",
                tag("figcaption", f"{name}: {title[0].lower() + title[1:]}"),
                _wide(
                    charts.over_time(f"{title}, {name.lower()}", [line], axis, view.period, view.known_ms, half=True)
                ),
            )
            for (name, view), line in zip(both, lines, strict=True)
        )
        parts.append(tag("div", *drawn, class_="pair"))
    return joined(*parts)


def _nth(n: int, one: EntrypointDifference) -> Difference:
    return one.differences[n]


def _short(one: Difference) -> str:
    written = WRITTEN[one.unit]
    return f"{written(one.before)} → {written(one.after)}"


def _signed(one: Difference) -> str:
    if one.difference is None:
        return "–"
    sign = "+" if one.difference > 0 else "−" if one.difference < 0 else "±"
    if one.unit is Unit.SHARE:
        return f"{sign}{number(abs(one.difference) * 100)} points"
    return f"{sign}{WRITTEN[one.unit](abs(one.difference))}"


def _ratio(one: Difference) -> str:
    if one.ratio is None:
        return "–"
    return f"× {one.ratio:.2f}" if one.ratio >= 0.1 or one.ratio == 0 else f"× {one.ratio:.2g}"


# --- Building blocks of sections ---


def _section(key: str, short: str, title: str, about: str, *children: Markup) -> Section:
    said = tag("p", about, class_="soft") if about else None
    return Section(key, short, tag("section", tag("h2", title), said, *children, id=key))


def _figure(chart: Markup, *beside: Markup) -> Markup:
    return tag("figure", _wide(chart), *beside)


def _wide(child: Markup) -> Markup:
    """Scrolls by itself in a narrow window, instead of widening the page."""
    return tag("div", child, class_="wide", tabindex=0)


def _legend(lines: Iterable[Line]) -> Markup:
    items = (tag("li", tag("i", class_=line.style), line.name, tag("b", line.note)) for line in lines)
    return tag("ul", *items, class_="legend")


def _data(columns: Sequence[Column], rows: Sequence[Any], what: str = "Numbers") -> Markup:
    """The numbers of a chart as a table, for screen readers and for exact values."""
    left = f"{what} ({len(rows)} rows)" if len(rows) <= TABLE_MAX else f"{what} (the last {TABLE_MAX} rows)"
    return tag("details", tag("summary", left), _wide(_table(columns, rows[-TABLE_MAX:])))


def _long(columns: Sequence[Column], rows: Sequence[Any]) -> Markup:
    """A table of which some rows are always visible, and all if it is unfolded."""
    if len(rows) <= 2 * ROWS_MAX:
        return _wide(_table(columns, rows))
    return joined(_wide(_table(columns, rows[:ROWS_MAX])), _data(columns, rows, "All of them"))


def _rows_or(nothing: str, columns: Sequence[Column], rows: Sequence[Any]) -> Markup:
    return _wide(_table(columns, rows)) if rows else _nothing(nothing)


def _table(columns: Sequence[Column], rows: Sequence[Any]) -> Markup:
    """Rows begin with a name."""
    first, *rest = columns
    most = {one.name: max((one.value(row) or 0 for row in rows), default=0) for one in rest if one.bar == 0}
    head = (tag("th", one.name, scope="col", class_=None if one is first else one.style) for one in columns)
    body = (
        tag(
            "tr",
            tag("th", first.write(first.value(row)), scope="row"),
            *(_cell(one, one.value(row), most.get(one.name, one.bar)) for one in rest),
        )
        for row in rows
    )
    return tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body))


def _cell(column: Column, value: Any, most: float | None) -> Markup:
    bar = None
    if most is not None:
        share = min(max((value or 0) / most, 0), 1) if most else 0
        bar = tag("span", tag("i", style=f"width:{share * 100:.0f}%"), class_="meter", aria_hidden="true")
    return tag("td", column.write(value), bar, class_=column.style)


def _nothing(text: str) -> Markup:
    return tag("p", text, class_="none")


def _left_out(there: int, shown_: int, what: str) -> str:
    return f" {number(there - shown_)} more {what} are left out here." if there > shown_ else ""


def _known(origin: Origin) -> str:
    return f"The warehouse knows about {origin.known}."
