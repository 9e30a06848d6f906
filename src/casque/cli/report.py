"""`casque report WAREHOUSE -o report.html`: one page about a queue's history."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from casque import times
from casque.cli.running import Json, clear_ends
from casque.cli.store_options import parse_options
from casque.cli.terminal import Terminal, say
from casque.errors import InvalidInputError
from casque.printable import printable_json

if TYPE_CHECKING:
    from casque.spark.report import Report

EXAMPLES = """
[bold]Examples[/]

  casque report file:///var/lib/warehouse -o report.html

  casque report s3://bucket/warehouse -o monday.html --from 2026-02-16 --to 2026-02-17 --compare 2026-02-09..2026-02-10

  casque report s3://bucket/warehouse --as-of 2026-02-16T12:00 --json | jq .figures.total
"""
TIME = "2026-02-15T10:00, in UTC unless it says otherwise"


def report(
    warehouse: Annotated[
        str,
        typer.Argument(help="Where `casque pipeline run` has put the tables: s3://, gs://, az:// or file:///path"),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page to write.", dir_okay=False, show_default=False)
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help=f"Only what happened then or later: {TIME}.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Only what happened before then.")] = None,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="TIME", help="As the report would have been then: later things are left out."),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option("--compare", metavar="FROM..TO", help="Another period to hold this one against."),
    ] = None,
    json: Json = False,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="NAME=VALUE for the store; may be repeated")
    ] = None,
    master: Annotated[str, typer.Option("--master", help="The Spark to compute it on.")] = "local[*]",
    remote: Annotated[
        str | None, typer.Option("--remote", metavar="URL", help="A Spark Connect server, sc://host:port, instead.")
    ] = None,
) -> None:
    """Write one self-contained page about what a queue has done: depth over time, waits and run times, a heat map by
    hour, slow and failing entrypoints, dead letters, workers, zones and cost. Computed by Spark from a warehouse.

    The page needs no network and no script, and can be sent by mail. With --json the numbers go to standard output.

    Exit code 0: written. 1: the warehouse is damaged. 2: there is none, or the question makes no sense.
    """
    console = Terminal(stderr=True)
    with clear_ends(console):
        if output is None and not json:
            raise InvalidInputError("say where the page goes with -o report.html, or ask for the numbers with --json")
        made = _make(warehouse, begin, end, as_of, compare, option, master, remote, console)
        if output is not None:
            _write(output, made.html())
    if json:
        print(printable_json(made.json()))
    elif output is not None:
        say(f"{output}: {made.figures.period}, {made.figures.total.finished:,} jobs finished")


def _make(
    warehouse: str,
    begin: str | None,
    end: str | None,
    as_of: str | None,
    compare: str | None,
    option: list[str] | None,
    master: str,
    remote: str | None,
    console: Console,
) -> Report:
    from casque.spark.report import build
    from casque.spark.report.period import parse_moments
    from casque.spark.session import local_session

    # Whatever is wrong with the question is said before Spark starts, which takes its time.
    since = None if begin is None else times.moment("--from", begin)
    until = None if end is None else times.moment("--to", end)
    seen_from = None if as_of is None else times.moment("--as-of", as_of)
    with_ = None if compare is None else parse_moments("--compare", compare)
    options = parse_options(option or [])
    columns = (SpinnerColumn(), TextColumn("{task.description:<28}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting Spark")
        spark = local_session("casque report", master=master, remote=remote)
        try:
            return build(
                spark,
                warehouse,
                begin=since,
                end=until,
                as_of=seen_from,
                compare_with=with_,
                options=options,
                progress=lambda what: bar.update(task, description=what),
            )
        finally:
            spark.stop()


def _write(path: Path, text: str) -> None:
    """All of it or nothing: whoever looks meanwhile sees the page before or the page after."""
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise InvalidInputError(f"cannot write {path}: {error.strerror or error}") from error
