"""`casque pipeline run`: bring the tables of a queue's history up to date; `check`: look for wrong rows in them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from casque import times
from casque.cli.command import command
from casque.cli.exits import EXIT_CANNOT_TELL, EXIT_FAILED, fail
from casque.cli.options import Json, StoreOptions, parse_options
from casque.cli.output import Terminal, answer, counted_steps, print_facts, warn
from casque.cli.spark.session import SparkOptions
from casque.cli.target import BucketTarget
from casque.clock import SystemClock
from casque.errors import CASConflictError, InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from casque.spark.expectations import Found
    from casque.spark.lineage import Lineage
    from casque.spark.pipeline import Batch, Settings, Summary
    from casque.spark.warehouse import Warehouse

PACKAGES = ("pyspark", "pyarrow", "deltalake")
"""What `casque[spark]` brings."""
AVAILABLE_NOW = "available-now"


class Expectation(StrEnum):
    """What to do about rows that break a rule of their table."""

    WARN = "warn"
    FAIL = "fail"
    QUARANTINE = "quarantine"
    OFF = "off"


class Format(StrEnum):
    """What the tables are."""

    DELTA = "delta"
    ICEBERG = "iceberg"


class Gone(StrEnum):
    """What to do about commits that were collected before they could be read."""

    FAIL = "fail"
    SKIP = "skip"


@command(
    "pipeline run",
    examples=[
        "casque pipeline run file:///var/lib/orders file:///var/lib/warehouse",
        "casque pipeline run s3://bucket/orders s3://bucket/warehouse --trigger 1m",
        "CASQUE_URL=s3://bucket/orders casque pipeline run s3://bucket/warehouse",
        "casque pipeline run s3://bucket/orders s3://bucket/warehouse --models ./models --json",
        "casque pipeline run s3://bucket/orders s3://bucket/warehouse --format iceberg --catalog lake",
        "casque pipeline run s3://bucket/orders s3://bucket/warehouse --remote sc://spark.internal",
        "casque pipeline run s3://bucket/orders s3://bucket/warehouse --lineage http://marquez:5000",
    ],
    interrupt_is_success=True,
)
def run(
    target: BucketTarget,
    warehouse: Annotated[
        str | None,
        typer.Argument(
            metavar="WAREHOUSE",
            help="Where the tables are: s3://bucket/prefix, gs://, az:// or file:///path",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Run once and end; the default.")] = False,
    trigger: Annotated[
        str | None,
        typer.Option(
            "--trigger",
            metavar="SPAN",
            help="Stay, as a Structured Streaming query with a batch every 30s, 1m, 1h, ...; or available-now, to end "
            "when everything is done.",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Where the query of --trigger keeps its offsets: a folder that Spark reaches. Nothing is lost "
            "with it: the tables know how far they are.",
            show_default="a temporary one",
        ),
    ] = None,
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Keep payloads and results in bronze/events too.")
    ] = False,
    on_gone: Annotated[
        Gone,
        typer.Option("--on-gone", help="Commits that were collected before they were read: stop, or go on without."),
    ] = Gone.FAIL,
    put_price: Annotated[
        float | None,
        typer.Option(
            "--put-price", metavar="DOLLARS", min=0, help="Price of 1,000 write requests.", show_default="0.005"
        ),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Compute all of the gold tables anew from silver.")
    ] = False,
    models: Annotated[
        Path | None,
        typer.Option("--models", metavar="DIR", help="Make further tables of your own, from the .sql files in DIR."),
    ] = None,
    expect: Annotated[
        Expectation,
        typer.Option(
            "--expect", help="Rows that break a rule of their table: report them, stop, leave them out, do not look."
        ),
    ] = Expectation.WARN,
    table_format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="What the tables of a new warehouse are; later runs keep to it.",
            show_default=Format.DELTA.value,
        ),
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option(
            "--catalog",
            metavar="NAME",
            help="Register the tables: Iceberg's in a catalog of PyIceberg's configuration, Delta's in one that Spark "
            "knows, which needs Delta's jars.",
        ),
    ] = None,
    namespace_prefix: Annotated[
        str,
        typer.Option(
            "--namespace-prefix", metavar="TEXT", help="Put it before bronze, silver and gold in Iceberg's catalog."
        ),
    ] = "",
    lineage: Annotated[
        str | None,
        typer.Option(
            "--lineage",
            metavar="URL|FILE",
            help="Report each run as OpenLineage events: to the server at URL, or as lines of JSON in FILE.",
        ),
    ] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Go on although the queue has another id, because it was converted.")
    ] = False,
    *,
    spark: SparkOptions,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated")
    ] = None,
    json: Json = False,
    warehouse_option: Annotated[
        list[str] | None,
        typer.Option(
            "--warehouse-option", metavar="NAME=VALUE", help="Option of the warehouse's store; may be repeated."
        ),
    ] = None,
) -> None:
    """Bring the tables of a queue's history up to date: every event (bronze), every finished job and attempt (silver),
    and figures for people, by minute and by hour (gold). All of them are Delta tables, or Iceberg tables.

    Reads only what is new since the last run. Reads the bucket beside running processes, and writes nothing to the
    queue. Kill it at any time, run it as often as you like, run two of them: the next run completes
    what a killed one began, and each table takes a run once. Needs pip install "casque[spark]", and for Iceberg
    "casque[iceberg]".

    Every table has rules, which stand in the head of its SQL file. The run counts the rows that break one, in
    quality/rules; --expect quarantine keeps them in quality/rows instead of their table.

    Exit code 0: up to date. 1: something is damaged, rows break a rule (--expect fail), or another run was first. 2: it
    could not be done.
    """
    every = None if trigger is None or once or trigger == AVAILABLE_NOW else _parse_interval(trigger)
    if checkpoint is not None and (trigger is None or once):
        raise InvalidInputError("--checkpoint is for the query of --trigger: say how often, such as --trigger 1m")
    target, warehouse = target.followed_by(warehouse, "where do the tables go? casque pipeline run [URL] WAREHOUSE")
    place = target.resolve()
    if place.url.rstrip("/") == warehouse.rstrip("/"):
        raise InvalidInputError(f"{warehouse} is the queue: give its tables a place of their own")
    job = _Pipeline(
        url=place.url,
        options=place.options,
        warehouse=warehouse,
        warehouse_options=parse_options(warehouse_option),
        table_format=table_format,
        catalog=catalog or "",
        namespace_prefix=namespace_prefix,
        lineage=lineage,
        json=json,
    )
    try:
        # Imported here: every other command works without PySpark.
        from casque.spark.expectations import Expect
        from casque.spark.models import own_models
        from casque.spark.options import OnGone
        from casque.spark.pipeline import Settings

        job.check()  # report a wrong URL before Spark starts

        settings = Settings(
            payloads=payloads,
            on_gone=OnGone(on_gone.value),
            adopt=adopt,
            rebuild=rebuild,
            models={} if models is None else own_models(models),
            expect=Expect(expect.value),
        )
        if put_price is not None:
            settings = msgspec.structs.replace(settings, put_dollars=put_price / 1000)
        with ExitStack() as stack:
            with nullcontext() if json else Terminal(stderr=True).status("starting Spark"):
                session = stack.enter_context(spark.session("casque pipeline", parse_options(conf)))
            if trigger is None or once:
                job.run(session, settings)
            elif spark.remote is None:
                _follow(job, session, settings, every, checkpoint)
            else:
                asyncio.run(_repeat(job, session, settings, every))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        fail(f'{error.name} is not installed: pip install "casque[spark]"', EXIT_CANNOT_TELL)


@command(
    "pipeline check",
    examples=[
        "casque pipeline check s3://bucket/warehouse",
        "casque pipeline check file:///var/lib/warehouse --models ./models --json",
    ],
)
def check(
    warehouse: Annotated[str, typer.Argument(help="Where the tables are.", show_default=False)],
    models: Annotated[
        Path | None, typer.Option("--models", metavar="DIR", help="Check the tables of the .sql files in DIR too.")
    ] = None,
    *,
    spark: SparkOptions,
    json: Json = False,
    option: StoreOptions = None,
) -> None:
    """Look for wrong rows in the tables of a warehouse: rows that break a rule of their table or are there twice, and
    jobs that are in one table and missing from another. Reads everything, changes nothing.

    Exit code 0: all rules hold. 1: some do not. 2: it could not be done.
    """
    try:
        from casque.spark.expectations import check as check_tables
        from casque.spark.models import own_models
        from casque.spark.warehouse import Warehouse

        own = () if models is None else tuple(own_models(models).values())
        place = Warehouse(warehouse, parse_options(option))
        place.snapshot().require("silver/jobs")  # before Spark starts
        with ExitStack() as stack:
            with nullcontext() if json else Terminal(stderr=True).status("starting Spark"):
                session = stack.enter_context(spark.session("casque pipeline check"))
            with counted_steps(wanted=not json) as progress:
                found = check_tables(session, place, own, progress)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        fail(f'{error.name} is not installed: pip install "casque[spark]"', EXIT_CANNOT_TELL)
    broken = [one for one in found if one.broken]
    answer(found, lambda: _print_found(len(found), broken), json=json)
    if broken:
        raise typer.Exit(EXIT_FAILED)


def _print_found(rules: int, broken: Sequence[Found]) -> None:
    console = Terminal(highlight=False)
    for one in broken:
        console.print(str(one), style="red", soft_wrap=True)
    console.print(f"{rules - len(broken)} of {rules} rules hold")


def _follow(
    job: _Pipeline, session: SparkSession, settings: Settings, every: timedelta | None, checkpoint: str | None
) -> None:
    from casque.spark.follower import Follower

    rebuild = settings.rebuild

    def carry_out(batch: Batch | None) -> None:
        nonlocal rebuild
        job.run(session, msgspec.structs.replace(settings, rebuild=rebuild), batch)
        rebuild = False  # later runs add to the new tables

    follower = Follower(
        session,
        job.url,
        job.target(),
        carry_out,
        every=every,
        checkpoint=checkpoint,
        options=job.options,
        settings=settings,
        warn=warn,
    )
    with _stopped_by_signals(follower.stop):
        follower.run()


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM let the current batch end; a second one does not."""
    asked = False

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _repeat(job: _Pipeline, session: SparkSession, settings: Settings, every: timedelta | None) -> None:
    clock = SystemClock()
    while True:
        begun_ms = clock.monotonic_ms()
        try:
            job.run(session, settings)
        except CASConflictError as error:
            if every is None:
                raise
            warn(str(error))
        if every is None:
            return
        # Rebuild once: later runs add to the new tables.
        settings = msgspec.structs.replace(settings, rebuild=False)
        await clock.sleep(max(0.0, every.total_seconds() - (clock.monotonic_ms() - begun_ms) / 1000))


class _Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """What to read, and where to write it."""

    url: str
    options: dict[str, str]
    warehouse: str
    warehouse_options: dict[str, str]
    table_format: Format | None
    catalog: str
    namespace_prefix: str
    lineage: str | None
    json: bool

    def target(self) -> Warehouse:
        from casque.spark.warehouse import Warehouse

        return Warehouse(
            self.warehouse,
            self.warehouse_options,
            tables=self.table_format,
            catalog=self.catalog,
            namespace_prefix=self.namespace_prefix,
        )

    def reporter(self) -> Lineage | None:
        from casque.spark.lineage import Lineage

        return None if self.lineage is None else Lineage(self.lineage, warn=warn)

    def check(self) -> None:
        """
        Raises:
            CasqueError: there is no queue, or a store cannot be reached.
        """
        from casque.scan.horizon import look_around
        from casque.spark.store_ref import StoreRef

        self.reporter()
        self.target().check()
        StoreRef(self.url, self.options).run(lambda store: look_around(store, lambda _: sys.maxsize))

    def run(self, session: SparkSession, settings: Settings, batch: Batch | None = None) -> None:
        from casque.spark.pipeline import run as run_pipeline
        from casque.spark.registering import register_tables

        warehouse = self.target()
        with counted_steps(wanted=not self.json) as progress:
            summary = run_pipeline(
                session,
                self.url,
                warehouse,
                options=self.options,
                settings=settings,
                progress=progress,
                batch=batch,
                lineage=self.reporter(),
            )
        if self.catalog and warehouse.snapshot().root.iceberg is None:
            register_tables(session, warehouse, catalog=self.catalog)
        answer(summary, lambda: _print_summary(summary), json=self.json)


def _print_summary(summary: Summary) -> None:
    console = Terminal(highlight=False)
    for note in summary.notes:
        console.print(note, style="yellow", soft_wrap=True)
    for first, last in summary.gaps:
        console.print(f"bronze/events misses positions {first} to {last}: they were collected", style="yellow")
    for one in summary.broken:
        console.print(str(one), style="yellow", soft_wrap=True)
    if not summary.changed:
        console.print(f"nothing new: the tables tell everything up to position {summary.position}")
        return
    print_facts(
        {
            "position": f"{summary.before:,} to {summary.position:,}",
            "events": f"{summary.events:,}",
            "finished jobs": f"{summary.jobs:,}, in {summary.attempts:,} attempts",
            "in the queue": f"{summary.queued:,}",
            "written": f"{summary.files:,} files, {summary.bytes:,} bytes",
            "hours": f"{summary.hours:,} computed anew" if summary.hours else "",
            "took": f"{summary.elapsed_ms / 1000:.1f} s",
        }
    )


def _parse_interval(text: str) -> timedelta:
    every = times.span("--trigger", text)
    if not every:
        raise InvalidInputError("--trigger takes a span of more than nothing, such as 30s, 1m or 1h")
    return every
