"""`casque zones purge|export`: what a tenant has in a queue, taken away or taken along."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, TextIO

import msgspec
import typer

from casque.cli.auditing import audited
from casque.cli.jobs import Chosen, answers
from casque.cli.place import QueueName, find_place
from casque.cli.running import Json, OptionalUrl, StoreOptions, clear_ends, confirmed, on_queue
from casque.cli.shown import ShownJob, progress, show
from casque.cli.terminal import print_json, say
from casque.cli.zones import Zone, named
from casque.client.queue import Queue
from casque.errors import InvalidInputError
from casque.printable import printable_json
from casque.service import ArchivedJob
from casque.types import JobState, ZoneStanding

EXAMPLES_PURGE = """
[bold]Examples[/]

  casque zones pause acme && casque zones purge acme --yes

  casque zones purge s3://bucket/orders acme --dead-only
"""
EXAMPLES_EXPORT = """
[bold]Examples[/]

  casque zones export acme --output acme.jsonl

  casque zones export s3://bucket/orders acme | jq -r 'select(.where == "archive") | .state' | sort | uniq -c
"""
WAITS = frozenset({JobState.READY, JobState.DELAYED})
TOLD_EVERY = 200
"""Jobs between two looks at the bar."""


class ZonePurged(msgspec.Struct, frozen=True):
    """What became of a zone's jobs."""

    zone: str
    cancelled: int
    purged: int
    """Dead ones that were removed."""
    kept: int
    """That could not be cancelled, because they were over meanwhile."""
    running: int
    """That were being worked on, and go on."""


class ZoneExported(msgspec.Struct, frozen=True):
    """How much there was of a zone."""

    zone: str
    jobs: int
    """In the queue: unfinished and dead ones."""
    finished: int
    """In the archive."""


@audited("zones purge")
def purge(
    url: OptionalUrl = None,
    zone: Zone = None,
    dead_only: Annotated[bool, typer.Option("--dead-only", help="Leave the jobs alone that wait.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Cancel all waiting jobs of a zone and remove its dead ones for good. Asks before it does.

    What is being worked on goes on: `casque jobs cancel --all --zone ZONE --state running` ends that too. Jobs may come
    and be claimed meanwhile: of a paused zone none are. The archive keeps what it has, with the cancelled ones, and
    what is set for the zone stays.

    Exit code 0: they are gone, or there were none. 1: nobody wanted it, or the queue is damaged. 2: it cannot be done.
    4: nobody knows whether it was done.
    """
    with clear_ends():
        address, name = named("purge", url, zone)
        place = find_place(address, queue, option)

    async def work(q: Queue[bytes]) -> ZonePurged:
        found = await q.zones(name)
        standing = found[0] if found else ZoneStanding(name)
        waiting = 0 if dead_only else standing.ready + standing.delayed
        if waiting or standing.dead:
            confirmed(_question(name, waiting, standing.dead), yes=yes)
        ids = [job.id async for job in Chosen(WAITS, zone=name).among(q, waiting)] if waiting else []
        cancelled = 0
        async for _, refused in answers(ids, q.cancel):
            cancelled += refused is None
        purged = await q.purge(zone=name) if standing.dead else 0
        return ZonePurged(name, cancelled, purged, len(ids) - cancelled, standing.running)

    done = on_queue(place, work)
    if json:
        print_json(done)
        return
    removed = f"{done.purged:,} dead {_jobs(done.purged)} removed"
    say(removed if dead_only else f"{done.cancelled:,} waiting {_jobs(done.cancelled)} cancelled, {removed}")
    if done.running:
        say(f"being worked on, and left alone: {done.running:,}", err=True)


def export(
    url: OptionalUrl = None,
    zone: Zone = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", dir_okay=False, help="Where to; standard output unless set."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="With --output: say how many there were as JSON.")] = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Write down all that a queue knows of a zone's jobs, as JSON lines: those that are in the queue, waiting, running
    or dead, then all that its archive has. `where` says which: queue or archive.

    Nothing is changed. A job that ends meanwhile may be in both; one that has ended within the last seconds may not be
    in the archive yet. A file is there when all of it is.

    Exit code 0: written. 1: the queue or its archive is damaged. 2: it cannot be done.
    """
    with clear_ends():
        address, name = named("export", url, zone)
        place = find_place(address, queue, option)

    async def work(q: Queue[bytes]) -> ZoneExported:
        if output is None:
            return await _export(q, name, sys.stdout)
        with _whole(output) as file:
            return await _export(q, name, file)

    done = on_queue(place, work, looks=output is None)
    if json and output is not None:
        print_json(done)
    elif not json:
        said = f"{done.jobs:,} {_jobs(done.jobs)} of {name!r} in the queue, {done.finished:,} in the archive"
        say(said if output is None else f"{said}: {output}", err=True)


@contextmanager
def _whole(path: Path) -> Iterator[TextIO]:
    """A file that is there once all of it is written, or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            yield file
        beside.replace(path)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


async def _export(q: Queue[bytes], zone: str, file: TextIO) -> ZoneExported:
    jobs = finished = 0
    found = await q.zones(zone)
    count = sum((one.ready + one.delayed + one.running + one.dead) for one in found)
    with progress(count, "the queue", wanted=True) as (bar, task):
        async for job in Chosen(zone=zone).among(q):
            _write(file, "queue", show(job))
            jobs += 1
            if not jobs % TOLD_EVERY:
                bar.update(task, completed=jobs, description=f"{jobs:,} jobs")
    with progress(None, "the archive", wanted=True) as (bar, task):
        read = 0
        async with aclosing(q.archive()) as archive:
            async for over in archive:
                read += 1
                if over.zone == zone:
                    _write(file, "archive", over)
                    finished += 1
                if not read % TOLD_EVERY:
                    bar.update(task, description=f"{finished:,} of {read:,} finished")
    return ZoneExported(zone, jobs, finished)


def _write(file: TextIO, where: str, job: ShownJob | ArchivedJob) -> None:
    line = {"where": where, **msgspec.to_builtins(job)}
    file.write(f"{printable_json(msgspec.json.encode(line))}\n")


def _question(zone: str, waiting: int, dead: int) -> str:
    parts = [f"cancel {waiting:,} waiting {_jobs(waiting)}"] if waiting else []
    parts += [f"remove {dead:,} dead {_jobs(dead)} for good"] if dead else []
    return f"The zone {zone}: {' and '.join(parts)}?"


def _jobs(count: int) -> str:
    return "job" if count == 1 else "jobs"
