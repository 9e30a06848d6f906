"""`casque zones consume`: run a worker that leases one zone after the other."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from casque.cli.command import Options, command
from casque.cli.worker import WorkerOptions


class Selection(StrEnum):
    RANDOM = "random"
    SEQUENTIAL = "sequential"


class ConsumerFlags(Options, frozen=True, kw_only=True):
    """The fields of `casque.worker.ConsumerOptions`, each an option; importing that takes too long for `--help`."""

    managers: Annotated[int, typer.Option("--managers", "-m", help="Zones that it leases at once.")] = 4
    workers: Annotated[int, typer.Option("--workers", "-w", help="Jobs that run at once.")] = 16
    dequeue_max: Annotated[
        int, typer.Option("--dequeue-max", help="Jobs to take from a zone before others have their turn.")
    ] = 10
    selection: Annotated[
        Selection,
        typer.Option("--selection", help="Select any of the due zones, or those that have waited longest."),
    ] = Selection.RANDOM
    peek_max: Annotated[int, typer.Option("--peek-max", help="Zones that a scan looks at.")] = 100
    selection_frac: Annotated[
        float, typer.Option("--selection-frac", help="Which share of the due zones a scan selects, one at least.")
    ] = 0.1
    selection_max: Annotated[int, typer.Option("--selection-max", help="How many a scan selects at most.")] = 10
    processing_bound: Annotated[
        float | None,
        typer.Option("--processing-bound", metavar="SECONDS", help="A job that takes longer has failed."),
    ] = None
    zone_lease: Annotated[
        float,
        typer.Option(
            "--zone-lease",
            metavar="SECONDS",
            help="The lease of its zones: how soon they go to others if this one dies.",
        ),
    ] = 10
    job_lease: Annotated[
        float,
        typer.Option(
            "--job-lease",
            "--lease",
            metavar="SECONDS",
            help="The lease of its jobs: how soon they go to others if this one dies.",
        ),
    ] = 60
    vesting_threshold: Annotated[
        float,
        typer.Option(
            "--vesting-threshold",
            metavar="SECONDS",
            help="Keep a zone instead of leasing it again within this time, if no other waits.",
        ),
    ] = 0.25
    min_inactive: Annotated[
        float,
        typer.Option("--min-inactive", metavar="SECONDS", help="Forget after this time that a zone was refused."),
    ] = 30
    scanner_interval: Annotated[
        float, typer.Option("--scanner-interval", metavar="SECONDS", help="Between two scans.")
    ] = 0.1
    scanner_idle: Annotated[
        float, typer.Option("--scanner-idle", metavar="SECONDS", help="Between two scans when nothing is found.")
    ] = 1


@command(
    "zones consume",
    examples=[
        "casque zones consume shop.jobs:app --managers 8 --workers 50",
        "casque zones consume shop.jobs:app --url grpc://broker:7700 --token $TOKEN",
        "casque zones consume shop.jobs:app --selection sequential --dequeue-max 1 -v",
        "casque zones consume shop.jobs:app --zone acme --burst",
    ],
)
def consume(flags: ConsumerFlags, options: WorkerOptions) -> None:
    """Run a worker zone after zone, for an app's jobs: scanner, managers and workers, as in QuiCK.

    A scanner looks which zones have work and selects some of them. A manager leases one, so that no other consumer is
    given its jobs, takes at most --dequeue-max of them, hands them to the workers, and releases the zone. On a ring
    every scan begins one shard further. Any number of consumers may run, on any machines, beside plain workers.

    `casque worker` needs none of this to be fair: a worker that claims from any zone is given jobs in turns. Use
    `consume` where a zone is to be one consumer's at a time. Jobs without a zone are left to plain workers.

    SIGTERM and Ctrl-C stop it cleanly: its zones are released at once, jobs that were not started go back, and running
    jobs have the time of --drain; then they are stopped and go back too. If it is killed, its zones go to others after
    --zone-lease and its jobs after --job-lease.

    Exit code 0: ended, though jobs may have failed. 1: the queue is damaged, or is led by a broker. 2: it could not
    start, or the queue cannot be used.
    """
    from casque.worker import ConsumerOptions, Selection

    given = msgspec.structs.asdict(flags)
    given["selection"] = Selection(flags.selection.value)
    given["scanner_idle"] = max(flags.scanner_idle, flags.scanner_interval)
    options.run(consumer=ConsumerOptions(**given))
