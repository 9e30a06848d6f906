"""`casque report`: write one page about a queue's history."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from casque import times
from casque.cli.command import command
from casque.cli.files import write_whole
from casque.cli.options import Json, StoreOptions, parse_options
from casque.cli.output import say, spinner
from casque.cli.spark.session import SparkOptions
from casque.errors import InvalidInputError
from casque.printable import printable_json

TIME = "2026-02-15T10:00, in UTC unless it says otherwise"


@command(
    "report",
    examples=[
        "casque report file:///var/lib/warehouse --output report.html",
        (
            "casque report s3://bucket/warehouse --output monday.html --from 2026-02-16 --to 2026-02-17 "
            "--compare 2026-02-09..2026-02-10"
        ),
        "casque report s3://bucket/warehouse --as-of 2026-02-16T12:00 --json | jq .figures.total",
    ],
)
def report(
    warehouse: Annotated[
        str,
        typer.Argument(help="Where `casque pipeline run` has put the tables: s3://, gs://, az:// or file:///path"),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="The page to write.", dir_okay=False, show_default=False),
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help=f"Only events then or later: {TIME}.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Only events before then.")] = None,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="TIME", help="As the report would have been then: later events are left out."),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option("--compare", metavar="FROM..TO", help="Another period to compare with."),
    ] = None,
    json: Json = False,
    option: StoreOptions = None,
    *,
    spark: SparkOptions,
) -> None:
    """Write one self-contained page about a queue's history: throughput and failures, depth, waits and run times, a
    heat map by hour, slow and failing entrypoints, dead letters, workers, zones and cost. Computed by Spark from a
    warehouse.

    The page needs no network and no script, and can be sent by mail. With --json the numbers go to standard output.

    Exit code 0: written. 1: the warehouse is damaged. 2: there is none, or the question makes no sense.
    """
    if output is None and not json:
        raise InvalidInputError("say where the page goes with --output report.html, or ask for the numbers with --json")
    from casque.spark.report import build
    from casque.spark.report.period import Period, checked, minute_ms, parse_moments

    # Check every argument before Spark starts, which takes a while.
    since = None if begin is None else times.moment("--from", begin)
    until = None if end is None else times.moment("--to", end)
    seen_from = None if as_of is None else times.moment("--as-of", as_of)
    if since is not None and until is not None:
        checked("the period of --from and --to", Period(minute_ms(since), minute_ms(until)))
    other = None if compare is None else parse_moments("--compare", compare)
    options = parse_options(option)
    with spinner("starting Spark") as progress, spark.session("casque report") as session:
        made = build(
            session,
            warehouse,
            begin=since,
            end=until,
            as_of=seen_from,
            compare_with=other,
            options=options,
            progress=progress,
        )
    if output is not None:
        with write_whole(output) as file:
            file.write(made.html())
    if json:
        print(printable_json(made.json()))
    elif made.figures.empty:
        say(f"{output}: nothing happened in {made.figures.period}; choose --from and --to within {made.origin.known}")
    else:
        say(f"{output}: {made.figures.period}, {made.figures.total.finished:,} jobs finished")
