"""`casque zones export`: write down all jobs of a zone."""

from __future__ import annotations

import sys
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, TextIO

import msgspec
import typer

from casque.cli.command import command
from casque.cli.files import write_whole
from casque.cli.formats import jobs_noun
from casque.cli.job_view import JobView, view_job
from casque.cli.jobs.select import JobFilter
from casque.cli.output import print_json, progress, say
from casque.cli.target import QueueTarget
from casque.cli.zones.view import Zone, count_jobs, name_zone
from casque.client.queue import Queue
from casque.printable import printable_json
from casque.service import ArchivedJob

REPORTED_EVERY = 200
"""Jobs between two updates of the bar."""


class ZoneExported(msgspec.Struct, frozen=True):
    """How many jobs were written."""

    zone: str
    jobs: int
    """In the queue: unfinished and dead ones."""
    finished: int
    """In the archive."""


@command(
    "zones export",
    examples=[
        "casque zones export acme --output acme.jsonl",
        "casque zones export s3://bucket/orders acme | jq -r 'select(.where == \"archive\") | .state' | sort | uniq -c",
    ],
    reads_only=True,
)
def export(
    target: QueueTarget,
    zone: Zone = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", dir_okay=False, help="Where to; standard output unless set."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="With --output: say how many there were as JSON.")] = False,
) -> None:
    """Write all that a queue knows of a zone's jobs as JSON lines: those in the queue, waiting, running or dead, then
    all in its archive. `where` says which: queue or archive.

    Nothing is changed. A job that finishes meanwhile may be in both; one that finished within the last seconds may not
    be in the archive yet. A file appears when all of it is written.

    Exit code 0: written. 1: the queue or its archive is damaged. 2: it cannot be done.
    """
    target, name = name_zone(target, "export", zone)

    async def work(q: Queue[bytes]) -> ZoneExported:
        if output is None:
            return await _export(q, name, sys.stdout)
        with write_whole(output) as file:
            return await _export(q, name, file)

    done = target.run(work)
    if json and output is not None:
        print_json(done)
    elif not json:
        counts = f"{done.jobs:,} {jobs_noun(done.jobs)} of {name!r} in the queue, {done.finished:,} in the archive"
        say(counts if output is None else f"{counts}: {output}", err=True)


async def _export(q: Queue[bytes], zone: str, file: TextIO) -> ZoneExported:
    jobs = finished = 0
    with progress(sum(map(count_jobs, await q.zones(zone))), "the queue") as (bar, task):
        async for job in JobFilter(zone=zone).find(q):
            _write(file, "queue", view_job(job))
            jobs += 1
            if not jobs % REPORTED_EVERY:
                bar.update(task, completed=jobs, description=f"{jobs:,} jobs")
    with progress(None, "the archive") as (bar, task):
        read = 0
        async with aclosing(q.archive()) as archive:
            async for archived in archive:
                read += 1
                if archived.zone == zone:
                    _write(file, "archive", archived)
                    finished += 1
                if not read % REPORTED_EVERY:
                    bar.update(task, description=f"{finished:,} of {read:,} finished")
    return ZoneExported(zone, jobs, finished)


def _write(file: TextIO, where: str, job: JobView | ArchivedJob) -> None:
    line = {"where": where, **msgspec.to_builtins(job)}
    file.write(f"{printable_json(msgspec.json.encode(line))}\n")
