"""`casque doctor URL`: is this bucket, or this server that calls itself S3, safe for a queue?"""

from __future__ import annotations

import asyncio

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from casque.cli.place import QueueName, find_place
from casque.cli.running import EXIT_CANNOT_TELL, Json, OptionalBucket, StoreOptions
from casque.cli.terminal import Terminal, print_json
from casque.errors import CasqueError
from casque.storage.doctor import Report, examine

EXIT_UNSAFE = 1


def doctor(
    url: OptionalBucket = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Try to make a store break the promises a queue needs. Exit code 0: safe, 1: unsafe, 2: cannot tell."""
    console = Terminal(stderr=True)
    what = url or "a store"
    try:
        place = find_place(url, queue, option)
        what = place.url
        report = asyncio.run(_examine(place.url, place.options, console, quiet=json))
    except CasqueError as error:
        console.print(f"cannot examine {what}: {error}", markup=False, style="red", soft_wrap=True)
        raise typer.Exit(EXIT_CANNOT_TELL) from None
    if json:
        print_json(report)
    else:
        _show(report, Terminal())
    if not report.safe:
        raise typer.Exit(EXIT_UNSAFE)


async def _examine(url: str, options: dict[str, str], console: Console, *, quiet: bool) -> Report:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("starting", total=None)

        def progress(what: str, number: int, total: int) -> None:
            bar.update(task, description=what, completed=number, total=total)

        return await examine(url, options=options, progress=progress)


def _show(report: Report, console: Console) -> None:
    promises = Table("", "promise", "what happened", box=None)
    for finding in report.findings:
        mark = Text("held", "green") if finding.held else Text("BROKEN", "red")
        promises.add_row(mark, finding.promise, finding.detail)
    console.print(promises)
    for latency in report.latencies:
        console.print(
            f"{latency.verb:>8}: median {latency.median_ms:.0f} ms, worst {latency.worst_ms:.0f} ms "
            f"({latency.calls} calls)",
            highlight=False,
        )
    console.print(report.verdict, style="green" if report.safe else "bold red", soft_wrap=True)
    if report.leftover:
        console.print(f"objects below {report.leftover!r} could not be removed", style="yellow")
