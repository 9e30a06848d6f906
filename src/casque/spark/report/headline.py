"""The headline numbers of a period, and their differences between two periods."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from casque.spark.report.figures import Figures, Tally
from casque.spark.report.period import Period
from casque.spark.report.scales import dollars, index, number, percent, rate, span


class Unit(StrEnum):
    """How a number is formatted."""

    COUNT = "count"
    SHARE = "share"
    MS = "ms"
    PER_SECOND = "per second"
    INDEX = "index"
    DOLLARS = "dollars"


WRITTEN: dict[Unit, Callable[[float | None], str]] = {
    Unit.COUNT: number,
    Unit.SHARE: percent,
    Unit.MS: span,
    Unit.PER_SECOND: rate,
    Unit.INDEX: index,
    Unit.DOLLARS: dollars,
}


class Headline(msgspec.Struct, frozen=True):
    """One headline number."""

    name: str
    unit: Unit
    value: float | None
    about: str

    def __str__(self) -> str:
        return WRITTEN[self.unit](self.value)


class Difference(msgspec.Struct, frozen=True):
    """The same number in two periods."""

    name: str
    unit: Unit
    before: float | None
    after: float | None
    difference: float | None
    ratio: float | None
    """After divided by before; None if one is missing or before is 0."""


class EntrypointDifference(msgspec.Struct, frozen=True):
    entrypoint: str
    differences: tuple[Difference, ...]


class Comparison(msgspec.Struct, frozen=True):
    """Two periods side by side."""

    before: Period
    after: Period
    headline: tuple[Difference, ...]
    entrypoints: tuple[EntrypointDifference, ...]
    """The entrypoints of both periods, most finished jobs first."""


def headlines(f: Figures) -> tuple[Headline, ...]:
    t, busy = f.total, sum(worker.busy_ms for worker in f.workers)
    # Fairness needs two zones, and costs need a log.
    even = f.fairness.jain_service if f.fairness.zones > 1 else None
    commits, dollars_ = (round(f.commits, 6), f.dollars) if f.costs else (None, None)
    return (
        Headline("enqueued", Unit.COUNT, t.enqueued, "jobs that were added"),
        Headline("finished", Unit.COUNT, t.finished, "done, died and cancelled together"),
        Headline("done", Unit.COUNT, t.done, "jobs that were acknowledged"),
        Headline("died", Unit.COUNT, t.died, "jobs that ran out of attempts"),
        Headline("cancelled", Unit.COUNT, t.cancelled, "jobs that were cancelled"),
        Headline("throughput", Unit.PER_SECOND, f.throughput, "finished jobs, over the whole period"),
        Headline("wait, median", Unit.MS, t.wait.p50_ms, "from due to first claimed; half waited no longer"),
        Headline("wait, p90", Unit.MS, t.wait.p90_ms, "nine of ten waited no longer"),
        Headline("wait, p99", Unit.MS, t.wait.p99_ms, "99 of 100 waited no longer"),
        Headline("run, median", Unit.MS, t.run.p50_ms, "from claimed to ended; half took no longer"),
        Headline("run, p90", Unit.MS, t.run.p90_ms, "nine of ten attempts took no longer"),
        Headline("run, p99", Unit.MS, t.run.p99_ms, "99 of 100 attempts took no longer"),
        Headline("retry rate", Unit.SHARE, t.retry_rate, "share of jobs done or died with more than one attempt"),
        Headline("failure rate", Unit.SHARE, t.failure_rate, "share of jobs done or died that died"),
        Headline("attempts failed", Unit.SHARE, t.attempt_failure_rate, "attempts that failed or whose lease ran out"),
        Headline("waiting, most", Unit.COUNT, f.depth_max, "jobs due and not running, at the worst moment"),
        Headline("waiting at the end", Unit.COUNT, f.standing.waiting, "jobs due and not running as the period ended"),
        Headline("workers", Unit.COUNT, len(f.workers), "that had a job"),
        Headline("busy workers", Unit.INDEX, busy / f.period.span_ms, "on average over the period"),
        Headline("fairness", Unit.INDEX, even, "Jain's index of run time between zones: 1 is even"),
        Headline("commits", Unit.COUNT, commits, "write requests of the queue, by whole hours"),
        Headline("cost", Unit.DOLLARS, dollars_, "price of these requests, by whole hours"),
    )


def compare(before: Figures, after: Figures) -> Comparison:
    headline = tuple(
        _difference(old.name, old.unit, old.value, new.value)
        for old, new in zip(headlines(before), headlines(after), strict=True)
    )
    old, new = ({one.name: one.tally for one in figures.entrypoints} for figures in (before, after))
    names = sorted(
        (name for name in {*old, *new} if name is not None),
        key=lambda name: (-sum(side[name].finished for side in (old, new) if name in side), name),
    )
    return Comparison(
        before.period,
        after.period,
        headline,
        tuple(EntrypointDifference(name, _differences(old.get(name), new.get(name))) for name in names),
    )


def _differences(before: Tally | None, after: Tally | None) -> tuple[Difference, ...]:
    old, new = before or Tally(), after or Tally()
    return (
        _difference("finished", Unit.COUNT, old.finished, new.finished),
        _difference("attempts failed", Unit.SHARE, old.attempt_failure_rate, new.attempt_failure_rate),
        _difference("wait, p90", Unit.MS, old.wait.p90_ms, new.wait.p90_ms),
        _difference("run, p90", Unit.MS, old.run.p90_ms, new.run.p90_ms),
    )


def _difference(name: str, unit: Unit, before: float | None, after: float | None) -> Difference:
    if before is None or after is None:
        return Difference(name, unit, before, after, None, None)
    return Difference(name, unit, before, after, after - before, after / before if before else None)
