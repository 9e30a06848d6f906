"""`casque zones consume module:app`: works off a queue zone after zone, each of them leased."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from casque.cli.logs import LogFormat, telling
from casque.cli.running import StoreOptions, clear_ends, collect_rarely
from casque.cli.store_options import parse_options
from casque.cli.terminal import Terminal
from casque.cli.worker import Way, app_named, work_until_stopped

EXAMPLES_CONSUME = """
[bold]Examples[/]

  casque zones consume shop.jobs:app --managers 8 --workers 50

  casque zones consume shop.jobs:app --url grpc://broker:7700 --token $TOKEN

  casque zones consume shop.jobs:app --selection sequential --dequeue-max 1 -v

  casque zones consume shop.jobs:app --zone acme --burst
"""


class Selection(StrEnum):
    RANDOM = "random"
    SEQUENTIAL = "sequential"


def consume(
    app: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", help="Where the app is, for example shop.jobs:app.", show_default=False),
    ],
    managers: Annotated[int, typer.Option("--managers", "-m", help="Zones that it has at once.")] = 4,
    workers: Annotated[int, typer.Option("--workers", "-w", help="Jobs that are worked on at once.")] = 16,
    dequeue_max: Annotated[
        int, typer.Option("--dequeue-max", help="Jobs that are taken from a zone before others have their turn.")
    ] = 10,
    selection: Annotated[
        Selection,
        typer.Option("--selection", help="Any of the zones that are due, or those that have waited longest."),
    ] = Selection.RANDOM,
    peek_max: Annotated[int, typer.Option("--peek-max", help="Zones that a scan looks at.")] = 100,
    selection_frac: Annotated[
        float, typer.Option("--selection-frac", help="Which share of those that are due a scan selects, one at least.")
    ] = 0.1,
    selection_max: Annotated[int, typer.Option("--selection-max", help="How many a scan selects at most.")] = 10,
    processing_bound: Annotated[
        float | None,
        typer.Option("--processing-bound", metavar="SECONDS", help="A job that takes longer has failed."),
    ] = None,
    zone_lease: Annotated[
        float,
        typer.Option("--zone-lease", metavar="SECONDS", help="How soon its zones go to others if this one dies."),
    ] = 10,
    job_lease: Annotated[
        float, typer.Option("--job-lease", "--lease", metavar="SECONDS", help="How soon its jobs do.")
    ] = 60,
    vesting_threshold: Annotated[
        float,
        typer.Option(
            "--vesting-threshold",
            metavar="SECONDS",
            help="A zone is not released and leased again within so long, if no other waits.",
        ),
    ] = 0.25,
    min_inactive: Annotated[
        float,
        typer.Option("--min-inactive", metavar="SECONDS", help="After so long it forgets that a zone was refused."),
    ] = 30,
    scanner_interval: Annotated[
        float, typer.Option("--scanner-interval", metavar="SECONDS", help="Between two scans.")
    ] = 0.1,
    scanner_idle: Annotated[
        float, typer.Option("--scanner-idle", metavar="SECONDS", help="The same when nothing is found.")
    ] = 1,
    entrypoint: Annotated[
        list[str] | None, typer.Option("--entrypoint", "-e", help="Only jobs of this entrypoint; may be repeated.")
    ] = None,
    zone: Annotated[
        list[str] | None, typer.Option("--zone", "-z", help="Only this zone; may be repeated. All unless set.")
    ] = None,
    drain: Annotated[
        float, typer.Option("--drain", metavar="SECONDS", help="How long running jobs may take when it is to stop.")
    ] = 30,
    burst: Annotated[
        bool, typer.Option("--burst", "--until-empty", help="End when no zone is due, instead of waiting for more.")
    ] = False,
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
    """Work off a queue zone after zone, with the functions of an app: scanner, managers and workers, as in QuiCK.

    A scanner looks which zones have work and selects some of them. A manager leases one, so that nobody else is given
    its jobs, takes at most --dequeue-max of them, hands them to the workers, and releases the zone. On a ring every
    scan begins one shard further. Any number of consumers may run, on any machines, beside plain workers.

    `casque worker` needs none of this to be fair: whoever claims from any zone is given jobs in turns. Use `consume`
    where a zone is to be one consumer's at a time. Jobs without a zone are left to plain workers.

    SIGTERM and Ctrl-C stop it cleanly: its zones are released at once, what was not started goes back, and what runs
    has the time of --drain; then it is stopped and goes back too. If it is killed, its zones go to others after
    --zone-lease and its jobs after --job-lease.

    Exit code 0: ended, though jobs may have failed. 1: the queue is damaged, or is led by a broker. 2: it could not
    start, or the queue cannot be used.
    """
    console = Terminal(stderr=True)
    with clear_ends(console), telling(log_format, verbose):
        from casque.worker import ConsumerOptions, Worker
        from casque.worker import Selection as Selected

        opening: dict[str, Any] = {}
        if option:
            opening["options"] = parse_options(option)
        if via is not None:
            opening["via"] = "broker" if via is Way.BROKER else None
        if token is not None:
            opening["token"] = token
        options = ConsumerOptions(
            managers=managers,
            workers=workers,
            selection=Selected(selection.value),
            peek_max=peek_max,
            selection_frac=selection_frac,
            selection_max=selection_max,
            dequeue_max=dequeue_max,
            processing_bound=processing_bound,
            zone_lease=zone_lease,
            job_lease=job_lease,
            min_inactive=min_inactive,
            vesting_threshold=vesting_threshold,
            scanner_interval=scanner_interval,
            scanner_idle=max(scanner_idle, scanner_interval),
        )
        working = Worker(
            app_named(app),
            entrypoints=entrypoint,
            zones=zone or None,
            drain=drain,
            burst=burst,
            url=url,
            opening=opening,
            consumer=options,
        )
        collect_rarely()
        work_until_stopped(working, console, json=json)
