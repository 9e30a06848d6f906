"""Builds the report from a warehouse."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import msgspec

from casque.clock import Clock, SystemClock
from casque.errors import InvalidInputError
from casque.spark.pipeline import cursor_of
from casque.spark.report.figures import Figures
from casque.spark.report.headline import Comparison, compare
from casque.spark.report.page import Origin, page
from casque.spark.report.period import Period, checked, minute_ms
from casque.spark.report.queries import Progress, collect, extent
from casque.spark.session import activate, own_session
from casque.spark.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Report(msgspec.Struct, frozen=True):
    """The figures, and the page that shows them."""

    origin: Origin
    figures: Figures
    comparison: Comparison | None

    def html(self) -> str:
        return page(self.figures, self.origin, self.comparison)

    def json(self) -> bytes:
        """Every number of the page, for programs."""
        return msgspec.json.encode(self)


def build(
    spark: SparkSession,
    warehouse: str | Warehouse,
    *,
    begin: datetime | None = None,
    end: datetime | None = None,
    as_of: datetime | None = None,
    compare_with: tuple[datetime, datetime] | None = None,
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Report:
    """A report about a warehouse, or about a part of the time that it covers, to the minute.

    `as_of` leaves out everything at that moment or later. `compare_with` is an earlier period to compare with.
    `progress` is called with each step.

        report = build(spark, "s3://bucket/warehouse")
        Path("report.html").write_text(report.html())

    Raises:
        InvalidInputError: there is no warehouse, it is empty, or a period ends before it begins.
    """
    say = progress or (lambda _what: None)
    chosen = warehouse if isinstance(warehouse, Warehouse) else Warehouse(warehouse, options)
    tables = _Tables(spark, chosen)
    say("looking at the warehouse")
    known = extent(tables)
    if known is None:
        raise InvalidInputError(
            f"the warehouse {_name(chosen)} has no history in it yet: run `casque pipeline run QUEUE {_name(chosen)}`"
            " once jobs have gone through the queue"
        )
    period = _period(known, begin, end, as_of)
    figures = collect(tables, period, known, say)
    comparison = None
    if compare_with is not None:
        before = checked("the period to compare with", Period(*map(minute_ms, compare_with)))
        comparison = compare(collect(tables, before, known, lambda what: say(f"before: {what}")), figures)
    activate(spark)  # as it was
    made_ms = (clock or SystemClock()).wall_ms()
    return Report(Origin(_name(chosen), made_ms, known), figures, comparison)


def _period(known: Period, begin: datetime | None, end: datetime | None, as_of: datetime | None) -> Period:
    from_ms = known.from_ms if begin is None else minute_ms(begin)
    to_ms = known.to_ms if end is None else minute_ms(end)
    if as_of is not None:
        to_ms = min(to_ms, minute_ms(as_of))
        if begin is None and to_ms <= from_ms:
            raise InvalidInputError(f"the warehouse knows nothing from before that moment; it knows about {known}")
    return checked("the period", Period(from_ms, to_ms))


class _Tables:
    """One version of a warehouse: the pipeline may continue meanwhile."""

    def __init__(self, spark: SparkSession, warehouse: Warehouse) -> None:
        self._spark = own_session(spark)
        self._snapshot = warehouse.snapshot()
        if not self._snapshot.root.tables:
            raise InvalidInputError(
                f"there is no warehouse at {_name(warehouse)}: make one with "
                f"`casque pipeline run QUEUE {_name(warehouse)}`"
            )
        self.as_of_ms = cursor_of(self._snapshot).as_of_ms

    def __call__(self, table: str, period: Period | None = None, columns: Sequence[str] | None = None) -> DataFrame:
        dates = None if period is None else _dates(period)
        return self._snapshot.read(self._spark, table, dates=dates, columns=columns)


def _dates(period: Period) -> Collection[str]:
    first, last = (datetime.fromtimestamp(at_ms / 1000, UTC).date() for at_ms in (period.from_ms, period.to_ms - 1))
    return {str(date.fromordinal(day)) for day in range(first.toordinal(), last.toordinal() + 1)}


def _name(warehouse: Warehouse) -> str:
    # Options in a URL may be credentials.
    return warehouse.store_ref.url.partition("?")[0]
