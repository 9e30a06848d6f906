"""Renders the figures as one self-contained HTML document, without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from casque.spark.report import charts
from casque.spark.report.charts import Line, Spot
from casque.spark.report.figures import Fairness, Figures, Moment, Spread
from casque.spark.report.headline import WRITTEN, Comparison, Difference, Unit, headlines
from casque.spark.report.markup import Child, Markup, joined, tag
from casque.spark.report.period import HOUR_MS, Period, at_utc
from casque.spark.report.scales import dollars, index, number, percent, size, span
from casque.spark.report.style import CSS

ROWS_MAX = 15
ZONES_MAX = 40
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


def page(figures: Figures, origin: Origin, comparison: Comparison | None = None, before: Figures | None = None) -> str:
    """The whole document."""
    sections = [
        _section("figures", "At a glance", "", _tiles(figures)),
        *([_comparison(comparison)] if comparison is not None else []),
        _depth(figures),
        _latency(figures),
        _heat(figures),
        _entrypoints(figures),
        _dead_letters(figures),
        _workers(figures),
        _zones(figures),
        _cost(figures),
    ]
    if figures.empty:
        nothing = tag("p", f"Nothing happened in this period. {_known(origin)}", class_="none")
        sections = [_section("figures", "At a glance", "", nothing), *sections[1 : 1 + (comparison is not None)]]
    head = tag(
        "head",
        Markup('<meta charset="utf-8"/>'),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1"/>'),
        Markup('<link rel="icon" href="data:,"/>'),
        tag("title", f"casque report: {figures.period}"),
        tag("style", Markup(CSS)),
    )
    links = [one for one in _LINKS if not figures.empty or one[0] in ("figures", "comparison")]
    nav = tag(
        "nav",
        *(tag("a", name, href=f"#{key}") for key, name in links if comparison is not None or key != "comparison"),
        aria_label="sections",
    )
    body = tag("body", _header(figures, origin), tag("main", nav, *sections), _footer(origin))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


_LINKS = (
    ("figures", "At a glance"),
    ("comparison", "Comparison"),
    ("depth", "Depth"),
    ("latency", "Latency"),
    ("heat", "By hour"),
    ("entrypoints", "Entrypoints"),
    ("dead", "Dead letters"),
    ("workers", "Workers"),
    ("zones", "Zones"),
    ("cost", "Cost"),
)


# --- The sections ---


def _header(figures: Figures, origin: Origin) -> Markup:
    facts = {
        "period": str(figures.period),
        "warehouse": origin.warehouse,
        "knows about": str(origin.known),
        "made": f"{at_utc(origin.made_ms)} UTC",
    }
    listed = (tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items())
    return tag("header", tag("h1", "casque report"), tag("dl", *listed, class_="facts"))


def _tiles(figures: Figures) -> Markup:
    tiles = (
        tag(
            "div",
            tag("dt", one.name),
            tag("dd", str(one), tag("span", one.about, class_="about")),
            class_="tile",
        )
        for one in headlines(figures)
    )
    return tag("dl", *tiles, class_="tiles")


def _comparison(comparison: Comparison) -> Markup:
    total = _table(
        ("", "before", "after", "difference", "ratio"),
        [(one.name, *_compared(one)) for one in comparison.headline],
    )
    columns = comparison.entrypoints[0].differences if comparison.entrypoints else ()
    by_entrypoint = _table(
        ("entrypoint", *(name for one in columns for name in (one.name, "ratio"))),
        [
            (one.entrypoint, *(cell for each in one.differences for cell in _short(each)))
            for one in comparison.entrypoints[:ROWS_MAX]
        ],
    )
    return _section(
        "comparison",
        "Comparison of two periods",
        f"Before: {comparison.before}. After: {comparison.after}.",
        _wide(total),
        tag("h3", "By entrypoint: before → after"),
        _wide(by_entrypoint) if comparison.entrypoints else _nothing("No entrypoint had jobs in either period."),
    )


def _depth(figures: Figures) -> Markup:
    step_ms = figures.period.step_ms
    lines = [
        Line("waiting", "one", tuple((d.at_ms, d.waiting) for d in figures.depth), step_ms, filled=True),
        Line("running", "two", tuple((d.at_ms, d.running) for d in figures.depth), step_ms),
        Line("scheduled", "three", tuple((d.at_ms, d.scheduled) for d in figures.depth), step_ms),
    ]
    return _section(
        "depth",
        "Depth over time",
        f"Jobs in the queue, on average over {span(figures.period.step_ms)}. Waiting: due and not running. "
        "Scheduled: not due yet.",
        _figure(
            charts.depth_chart("Jobs waiting, running and scheduled over time", lines, figures.period),
            _legend(lines),
            _data(
                ("time (UTC)", "waiting", "waiting, most", "running", "scheduled"),
                [
                    (at_utc(d.at_ms), number(d.waiting), number(d.waiting_max), number(d.running), number(d.scheduled))
                    for d in figures.depth
                ],
            ),
        ),
    )


def _latency(figures: Figures) -> Markup:
    parts: list[Markup] = []
    for title, about, of, counts in (
        ("Wait", "From due to first claimed, of the jobs that finished.", _wait, figures.wait_histogram),
        ("Run time", "From claimed to ended, of every attempt.", _run, figures.run_histogram),
    ):
        parts.append(tag("h3", title))
        parts.append(tag("p", about, class_="soft"))
        lines = _percentile_lines(figures, of)
        over_time = charts.span_chart(f"{title} over time: median, p90 and p99", lines, figures.period)
        bars = charts.histogram(f"{title}: how often which span occurred", counts)
        if over_time is None or bars is None:
            parts.append(_nothing("Nothing was measured in this period."))
            continue
        rows = [
            (at_utc(m.at_ms), number(s.count), span(s.p50_ms), span(s.p90_ms), span(s.p99_ms), span(s.max_ms))
            for m in figures.over_time
            if (s := of(m)).count
        ]
        names = ("time (UTC)", "how many", "median", "p90", "p99", "longest")
        parts += [_figure(over_time, _legend(lines), _data(names, rows)), _figure(bars)]
    return _section(
        "latency",
        "Latency",
        f"Percentiles come from sketches that were merged, and are true to 2 % of the rank. A point stands for "
        f"{span(figures.period.step_ms)}.",
        *parts,
    )


def _wait(moment: Moment) -> Spread:
    return moment.tally.wait


def _run(moment: Moment) -> Spread:
    return moment.tally.run


def _percentile_lines(figures: Figures, of: Callable[[Moment], Spread]) -> list[Line]:
    step_ms = figures.period.step_ms
    there = {moment.at_ms: of(moment) for moment in figures.over_time}
    steps = [(step, there.get(step, Spread())) for step in figures.period.steps]
    return [
        Line("p99", "two", tuple((step, spread.p99_ms) for step, spread in steps), step_ms, filled=True),
        Line("p90", "four", tuple((step, spread.p90_ms) for step, spread in steps), step_ms, filled=True),
        Line("median", "one", tuple((step, spread.p50_ms) for step, spread in steps), step_ms, filled=True),
    ]


def _heat(figures: Figures) -> Markup:
    finished = {m.at_ms: float(m.tally.finished) for m in figures.hours if m.tally.finished}
    waits = {m.at_ms: m.tally.wait.p90_ms for m in figures.hours if m.tally.wait.p90_ms is not None}
    jobs_map = charts.heat_map("Finished jobs by day and hour", finished, figures.period, number)
    waits_map = charts.heat_map("p90 of the wait by day and hour", waits, figures.period, span)
    rows = [
        (at_utc(m.at_ms), number(m.tally.finished), span(m.tally.wait.p90_ms), percent(m.tally.attempt_failure_rate))
        for m in figures.hours
    ]
    return _section(
        "heat",
        "By hour",
        f"The darker, the more (in a dark page, the brighter). At most the last {charts.HEAT_DAYS_MAX} days.",
        tag("h3", "Finished jobs"),
        _figure(jobs_map) if jobs_map is not None else _nothing("No job finished in this period."),
        tag("h3", "p90 of the wait"),
        _figure(waits_map, _data(("hour (UTC)", "finished", "wait, p90", "attempts failed"), rows))
        if waits_map is not None
        else _nothing("Nothing was measured in this period."),
    )


def _entrypoints(figures: Figures) -> Markup:
    ran = [one for one in figures.entrypoints if one.tally.run.p90_ms is not None]
    slowest = sorted(ran, key=lambda one: -(one.tally.run.p90_ms or 0))[:ROWS_MAX]
    failing = sorted(
        (one for one in figures.entrypoints if one.tally.failed),
        key=lambda one: (-(one.tally.attempt_failure_rate or 0), -one.tally.failed),
    )[:ROWS_MAX]
    longest = max((one.tally.run.p90_ms or 0 for one in slowest), default=0)
    return _section(
        "entrypoints",
        "Entrypoints",
        f"{number(len(figures.entrypoints))} in this period; at most {ROWS_MAX} are shown.",
        tag("h3", "The slowest, by p90 of the run time"),
        _wide(
            _table(
                ("entrypoint", "attempts", "run, median", "run, p90", "run, p99", "longest", "wait, p90"),
                [
                    (
                        one.name,
                        number(one.tally.attempts),
                        span(one.tally.run.p50_ms),
                        _meter(span(one.tally.run.p90_ms), one.tally.run.p90_ms, longest),
                        span(one.tally.run.p99_ms),
                        span(one.tally.run.max_ms),
                        span(one.tally.wait.p90_ms),
                    )
                    for one in slowest
                ],
            )
        )
        if slowest
        else _nothing("Nothing ran in this period."),
        tag("h3", "The most failing, by share of attempts"),
        _wide(
            _table(
                ("entrypoint", "attempts", "failed", "share of attempts", "done", "dead", "retry rate"),
                [
                    (
                        one.name,
                        number(one.tally.attempts),
                        number(one.tally.failed),
                        _meter(percent(one.tally.attempt_failure_rate), one.tally.attempt_failure_rate, 1, bad=True),
                        number(one.tally.done),
                        number(one.tally.dead),
                        percent(one.tally.retry_rate),
                    )
                    for one in failing
                ],
            )
        )
        if failing
        else _nothing("No attempt failed in this period."),
    )


def _dead_letters(figures: Figures) -> Markup:
    letters = figures.dead_letters
    most = max((one.jobs for one in letters), default=0)
    rows = [
        (
            one.error_class or "no error given",
            _Text(one.entrypoint),
            _meter(number(one.jobs), one.jobs, most, bad=True),
            _Sample(joined(_cut(one.sample_error or "–"), tag("span", f"job {one.sample_job}", class_="about"))),
            at_utc(one.first_ms)[5:],
            at_utc(one.last_ms)[5:],
        )
        for one in letters[: 2 * ROWS_MAX]
    ]
    names = ("error", "entrypoint", "jobs", "the first of them", "first (UTC)", "last (UTC)")
    return _section(
        "dead",
        "Dead letters by error",
        "Jobs that ran out of attempts, by the kind of their last error.",
        _wide(_table(names, rows)) if rows else _nothing("No job died in this period."),
    )


def _workers(figures: Figures) -> Markup:
    shown_ = figures.workers[:WORKERS_MAX]
    rows = [
        (
            use.worker or "without a name",
            _meter(percent(use.utilisation), use.utilisation, 1),
            span(use.busy_ms),
            number(use.attempts),
            number(use.failed),
            _Drawn(charts.strip(use.over_time, figures.period, use.worker or "workers without a name")),
        )
        for use in shown_
    ]
    names = ("worker", "utilisation", "busy", "attempts", "failed", "over time")
    return _section(
        "workers",
        "Worker utilisation",
        "The share of the period in which a worker had a job; more than 100 % if it had several at once."
        + _left_out(len(figures.workers), len(shown_), "workers"),
        _wide(_table(names, rows)) if rows else _nothing("No worker had a job in this period."),
    )


def _zones(figures: Figures) -> Markup:
    f = figures.fairness
    served = [one for one in figures.zones if one.tally.finished]
    work = sum(one.tally.run.sum_ms for one in figures.zones)
    spots = [
        Spot(_zone(one.name), one.tally.run.sum_ms / work, one.tally.wait.mean_ms, one.tally.finished)
        for one in served
        if one.tally.wait.mean_ms is not None and work
    ]
    cloud = charts.scatter("Zones: share of the run time against mean wait", spots)
    if not served or cloud is None:
        return _section("zones", "Noisy neighbours", "", _nothing("No zone had jobs in this period."))
    hours = {hour.at_ms: hour.fairness for hour in figures.fair_hours}
    last = _last_hours(figures.period)
    by_hour = [(at, hours.get(at, Fairness())) for at in last.hours]
    lines = [
        Line("run time", "one", tuple((at, one.jain_service) for at, one in by_hour), HOUR_MS),
        Line("waits", "two", tuple((at, one.jain_wait) for at, one in by_hour), HOUR_MS),
    ]
    even = (
        f"Jain's index of the run time is {index(f.jain_service)} between {number(f.zones)} zones, of their "
        f"mean waits {index(f.jain_wait)}: 1 is even, {index(1 / f.zones)} means that one has all. "
    )
    late = ", the last 31 days" if len(figures.period.hours) > FAIR_HOURS_MAX else ""
    large = "the largest zone" if f.large_zones == 1 else f"the {number(f.large_zones)} largest zones"
    apart = (
        f"Jobs of {large} waited {span(f.large_wait_ms)} on average, those of the others "
        f"{span(f.small_wait_ms)}"
        + (f": {number(f.small_to_large)} times as long." if f.small_to_large is not None else ".")
    )
    rows = [
        (
            _zone(one.name),
            number(one.tally.finished),
            _meter(percent(one.tally.run.sum_ms / work if work else None), one.tally.run.sum_ms, work),
            span(one.tally.wait.mean_ms),
            span(one.tally.wait.p50_ms),
            span(one.tally.wait.p90_ms),
            percent(one.tally.attempt_failure_rate),
        )
        for one in served[:ZONES_MAX]
    ]
    names = ("zone", "finished", "share of run time", "wait, mean", "wait, median", "wait, p90", "attempts failed")
    fair = _figure(
        charts.share_chart("Jain's index between zones by hour", lines, last, "Jain's index"),
        _legend(lines),
        _data(
            ("hour (UTC)", "zones", "service", "waits", "wait of the large", "wait of the small", "ratio"),
            [
                (
                    at_utc(hour.at_ms),
                    number(hour.fairness.zones),
                    index(hour.fairness.jain_service),
                    index(hour.fairness.jain_wait),
                    span(hour.fairness.large_wait_ms),
                    span(hour.fairness.small_wait_ms),
                    number(hour.fairness.small_to_large),
                )
                for hour in figures.fair_hours
            ],
        ),
    )
    return _section(
        "zones",
        "Noisy neighbours",
        "Who gets how much of the service, and who waits for it. " + even + apart,
        _figure(cloud),
        _wide(_table(names, rows)),
        tag("p", _left_out(len(served), len(rows), "zones").strip() or None, class_="soft"),
        tag("h3", f"Evenness between zones, hour by hour{late}"),
        fair if figures.fair_hours else _nothing("No job finished in this period."),
    )


def _cost(figures: Figures) -> Markup:
    dearest = max((one.dollars for one in figures.costs), default=0)
    rows = [
        (
            _zone(one.zone),
            number(one.operations),
            number(round(one.commits, 1)),
            size(one.bytes),
            _meter(dollars(one.dollars), one.dollars, dearest),
        )
        for one in figures.costs[:ZONES_MAX]
    ]
    hours = figures.period.hours
    return _section(
        "cost",
        "Cost by zone",
        f"Operations, and each zone's share of the queue's write requests. By whole hours, from {at_utc(hours[0])} to "
        f"{at_utc(hours[-1] + hours.step)} UTC. All together {dollars(figures.dollars)} for "
        f"{number(round(figures.commits, 1))} commits.",
        _wide(_table(("zone", "operations", "commits", "payloads", "dollars"), rows))
        if rows
        else _nothing("Nothing was written in this period, or the change feed was gone when the tables were made."),
        tag("p", _left_out(len(figures.costs), len(rows), "zones").strip() or None, class_="soft"),
    )


def _footer(origin: Origin) -> Markup:
    return tag(
        "footer",
        tag("p", f"All times are UTC. {_known(origin)} Numbers come from the warehouse's gold tables."),
    )


# --- Building blocks of sections ---


class _Text(str):
    """A cell with running text."""

    __slots__ = ()


class _Sample(Markup):
    """A cell with running text and something beside it."""

    __slots__ = ()


class _Drawn(Markup):
    """A cell with a picture."""

    __slots__ = ()


def _section(key: str, title: str, about: str, *children: Markup) -> Markup:
    return tag("section", tag("h2", title), tag("p", about, class_="soft") if about else None, *children, id=key)


def _figure(chart: Markup, *beside: Markup) -> Markup:
    return tag("figure", _wide(chart), *beside)


def _wide(child: Markup) -> Markup:
    """Scrolls by itself in a narrow window, instead of widening the page."""
    return tag("div", child, class_="wide", tabindex=0)


def _legend(lines: Iterable[Line]) -> Markup:
    return tag("ul", *(tag("li", tag("span", class_=line.style), line.name) for line in lines), class_="legend")


def _data(names: Sequence[str], rows: Sequence[Sequence[Child]]) -> Markup:
    """The numbers of a chart as a table, for screen readers and for exact values."""
    left = f"Numbers ({len(rows)} rows)" if len(rows) <= TABLE_MAX else f"Numbers (the last {TABLE_MAX} rows)"
    return tag("details", tag("summary", left), _wide(_table(names, rows[-TABLE_MAX:])))


def _table(names: Sequence[str], rows: Sequence[Sequence[Child]]) -> Markup:
    """Rows begin with a name. A column is numeric unless its cells are texts."""
    texts = {n for row in rows for n, cell in enumerate(row) if n == 0 or isinstance(cell, _Text | _Sample | _Drawn)}
    head = (tag("th", name, scope="col", class_=None if n in texts else "n") for n, name in enumerate(names))
    body = (tag("tr", tag("th", row[0], scope="row"), *map(_cell, row[1:])) for row in rows)
    return tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body))


def _cell(value: Child) -> Markup:
    if isinstance(value, _Text | _Sample):
        return tag("td", value, class_="text" if isinstance(value, _Text) else "text sample")
    return tag("td", value, class_=None if isinstance(value, _Drawn) else "n")


def _meter(text: str, value: float | None, most: float, *, bad: bool = False) -> Markup:
    """A number with a bar."""
    share = min(max((value or 0) / most, 0), 1) if most else 0
    style = "meter bad" if bad else "meter"
    return joined(text, tag("span", tag("i", style=f"width:{share * 100:.0f}%"), class_=style, aria_hidden="true"))


def _compared(one: Difference) -> tuple[Child, ...]:
    written = WRITTEN[one.unit]
    return (written(one.before), written(one.after), _signed(one), _ratio(one))


def _short(one: Difference) -> tuple[Child, ...]:
    written = WRITTEN[one.unit]
    return (f"{written(one.before)} → {written(one.after)}", _ratio(one))


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


def _nothing(text: str) -> Markup:
    return tag("p", text, class_="none")


def _cut(text: str) -> str:
    return text if len(text) <= ERROR_MAX else f"{text[:ERROR_MAX]}…"


def _zone(name: str | None) -> str:
    return "no zone" if name is None else name


def _left_out(there: int, shown_: int, what: str) -> str:
    return f" {number(there - shown_)} more {what} are left out here." if there > shown_ else ""


def _known(origin: Origin) -> str:
    return f"The warehouse knows about {origin.known}."


def _last_hours(period: Period) -> Period:
    """Whole hours, at most as many as fit on a chart."""
    hours = period.hours[-FAIR_HOURS_MAX:]
    return Period(hours[0], hours[-1] + HOUR_MS)
