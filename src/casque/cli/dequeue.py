"""`casque dequeue URL`: claim jobs from a shell."""

from __future__ import annotations

import platform
import sys
from typing import Annotated

import typer

from casque.cli.enqueue import span
from casque.cli.place import QueueName, find_place
from casque.cli.running import EXIT_NOTHING, Json, OptionalUrl, StoreOptions, clear_ends, on_queue
from casque.cli.shown import cut, of_most, print_table, show
from casque.cli.terminal import print_json
from casque.client.job import Job
from casque.client.queue import Queue

EXAMPLES = """
[bold]Examples[/]

  casque dequeue file:///var/lib/orders --entrypoint send

  casque dequeue s3://bucket/orders --batch 100 --wait 30s --json

  casque dequeue --zone acme --zone umbrella

  casque dequeue --entrypoint send --ack --json | jq -r .text
"""
COLUMNS = (
    ("id", lambda job: job.id),
    ("token", lambda job: str(job.token)),
    ("entrypoint", lambda job: job.entrypoint),
    ("attempt", lambda job: of_most(job.attempts, job.max_attempts)),
    ("zone", lambda job: job.zone or ""),
    ("payload", lambda job: cut(job.payload)),
)


def dequeue(
    url: OptionalUrl = None,
    entrypoint: Annotated[
        list[str] | None, typer.Option("--entrypoint", "-e", help="Only jobs of this entrypoint; may be repeated.")
    ] = None,
    zone: Annotated[
        list[str] | None,
        typer.Option("--zone", "-z", help="Only jobs of this zone; may be repeated. All take turns unless set."),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", "-n", min=1, help="How many to claim at the most.")] = 1,
    wait: Annotated[
        str, typer.Option("--wait", metavar="SPAN", help="How long to wait for a first one: 30s, 5m.")
    ] = "0",
    lease: Annotated[
        str | None,
        typer.Option("--lease", metavar="SPAN", help="How long the claim holds; the queue's own, 5m, unless set."),
    ] = None,
    ack: Annotated[bool, typer.Option("--ack", help="They are done as soon as they are printed.")] = False,
    worker: Annotated[
        str | None, typer.Option("--worker", help="Who claims, for others to see; this machine's name unless set.")
    ] = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Claim jobs and print them with the token of their lease, which `casque ack` and `casque nack` ask for.

    Who neither acks nor nacks loses the claim: once it is over, the job goes to somebody else. That is noticed by
    whichever process has the queue open all that time, a worker or a broker.

    Exit code 0: there was at least one. 3: there was none. 1: the queue is damaged. 2: it cannot be done. 4: nobody
    knows whether it was done: what may have been claimed comes back when its lease is over.
    """

    with clear_ends():
        waiting = span("--wait", wait)
        holding = None if lease is None else span("--lease", lease)
        place = find_place(url, queue, option)

    async def work(q: Queue[bytes]) -> int:
        jobs = await q.dequeue(entrypoint or None, batch_size=batch, wait=waiting, lease=holding, zone=zone or None)
        try:
            _print(jobs, json)
        except BaseException:
            await q.give_back(jobs)  # nobody has seen them
            raise
        if ack:
            for refused in await q.settle(jobs):
                if refused is not None:
                    raise refused
        return len(jobs)

    if not on_queue(place, work, worker=worker or f"casque-dequeue@{platform.node() or 'shell'}"):
        raise typer.Exit(EXIT_NOTHING)


def _print(jobs: list[Job[bytes]], json: bool) -> None:
    shown = [show(job) for job in jobs]
    if json:
        for job in shown:
            print_json(job)
    elif shown:
        print_table(COLUMNS, shown)
    sys.stdout.flush()
