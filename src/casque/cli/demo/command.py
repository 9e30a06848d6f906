"""`casque demo`: what casque does, on this machine, in less than a minute."""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from casque.cli.command import command
from casque.cli.exits import EXIT_FAILED
from casque.cli.output import Terminal
from casque.errors import NotInstalledError

SERVER_PACKAGES = ("grpc", "google.protobuf", "h11")
"""A part of what `casque[server]` brings, without which no broker starts."""


@command("demo")
def demo(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the queue; created if it is missing.")] = Path(
        "data"
    ),
    jobs: Annotated[int, typer.Option(min=1, max=100_000, help="How many jobs to enqueue.")] = 600,
    workers: Annotated[int, typer.Option(min=2, max=16, help="How many worker processes to start.")] = 3,
    report: Annotated[
        bool, typer.Option(help="Make tables and a report at the end, with Spark if it is installed.")
    ] = True,
) -> None:
    """Show casque at work: a small shop with a broker, workers, and a burst of jobs, some of which fail and are tried
    again, and some of which never succeed. A worker is killed in the middle of it, and others finish its jobs.

    No service is needed: the queue is a directory. The demo shows the queue as `casque top` does; then how the jobs
    ended, by the archive, and the objects on the disk. In the end the pipeline turns the queue's history into tables
    in a directory beside it, and a report about them is written there. Nothing is left running.

    Exit code 0: every job was finished. 1: something is left or went wrong, or the report could not be written.
    """
    _need_servers()
    from casque.cli.demo.crew import CrewError
    from casque.cli.demo.history import report_history
    from casque.cli.demo.shop import Demo

    console = Terminal(highlight=False)
    try:
        well = asyncio.run(Demo(data.absolute(), jobs, workers, console).run())
    except CrewError as error:
        console.print(str(error), markup=False, style="red", soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    if report:
        well = report_history(data.absolute(), console) and well
    raise typer.Exit(0 if well else EXIT_FAILED)


def _need_servers() -> None:
    """Raises NotInstalledError before anything is started."""
    for package in SERVER_PACKAGES:
        try:
            import_module(package)
        except ImportError:
            raise NotInstalledError(
                "the demo starts a broker, which needs more packages", 'pip install "casque[server]"'
            ) from None
