"""`casque dequeue`: claim jobs from a shell."""

from __future__ import annotations

import platform
import sys
from typing import Annotated

import typer

from casque.cli.command import command
from casque.cli.exits import EXIT_NOTHING
from casque.cli.job_view import job_columns, view_job
from casque.cli.options import ClaimedZones, Json, parse_span
from casque.cli.output import print_json, print_table, say
from casque.cli.target import QueueTarget
from casque.client.job import Job
from casque.client.queue import Queue

COLUMNS = job_columns("id", "token", "entrypoint", "attempt", "zone", "payload")


@command(
    "dequeue",
    examples=[
        "casque dequeue file:///var/lib/orders send",
        "casque dequeue s3://bucket/orders --batch 100 --wait 30s --json",
        "casque dequeue --zone acme --zone umbrella",
        "casque dequeue send --ack --json | jq -r .text",
    ],
)
def dequeue(
    target: QueueTarget,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ENTRYPOINT", help="Only jobs of these entrypoints. All unless set.", show_default=False
        ),
    ] = None,
    entrypoint: Annotated[
        list[str] | None,
        typer.Option("--entrypoint", "-e", metavar="NAME", help="The same, as an option; may be repeated."),
    ] = None,
    zone: ClaimedZones = None,
    batch: Annotated[int, typer.Option("--batch", "-n", min=1, help="Claim at most this many jobs.")] = 1,
    wait: Annotated[str, typer.Option("--wait", metavar="SPAN", help="Wait this long for a first job: 30s, 5m.")] = "0",
    lease: Annotated[
        str | None,
        typer.Option(
            "--job-lease",
            "--lease",
            metavar="SPAN",
            help="The lease of the jobs: how long the claim holds; the queue's own, 5m, unless set.",
        ),
    ] = None,
    ack: Annotated[bool, typer.Option("--ack", help="Settle the jobs as done once they are printed.")] = False,
    worker: Annotated[
        str | None,
        typer.Option("--worker", metavar="NAME", help="Name of the claiming worker; this machine's name unless set."),
    ] = None,
    json: Json = False,
) -> None:
    """Claim jobs and print them: each with the token of its lease, which `casque ack` and `casque nack` take.

    A job that is neither acked nor nacked goes to another worker when its lease runs out, which a running worker or
    broker notices.

    Exit code 0: there was at least one. 3: there was none. 1: the queue is damaged. 2: it cannot be done. 4: the
    outcome is unknown: jobs that may have been claimed come back when their lease runs out.
    """
    target, named = target.separate(*(names or ()))
    wanted = [*named, *(entrypoint or ())]
    waiting = parse_span("--wait", wait)
    holding = None if lease is None else parse_span("--job-lease", lease)

    async def work(q: Queue[bytes]) -> int:
        jobs = await q.dequeue(wanted or None, batch_size=batch, wait=waiting, lease=holding, zone=zone or None)
        try:
            _print_jobs(jobs, json)
        except BaseException:
            await q.give_back(jobs)  # they were not printed
            raise
        if ack:
            for refused in await q.settle(jobs):
                if refused is not None:
                    raise refused
        return len(jobs)

    if not target.run(work, worker=worker or f"casque-dequeue@{platform.node() or 'shell'}"):
        if not json:
            say("nothing to claim now", err=True)
        raise typer.Exit(EXIT_NOTHING)


def _print_jobs(jobs: list[Job[bytes]], json: bool) -> None:
    views = [view_job(job) for job in jobs]
    if json:
        for view in views:
            print_json(view)
    elif views:
        print_table(COLUMNS, views)
    sys.stdout.flush()
