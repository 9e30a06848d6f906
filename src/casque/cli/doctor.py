"""`casque doctor`: is this bucket, or this server that calls itself S3, safe for a queue?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from casque.cli.command import command
from casque.cli.exits import EXIT_CANNOT_TELL, fail
from casque.cli.files import local_directory, scratch_directory
from casque.cli.options import Json
from casque.cli.output import Terminal, answer, counted_steps
from casque.cli.target import BucketTarget
from casque.client.config import QueueConfig
from casque.errors import CasqueError
from casque.storage.url import open_store

if TYPE_CHECKING:
    from casque.storage.doctor import Report

EXIT_UNSAFE = 1


@command("doctor")
def doctor(target: BucketTarget, json: Json = False) -> None:
    """Check whether a store is safe for a queue: try to make it break the promises that a queue needs. Removes
    everything that it writes.

    Exit code 0: safe. 1: unsafe. 2: cannot tell.
    """
    store = target.url or "a store"
    try:
        place = target.resolve()
        store = place.url
        with counted_steps(wanted=not json) as progress:
            report = asyncio.run(_examine(place, progress))
    except CasqueError as error:
        fail(f"cannot examine {store}: {error}", EXIT_CANNOT_TELL)
    answer(report, lambda: _print_report(report), json=json)
    if not report.safe:
        raise typer.Exit(EXIT_UNSAFE)


async def _examine(place: QueueConfig, progress: Callable[[str, int, int], None]) -> Report:
    """On local files in a new directory, which is removed with everything in it: the store's own files as well."""
    from casque.storage.doctor import examine

    if (directory := local_directory(place.url)) is None:
        return await examine(place.url, options=place.options, progress=progress)
    with scratch_directory(directory, "casque-doctor") as inside:
        report = await examine(inside.as_uri(), options=place.options, progress=progress)
    return msgspec.structs.replace(report, store=repr(open_store(place.url)), leftover="")


def _print_report(report: Report) -> None:
    console = Terminal()
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
