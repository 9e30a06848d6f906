"""`casque spark doctor`: does everything that casque on Spark needs work here?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from casque.cli.command import command
from casque.cli.exits import EXIT_CANNOT_TELL, EXIT_FAILED, fail
from casque.cli.options import Json, StoreOptions, parse_options
from casque.cli.output import Terminal, answer
from casque.cli.target import BucketTarget, QueueName
from casque.errors import CasqueError

if TYPE_CHECKING:
    from casque.spark.doctor import Report

_MARKS = {"well": Text("well", "green"), "note": Text("note", "yellow"), "failed": Text("FAILED", "bold red")}


@command(
    "spark doctor",
    examples=[
        "casque spark doctor",
        "casque spark doctor s3://bucket/orders -o region=eu-central-1",
        "casque spark doctor --remote sc://spark.example:15002 --json",
    ],
)
def doctor(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL",
            help="A queue that tasks are to reach: s3://bucket/prefix, gs://, az:// or file:///path",
            show_default=False,
        ),
    ] = None,
    queue: QueueName = None,
    option: StoreOptions = None,
    remote: Annotated[
        str | None,
        typer.Option(
            metavar="sc://HOST:PORT", help="Look at this Spark Connect server, sc://host:port, and not at this machine."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check everything that casque on Spark needs.

    Python and its packages, Java, a session, the settings that matter, whether a task runs, whether Spark finds the
    data source, and with a URL whether the driver and a task can read that store. Says how to mend what is broken.
    Starts a session, which takes some seconds. Never writes to the store.

    Exit code 0: all is well, perhaps with notes. 1: something failed. 2: cannot tell.
    """
    try:
        from casque.spark.doctor import examine
        from casque.spark.session import check_remote

        if remote is not None:
            check_remote(remote)
        options = parse_options(option)
        if url is not None or queue is not None:
            place = BucketTarget(url=url, queue=queue, option=option).resolve()
            url, options = place.url, place.options
        with Terminal(stderr=True).status("looking", spinner="dots") as status:
            report = examine(url, options=options, remote=remote, progress=status.update)
    except CasqueError as error:
        fail(error, EXIT_CANNOT_TELL)
    answer(report, lambda: _print_report(report), json=json)
    if not report.well:
        raise typer.Exit(EXIT_FAILED)


def _print_report(report: Report) -> None:
    console = Terminal()
    table = Table(box=None, show_header=False)
    for finding in report.findings:
        table.add_row(_MARKS[finding.health], finding.part, finding.detail)
        if finding.fix:
            table.add_row("", "", Text.assemble(("fix:", "bold"), f" {finding.fix}"))
    console.print(table)
    if report.well:
        console.print("well: casque can work with Spark here", style="green")
