"""`casque zones show`."""

from __future__ import annotations

from datetime import datetime
from shlex import quote
from typing import Annotated

import msgspec
import typer

from casque.cli.command import command
from casque.cli.exits import EXIT_FAILED, fail
from casque.cli.formats import clock_time
from casque.cli.job_view import JobView, job_columns, view_job
from casque.cli.jobs.select import JobFilter
from casque.cli.options import Json
from casque.cli.output import Out, answer, print_facts, print_table
from casque.cli.target import QueueTarget
from casque.cli.zones.view import (
    Zone,
    ZoneView,
    count_jobs,
    describe_next,
    describe_rules,
    name_zone,
    view_zone,
)
from casque.client.queue import Queue
from casque.types import JobState, ZoneRules

COLUMNS = job_columns("id", "entrypoint", "state", "due", "attempts", "priority", "worker", "payload", "error")


class ZoneStory(msgspec.Struct, frozen=True):
    """A zone, and the first of its jobs."""

    zone: ZoneView
    jobs: tuple[JobView, ...]


@command(
    "zones show",
    examples=["casque zones show acme", "casque zones show s3://bucket/orders acme --limit 50 --json"],
    reads_only=True,
)
def show(
    target: QueueTarget,
    zone: Zone = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many of its jobs.")] = 10,
    json: Json = False,
) -> None:
    """Show a zone, its rules, what holds it back, and the first of its jobs: those that run, then those that wait, in
    the order in which they will be claimed, then dead ones.

    Exit code 0: shown. 1: it has neither jobs nor rules, or the queue is damaged. 2: it cannot be asked.
    """
    target, name = name_zone(target, "show", zone)

    async def work(q: Queue[bytes]) -> ZoneStory | None:
        if not (found := await q.zones(name)):
            return None
        standing = found[0]
        # With the count the search ends at the last job of the zone, before the end of the queue.
        count = count_jobs(standing)
        jobs = [view_job(job) async for job in JobFilter(zone=name).find(q, count)] if count else []
        jobs.sort(key=lambda job: _order(job, fifo=standing.fifo))
        return ZoneStory(view_zone(standing), tuple(jobs[:limit]))

    story = target.run(work)
    if story is None:
        fail(f"the zone {name!r} has neither jobs nor rules here; what it has finished is in the archive", EXIT_FAILED)
    answer(story, lambda: _print_story(story), json=json)


def _order(job: JobView, *, fifo: bool) -> tuple[int, int, datetime]:
    """The sort key of a job in its zone. Jobs are in enqueue order already, which decides between equals, and in a FIFO
    zone between all that wait."""
    match job.state:
        case JobState.RUNNING:
            return 0, 0, job.due_at
        case JobState.READY | JobState.DELAYED if fifo:
            return 1, 0, job.created_at
        case JobState.READY:
            return 1, job.priority, job.due_at
        case JobState.DELAYED:
            return 2, 0, job.due_at
        case _:
            return 3, 0, job.due_at


def _print_story(story: ZoneStory) -> None:
    zone = story.zone
    console = Out(highlight=False)
    print_facts(
        {
            "zone": zone.zone,
            "order": "FIFO: strictly as they were enqueued, one at a time" if zone.fifo else "",
            **{name: f"{getattr(zone, name):,}" for name in ("ready", "delayed", "running", "dead")},
            "next": describe_next(zone),
            "leased by": f"{zone.leased_by}, since {clock_time(zone.leased_at)}" if zone.leased_at is not None else "",
            "rules": describe_rules(ZoneRules(zone.weight, zone.running_max, zone.per_second, zone.paused)),
        }
    )
    if held := _describe_hold(zone):
        console.print()
        console.print(held, soft_wrap=True)
    if story.jobs:
        console.print()
        print_table(COLUMNS, story.jobs)


def _describe_hold(zone: ZoneView) -> str:
    """What keeps its jobs from being claimed, as far as it can be seen."""
    if zone.paused:
        return f"It is paused: none of its jobs are claimed until `casque zones resume {quote(zone.zone)}`."
    if zone.running_max is not None and zone.running >= zone.running_max and zone.ready:
        return (
            f"As many of its jobs run as may at a time, {zone.running_max:,}: the others wait for one of them to end."
        )
    if zone.leased_by is not None and zone.ready:
        return f"It is leased: only {zone.leased_by} is given its jobs, until it lets go or falls silent."
    if zone.fifo and zone.running and zone.ready:
        return "One of its jobs runs: in a FIFO zone the others wait until it has finished."
    if zone.fifo and zone.delayed:
        return "Its first job failed and waits to be tried again: in a FIFO zone the others wait behind it."
    return ""
