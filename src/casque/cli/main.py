"""All commands of `casque`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from casque import __version__
from casque.cli import (
    ack,
    archive,
    cron,
    dequeue,
    doctor,
    enqueue,
    pipeline,
    report,
    serve,
    tail,
    token,
    worker,
)
from casque.cli.bench import command as bench
from casque.cli.command import HELP, build, commands_of, group
from casque.cli.cost import command as cost
from casque.cli.demo import command as demo
from casque.cli.help import PlainGroup
from casque.cli.jobs import change as change_jobs
from casque.cli.jobs import list as list_jobs
from casque.cli.jobs import show as show_job
from casque.cli.queue import convert, copy, create, gates, importing, info, release, resize, verify
from casque.cli.spark import doctor as spark_doctor
from casque.cli.spark import replay, work
from casque.cli.top import command as top
from casque.cli.zones import consume, export, peek, purge, rules
from casque.cli.zones import list as list_zones
from casque.cli.zones import show as show_zone

GROUPS = (
    group("jobs", "Show, cancel, retry and reschedule jobs in a queue."),
    group("queue", "Create, inspect, pause, copy and convert a queue."),
    group("archive", "Show finished jobs. Without a verb: cat.", cls=archive.CatByDefault, no_args_is_help=False),
    group("cron", "Enqueue jobs on a schedule."),
    group("zones", "Show and limit the tenants of a queue."),
    group("token", "Make and revoke tokens for brokers."),
    group("pipeline", "Turn a queue's history into tables."),
    group("spark", "Run jobs on Spark, and enqueue finished ones again."),
)
MODULES = (
    *(demo, doctor, enqueue, dequeue, ack, tail, top, bench, cost, serve, worker, report),
    *(list_jobs, show_job, change_jobs),
    *(info, create, resize, gates, convert, verify, copy, importing, release),
    *(archive, cron),
    *(list_zones, show_zone, peek, consume, rules, purge, export),
    *(token, pipeline, spark_doctor, replay, work),
)
"""In the order in which help lists them."""

app = typer.Typer(
    name="casque",
    help="A durable job queue whose only infrastructure is a bucket.",
    cls=PlainGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings=HELP,
)
COMMANDS = [command for module in MODULES for command in commands_of(module)]
build(COMMANDS, GROUPS, app)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"casque {__version__}")
        raise typer.Exit


@app.callback()
def casque(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """A durable job queue whose only infrastructure is a bucket."""


def main() -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own lines say less than the errors of casque
    app()
