"""`casque spark doctor [URL]`: does everything that casque on Spark needs work here?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from casque.cli.running import EXIT_CANNOT_TELL, EXIT_FAILED, Json, StoreOptions
from casque.cli.store_options import parse_options
from casque.cli.terminal import Terminal, print_json
from casque.errors import CasqueError

if TYPE_CHECKING:
    from casque.spark.doctor import Report

EXAMPLES = """
[bold]Examples[/]

  casque spark doctor

  casque spark doctor s3://bucket/orders -o region=eu-central-1

  casque spark doctor --remote sc://spark.example:15002 --json
"""

_MARKS = {"well": Text("well", "green"), "note": Text("note", "yellow"), "failed": Text("FAILED", "bold red")}


def doctor(
    url: Annotated[
        str | None,
        typer.Argument(help="A queue that tasks are to reach: s3://bucket/prefix, gs://, az:// or file:///path"),
    ] = None,
    option: StoreOptions = None,
    remote: Annotated[
        str | None, typer.Option(help="Look at this Spark Connect server, sc://host:port, and not at this machine.")
    ] = None,
    json: Json = False,
) -> None:
    """Look at everything that casque on Spark needs.

    Python and its packages, Java, a session, the settings that matter, whether a task runs, whether Spark finds the
    data source, and with a URL whether the driver and a task can read that store. Says what mends what is not well.
    Starts a session for it, which takes some seconds. Never writes to the store.

    Exit code 0: all is well, perhaps with notes. 1: something failed. 2: cannot tell.
    """
    console = Terminal(stderr=True)
    try:
        from casque.spark.doctor import examine

        with console.status("looking", spinner="dots") as status:
            report = examine(url, options=parse_options(option or []), remote=remote, progress=status.update)
    except CasqueError as error:
        console.print(str(error), markup=False, style="red", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_CANNOT_TELL) from None
    if json:
        print_json(report)
    else:
        _show(report, Terminal())
    if not report.well:
        raise typer.Exit(EXIT_FAILED)


def _show(report: Report, console: Console) -> None:
    table = Table(box=None, show_header=False)
    for finding in report.findings:
        table.add_row(_MARKS[finding.health], finding.part, finding.detail)
        if finding.fix:
            table.add_row("", "", Text.assemble(("fix:", "bold"), f" {finding.fix}"))
    console.print(table)
    if report.well:
        console.print("well: casque can work with Spark here", style="green")
