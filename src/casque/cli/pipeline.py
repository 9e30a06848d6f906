"""`casque pipeline run URL WAREHOUSE`: a queue's history as tables, brought up to date."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from casque import times
from casque.cli.running import EXIT_CANNOT_TELL, Json, StoreOptions, Url, clear_ends
from casque.cli.store_options import parse_options
from casque.cli.terminal import Terminal, print_json
from casque.clock import SystemClock
from casque.errors import CASConflictError, InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from casque.spark.pipeline import Settings, Summary
    from casque.spark.warehouse import Warehouse

EXAMPLES = """
[bold]Examples[/]

  casque pipeline run file:///var/lib/orders file:///var/lib/warehouse

  casque pipeline run s3://bucket/orders s3://bucket/warehouse --trigger 1m

  casque pipeline run s3://bucket/orders s3://bucket/warehouse --delta --json

  casque pipeline run s3://bucket/orders s3://bucket/warehouse --remote sc://spark.internal
"""


class Gone(StrEnum):
    """What to do about commits that were collected before they could be read."""

    FAIL = "fail"
    SKIP = "skip"


def run(
    url: Url,
    warehouse: Annotated[
        str,
        typer.Argument(
            help="Where the tables are: s3://bucket/prefix, gs://, az:// or file:///path", show_default=False
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Run once and end. This is what happens anyway.")] = False,
    trigger: Annotated[
        str | None, typer.Option("--trigger", metavar="SPAN", help="Run again and again, every 30s, 1m, 1h, ...")
    ] = None,
    delta: Annotated[
        bool, typer.Option("--delta", help="Let every table also be a Delta table, over the same files.")
    ] = False,
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Keep payloads and results in bronze/events too.")
    ] = False,
    on_gone: Annotated[
        Gone,
        typer.Option("--on-gone", help="Commits that were collected before they were read: stop, or go on without."),
    ] = Gone.FAIL,
    put_price: Annotated[
        float | None,
        typer.Option("--put-price", metavar="DOLLARS", min=0, help="Of 1,000 write requests.", show_default="0.005"),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Make the gold tables anew from silver, instead of adding to them.")
    ] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Go on although the queue has another id, because it was converted.")
    ] = False,
    master: Annotated[
        str, typer.Option("--master", help="Where Spark runs if there is no --remote: local[2], yarn, k8s://...")
    ] = "local[*]",
    remote: Annotated[
        str | None, typer.Option("--remote", metavar="URL", help="A Spark Connect server: sc://host:15002")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated")
    ] = None,
    json: Json = False,
    option: StoreOptions = None,
    warehouse_option: Annotated[
        list[str] | None,
        typer.Option("--warehouse-option", help="NAME=VALUE for the warehouse's store; may be repeated"),
    ] = None,
) -> None:
    """Bring the tables of a queue's history up to date: every event (bronze), every finished job and attempt (silver),
    and what people look at, by minute and by hour (gold).

    Reads what is new since the last run, and nothing else. Reads the bucket beside whatever else goes on, and writes
    nothing to the queue. Kill it at any time, run it as often as you like, run two of them: a run becomes visible as a
    whole or not at all, and the next one goes on from there. Needs pip install "casque[spark]".

    Exit code 0: up to date. 1: something is damaged, or another run was first. 2: it could not be done.
    """
    console = Terminal(stderr=True)
    try:
        with clear_ends(console):
            every = None if trigger is None or once else _span(trigger)
            job = _Job(
                url,
                parse_options(option or []),
                warehouse,
                parse_options(warehouse_option or []),
                delta=delta,
                json=json,
                console=console,
            )
            # Imported here: without PySpark every other command works.
            from casque.spark.options import OnGone
            from casque.spark.pipeline import Settings
            from casque.spark.session import local_session

            job.check()  # a wrong URL is better heard of before Spark has been started

            settings = Settings(payloads=payloads, on_gone=OnGone(on_gone.value), adopt=adopt, rebuild=rebuild)
            if put_price is not None:
                settings = msgspec.structs.replace(settings, put_dollars=put_price / 1000)
            quiet = {"spark.log.level": "ERROR"} if remote is None else {}
            with console.status("starting Spark") if not json else nullcontext():
                session = local_session(
                    "casque pipeline", master=master, remote=remote, settings={**quiet, **parse_options(conf or [])}
                )
            try:
                asyncio.run(_repeat(job, session, settings, every))
            finally:
                session.stop()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyspark", "pyarrow", "deltalake"):
            raise
        missing = "casque[delta]" if error.name.startswith("deltalake") else "casque[spark]"
        console.print(f'{error.name} is not installed: pip install "{missing}"', markup=False, style="red")
        raise typer.Exit(EXIT_CANNOT_TELL) from None
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


async def _repeat(job: _Job, session: SparkSession, settings: Settings, every: timedelta | None) -> None:
    clock = SystemClock()
    while True:
        begun_ms = clock.monotonic_ms()
        try:
            job.run(session, settings)
        except CASConflictError as error:
            if every is None:
                raise
            job.console.print(str(error), markup=False, style="yellow", highlight=False, soft_wrap=True)
        if every is None:
            return
        # What has been made anew stays as it is.
        settings = msgspec.structs.replace(settings, rebuild=False)
        await clock.sleep(max(0.0, every.total_seconds() - (clock.monotonic_ms() - begun_ms) / 1000))


class _Job:
    def __init__(
        self,
        url: str,
        options: dict[str, str],
        warehouse: str,
        warehouse_options: dict[str, str],
        *,
        delta: bool,
        json: bool,
        console: Console,
    ) -> None:
        self._url = url
        self._options = options
        self._warehouse = warehouse
        self._warehouse_options = warehouse_options
        self._delta = delta
        self._json = json
        self.console = console

    def check(self) -> None:
        """
        Raises:
            CasqueError: there is no queue, or a store that cannot be reached.
        """
        from casque.spark.horizon import look_around
        from casque.spark.place import Place
        from casque.spark.warehouse import Warehouse

        Warehouse(self._warehouse, self._warehouse_options).snapshot()
        Place(self._url, self._options).run(lambda store: look_around(store, lambda _: sys.maxsize))

    def run(self, session: SparkSession, settings: Settings) -> None:
        from casque.spark.pipeline import run as run_pipeline
        from casque.spark.warehouse import Warehouse

        warehouse = Warehouse(self._warehouse, self._warehouse_options)
        columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True, disable=self._json) as bar:
            task = bar.add_task("starting", total=None)

            def progress(what: str, number: int, total: int) -> None:
                bar.update(task, description=what, completed=number, total=total)

            summary = run_pipeline(
                session, self._url, warehouse, options=self._options, settings=settings, progress=progress
            )
            if self._delta:
                bar.update(task, description="Delta")
                _publish(warehouse)
        if self._json:
            print_json(summary)
        else:
            _show(summary, Terminal())


def _publish(warehouse: Warehouse) -> None:
    from casque.spark.delta import publish

    publish(warehouse)


def _show(summary: Summary, console: Console) -> None:
    for note in summary.notes:
        console.print(note, style="yellow", highlight=False, soft_wrap=True)
    for first, last in summary.gaps:
        console.print(f"bronze/events misses positions {first} to {last}: they were collected", style="yellow")
    if not summary.changed:
        console.print(f"nothing new: the tables tell everything up to position {summary.position}", highlight=False)
        return
    table = Table(box=None, show_header=False)
    table.add_row("position", f"{summary.before:,} to {summary.position:,}")
    table.add_row("events", f"{summary.events:,}")
    table.add_row("finished jobs", f"{summary.jobs:,}, in {summary.attempts:,} attempts")
    table.add_row("in the queue", f"{summary.queued:,}")
    table.add_row("written", f"{summary.files:,} files, {summary.partitions:,} partitions of gold")
    if summary.compacted:
        table.add_row("merged", f"{summary.compacted:,} small files")
    table.add_row("took", f"{summary.elapsed_ms / 1000:.1f} s")
    console.print(table)


def _span(text: str) -> timedelta:
    every = times.span("--trigger", text)
    if not every:
        raise InvalidInputError("--trigger takes a span of more than nothing, such as 30s, 1m or 1h")
    return every
