"""`casque doctor URL`: is this bucket, or this server that calls itself S3, safe for a queue?"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from casque.errors import CasqueError, InvalidInputError
from casque.storage.doctor import Report, examine

EXIT_UNSAFE = 1
EXIT_CANNOT_TELL = 2


def doctor(
    url: Annotated[str, typer.Argument(help="s3://bucket/prefix, gs://, az://, file:///path or memory://")],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="NAME=VALUE for the store; may be repeated")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print the report as JSON")] = False,
) -> None:
    """Try to make a store break the promises a queue needs. Exit code 0: safe, 1: unsafe, 2: cannot tell."""
    console = Console(stderr=True)
    try:
        report = asyncio.run(_examine(url, parse_options(option or []), console, quiet=json))
    except CasqueError as error:
        console.print(f"cannot examine {url}: {error}", markup=False, style="red", soft_wrap=True)
        raise typer.Exit(EXIT_CANNOT_TELL) from None
    if json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        _show(report, Console())
    if not report.safe:
        raise typer.Exit(EXIT_UNSAFE)


def parse_options(pairs: list[str]) -> dict[str, str]:
    """`["region=eu-west-1"]` as a mapping.

    Raises:
        InvalidInputError: not NAME=VALUE.
    """
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            # Only the name: the value may be a secret that somebody forgot to name.
            raise InvalidInputError("an option is written NAME=VALUE, for example --option region=eu-west-1")
        options[name] = value
    return options


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
        mark = "[green]held[/]" if finding.held else "[red]BROKEN[/]"
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
