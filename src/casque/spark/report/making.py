"""Builds the report from a warehouse."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from casque.clock import Clock, SystemClock
from casque.errors import InvalidInputError
from casque.spark.pipeline import cursor_of
from casque.spark.report.figures import Figures
from casque.spark.report.headline import Comparison, compare
from casque.spark.report.page import Origin, page
from casque.spark.report.period import Period, checked, minute_ms
from casque.spark.report.queries import Progress, Questions
from casque.spark.session import activate, own_session
from casque.spark.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Report(msgspec.Struct, frozen=True):
    """The figures, and the page that shows them."""

    origin: Origin
    figures: Figures
    comparison: Comparison | None
    before: Figures | None = None
    """The period to compare with."""

    def html(self) -> str:
        return page(self.figures, self.origin, self.comparison, self.before)

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
    snapshot = chosen.snapshot()
    if not snapshot.root.tables:
        raise InvalidInputError(
            f"there is no warehouse at {_name(chosen)}: make one with `casque pipeline run QUEUE {_name(chosen)}`"
        )
    cursor = cursor_of(snapshot)
    questions = Questions(own_session(spark), snapshot, cursor.as_of_ms)
    say("looking at the warehouse")
    known = questions.extent()
    if known is None:
        raise InvalidInputError(
            f"the warehouse {_name(chosen)} has no history in it yet: run `casque pipeline run QUEUE {_name(chosen)}`"
            " once jobs have gone through the queue"
        )
    period = _period(known, begin, end, as_of)
    before = None
    try:
        if compare_with is not None:
            earlier = checked("the period to compare with", Period(*map(minute_ms, compare_with)))
            before = questions.ask(earlier, known, lambda what: say(f"before: {what}"))
        figures = questions.ask(period, known, say)
    finally:
        questions.close()
        activate(spark)  # as it was
    origin = Origin(_name(chosen), (clock or SystemClock()).wall_ms(), known, cursor.name or cursor.queue_id)
    return Report(origin, figures, None if before is None else compare(before, figures), before)


def _period(known: Period, begin: datetime | None, end: datetime | None, as_of: datetime | None) -> Period:
    from_ms = known.from_ms if begin is None else minute_ms(begin)
    to_ms = known.to_ms if end is None else minute_ms(end)
    if as_of is not None:
        to_ms = min(to_ms, minute_ms(as_of))
        if begin is None and to_ms <= from_ms:
            raise InvalidInputError(f"the warehouse knows nothing from before that moment; it knows about {known}")
    return checked("the period", Period(from_ms, to_ms))


def _name(warehouse: Warehouse) -> str:
    # Options in a URL may be credentials.
    return warehouse.store_ref.url.partition("?")[0]
