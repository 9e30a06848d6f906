"""`casque demo`: what casque does, on this machine, in less than a minute."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from casque.cli.running import EXIT_FAILED, EXIT_INTERRUPTED, clear_ends
from casque.cli.terminal import Terminal


def demo(
    data: Annotated[Path, typer.Option(help="Where the queue lives; created if it is not there.")] = Path("data"),
    jobs: Annotated[int, typer.Option(min=1, max=100_000, help="How many jobs to enqueue.")] = 600,
    workers: Annotated[int, typer.Option(min=2, max=16, help="How many worker processes to start.")] = 3,
    report: Annotated[
        bool, typer.Option(help="Make tables and a report of it in the end, with Spark if that is installed.")
    ] = True,
) -> None:
    """Run a small shop: a broker, workers, and a burst of jobs, some of which fail and are tried again, and some of
    which never succeed. A worker is killed in the middle of it, and others finish what it held.

    No service is needed: the queue is a directory. What happens is shown as `casque top` shows it; then what became of
    the jobs, by the archive, and what lies on the disk. In the end the pipeline turns the queue's history into tables
    in a directory beside it, and a report about them is written there. Nothing is left running.

    Exit code 0: every job was worked off. 1: something is left or went wrong, or the report could not be written.
    """
    from casque.cli.demo.crew import CrewError
    from casque.cli.demo.history import tell_history
    from casque.cli.demo.shop import Demo

    console = Terminal(highlight=False)
    try:
        with clear_ends(console):
            well = asyncio.run(Demo(data.absolute(), jobs, workers, console).run())
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except CrewError as error:
        console.print(str(error), markup=False, style="red", soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    if report:
        well = tell_history(data.absolute(), console) and well
    raise typer.Exit(0 if well else EXIT_FAILED)
