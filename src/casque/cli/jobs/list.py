"""`casque jobs list`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from casque.cli.command import command
from casque.cli.job_view import JobView, job_columns, view_job
from casque.cli.jobs.select import JobFilter
from casque.cli.options import Entrypoint, Json, Limit
from casque.cli.output import print_rows
from casque.cli.target import QueueTarget
from casque.client.queue import Queue
from casque.fields import GAINED
from casque.types import JobState

COLUMNS = job_columns(
    *("id", "entrypoint", "state", "due", "attempts", "priority", "zone", "worker"),
    *(field.name for field in GAINED),
    "error",
)


class QueuedState(StrEnum):
    """The states of jobs that are in the queue."""

    READY = "ready"
    DELAYED = "delayed"
    RUNNING = "running"
    DEAD = "dead"


Zone = Annotated[str | None, typer.Option("--zone", "-z", help="Only jobs of this zone.")]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", "-t", metavar="TEXT", help="Only jobs with this tag; repeated: with all of them."),
]
States = Annotated[
    list[QueuedState] | None, typer.Option("--state", "-s", help="Only jobs in this state; may be repeated.")
]


@command(
    "jobs list",
    aliases=["ls"],
    examples=[
        "casque jobs list file:///var/lib/orders --state dead --entrypoint send",
        "casque jobs list --zone acme --limit 1000 --json",
        "casque jobs list --tag urgent --tag billing",
    ],
    reads_only=True,
)
def list_(
    target: QueueTarget,
    state: States = None,
    entrypoint: Entrypoint = None,
    zone: Zone = None,
    tag: Tags = None,
    limit: Limit = 50,
    json: Json = False,
) -> None:
    """Show jobs that are in the queue, in the order they were enqueued: waiting, running or dead.

    Jobs that are done or cancelled are in the archive: `casque archive`.

    Exit code 0: shown. 1: the queue is damaged. 2: it cannot be asked.
    """
    tagged = frozenset(tag or ())
    wanted = JobFilter(job_states(state), entrypoint, zone, (lambda job: tagged <= {*job.tags}) if tagged else None)

    async def work(q: Queue[bytes]) -> list[JobView]:
        return [view_job(job) async for job in wanted.find(q, limit + 1)]

    filtered = any((state, entrypoint, zone, tag))
    empty = "no jobs match" if filtered else "no jobs in this queue; finished ones are in `casque archive`"
    print_rows(COLUMNS, target.run(work), json=json, empty=empty, limit=limit)


def job_states(states: list[QueuedState] | None) -> frozenset[JobState] | None:
    return frozenset(JobState(one.value) for one in states) if states else None
