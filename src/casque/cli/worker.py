"""`casque worker module:app`: works off a queue with the functions of an app."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from casque.cli.logs import LogFormat, telling
from casque.cli.running import EXIT_FAILED, StoreOptions, clear_ends, collect_rarely, fast_loop
from casque.cli.store_options import parse_options
from casque.cli.terminal import Terminal, print_json

if TYPE_CHECKING:
    from casque.worker import Handlers, Summary, Worker

EXAMPLES = """
[bold]Examples[/]

  casque worker shop.jobs:app --concurrency 50

  casque worker shop.jobs:app --entrypoint send_mail --lease 30 -v

  casque worker shop.jobs:app --zone acme --zone umbrella

  casque worker shop.jobs:app --url grpc://broker:7700 --token $TOKEN

  casque worker shop.jobs:app --burst
"""


class Way(StrEnum):
    EMBEDDED = "embedded"
    BROKER = "broker"


def worker(
    app: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", help="Where the app is, for example shop.jobs:app.", show_default=False),
    ],
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", help="Jobs that are worked on at once.")] = 16,
    entrypoint: Annotated[
        list[str] | None, typer.Option("--entrypoint", "-e", help="Only jobs of this entrypoint; may be repeated.")
    ] = None,
    zone: Annotated[
        list[str] | None,
        typer.Option("--zone", "-z", help="Only jobs of this zone; may be repeated. All take turns unless set."),
    ] = None,
    lease: Annotated[
        float, typer.Option("--lease", metavar="SECONDS", help="How soon its jobs come back if this worker dies.")
    ] = 60,
    drain: Annotated[
        float, typer.Option("--drain", metavar="SECONDS", help="How long running jobs may take when it is to stop.")
    ] = 30,
    burst: Annotated[
        bool, typer.Option("--burst", "--until-empty", help="End when nothing is due, instead of waiting for more.")
    ] = False,
    recycle_after: Annotated[
        int | None,
        typer.Option("--recycle-after", metavar="JOBS", help="Replace a process for handlers after so many jobs."),
    ] = None,
    recycle_memory: Annotated[
        int | None,
        typer.Option("--recycle-memory", metavar="MIB", help="Replace a process for handlers that has grown so large."),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Another queue than the app's own: its store, or a broker's address.")
    ] = None,
    via: Annotated[
        Way | None, typer.Option("--via", help="Open the store itself, or go through the broker that leads the queue.")
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", help="The broker's token; by default that in CASQUE_TOKEN.")
    ] = None,
    option: StoreOptions = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON, for a program.")] = False,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="For people, or for programs.")
    ] = LogFormat.TEXT,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Say what becomes of every job; twice for everything.")
    ] = 0,
) -> None:
    """Work off a queue with the functions of an app.

    Claims jobs in batches, only of entrypoints that the app has a function for, and keeps their leases while they run,
    also while a function is too busy to let anything else in. Modules in the directory that this is started from are
    found too. Any number of workers may run, on any machines.

    SIGTERM and Ctrl-C stop it cleanly: nothing more is claimed, what was not started goes back at once, and what runs
    has the time of --drain; then it is stopped and goes back too, which is no attempt. A second one ends it on the
    spot, and its jobs come back when their leases have run out.

    Exit code 0: ended, though jobs may have failed. 1: the queue is damaged, or is led by a broker. 2: it could not
    start, or the queue cannot be used.
    """
    console = Terminal(stderr=True)
    with clear_ends(console), telling(log_format, verbose):
        from casque.worker import Worker

        opening: dict[str, Any] = {}
        if option:
            opening["options"] = parse_options(option)
        if via is not None:
            opening["via"] = "broker" if via is Way.BROKER else None
        if token is not None:
            opening["token"] = token
        working = Worker(
            app_named(app),
            concurrency=concurrency,
            entrypoints=entrypoint,
            zones=zone or None,
            lease=lease,
            drain=drain,
            burst=burst,
            recycle_after=recycle_after,
            recycle_memory=recycle_memory,
            url=url,
            opening=opening,
        )
        collect_rarely()
        work_until_stopped(working, console, json=json)


def work_until_stopped(working: Worker, console: Console, *, json: bool) -> None:
    """Run it and say what it did. Does not return if a handler cannot be stopped: see `casque.worker.farewell`."""
    from casque.worker.farewell import give_back_after

    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        summary = runner.run(run_until_stopped(working, console, quiet=json))
        if json:
            print_json({"worker": working.name, **msgspec.to_builtins(summary)})
        else:
            console.print(words(summary), highlight=False)
        if working.unstopped:
            # Within the runner, whose end waits for coroutines that ignore their cancellation.
            url, opening = working.place
            give_back_after(url, opening, worker=working.name, leases=working.unstopped)


async def run_until_stopped(working: Worker, console: Console, *, quiet: bool) -> Summary:
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if received:
            os._exit(EXIT_FAILED)
        received.append(number)
        if not quiet:
            console.print(f"{number.name}: stopping; again to stop at once", highlight=False)
        working.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    if not quiet:
        names = ", ".join(working.entrypoints)
        whose = f" of {', '.join(working.zones)}" if working.zones is not None else ""
        console.print(f"{working.name} works on {names}{whose}", highlight=False, markup=False, soft_wrap=True)
    return await working.run()


def app_named(name: str) -> Handlers:
    """`package.module:app`. Raises InvalidInputError, which says what is wrong with it."""
    from casque.worker.named import app_named as named

    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return named(name)


def words(summary: Summary) -> str:
    counts = msgspec.to_builtins(summary)
    claimed, done, failed = (counts.pop(name) for name in ("claimed", "done", "failed"))
    said = [f"{claimed:,} claimed", f"{done:,} done", f"{failed:,} failed"]
    return ", ".join(said + [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count])
