"""`casque jobs list|cancel|retry|purge`: the jobs that are in a queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from casque.cli.auditing import audited
from casque.cli.place import QueueName, apart, find_place
from casque.cli.running import EXIT_FAILED, Json, OptionalUrl, StoreOptions, clear_ends, confirmed, on_queue
from casque.cli.shown import clock_time, coloured, cut, of_most, print_table, progress, show
from casque.cli.terminal import Terminal, print_json, say
from casque.client.job import Job
from casque.client.queue import Queue
from casque.errors import CasqueError, InvalidInputError, JobNotFoundError, JobStateError
from casque.types import JobState

EXAMPLES_LIST = """
[bold]Examples[/]

  casque jobs list file:///var/lib/orders --state dead --entrypoint send

  casque jobs list --zone acme --limit 1000 --json
"""
EXAMPLES_CANCEL = """
[bold]Examples[/]

  casque jobs cancel 05789eba-9c3a-4b4b-967a-84db93d181bf

  casque jobs cancel s3://bucket/orders --all --state delayed --entrypoint send --yes
"""
EXAMPLES_RETRY = """
[bold]Examples[/]

  casque jobs retry 05789eba-9c3a-4b4b-967a-84db93d181bf

  casque jobs retry s3://bucket/orders --all --entrypoint send
"""
EXAMPLES_PURGE = """
[bold]Examples[/]

  casque jobs purge file:///var/lib/orders --entrypoint send

  casque jobs purge --yes --json
"""
EXAMPLES_REQUEUE = """
[bold]Examples[/]

  casque jobs requeue file:///var/lib/orders --stale 600

  casque jobs requeue --stale 3600 --entrypoint send --yes --json
"""
PORTION = 5_000
AT_ONCE = 500
"""Calls in flight: together they are few commits."""


class Listed(StrEnum):
    """States of jobs that are in the queue."""

    READY = "ready"
    DELAYED = "delayed"
    RUNNING = "running"
    DEAD = "dead"


Entrypoint = Annotated[str | None, typer.Option("--entrypoint", "-e", help="Only jobs of this entrypoint.")]
Zone = Annotated[str | None, typer.Option("--zone", "-z", help="Only jobs of this zone.")]
States = Annotated[list[Listed] | None, typer.Option("--state", "-s", help="Only jobs in this state; may be repeated.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Which jobs.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

COLUMNS = (
    ("id", lambda job: job.id),
    ("entrypoint", lambda job: job.entrypoint),
    ("state", lambda job: coloured(job.state)),
    ("due", lambda job: clock_time(job.due_at)),
    ("attempts", lambda job: of_most(job.attempts, job.max_attempts)),
    ("priority", lambda job: str(job.priority or "")),
    ("zone", lambda job: job.zone or ""),
    ("worker", lambda job: job.worker or ""),
    ("error", lambda job: cut(job.error)),
)


class Chosen(msgspec.Struct, frozen=True):
    """Which jobs are meant."""

    states: frozenset[JobState] | None = None
    entrypoint: str | None = None
    zone: str | None = None

    async def among(self, q: Queue[bytes], limit: int | None = None) -> AsyncIterator[Job[bytes]]:
        """In enqueue order, a portion at a time: a queue does not look for zones itself."""
        found = after = 0
        while True:
            portion = PORTION if limit is None or self.zone is not None else min(PORTION, limit - found)
            jobs = await q.jobs(states=self.states, entrypoint=self.entrypoint, limit=portion, after=after)
            for job in jobs:
                if self.zone is None or job.zone == self.zone:
                    yield job
                    found += 1
                    if found == limit:
                        return
            if len(jobs) < portion:
                return
            after = jobs[-1].record.sequence


def list_(
    url: OptionalUrl = None,
    state: States = None,
    entrypoint: Entrypoint = None,
    zone: Zone = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 50,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Show jobs that are in the queue, in the order they were enqueued: waiting, running or dead.

    What is done or was cancelled is in the archive: `casque archive`.

    Exit code 0: shown. 1: the queue is damaged. 2: it cannot be asked.
    """
    with clear_ends():
        place = find_place(url, queue, option)
    chosen = Chosen(_states(state), entrypoint, zone)

    async def work(q: Queue[bytes]) -> None:
        jobs = [show(job) async for job in chosen.among(q, limit + 1)]
        if json:
            for shown in jobs[:limit]:
                print_json(shown)
        elif jobs:
            print_table(COLUMNS, jobs[:limit])
        if len(jobs) > limit:
            say(f"there are more than {limit:,}: --limit shows more of them", err=True)
        if not jobs and not json:
            say("there is no such job in the queue", err=True)

    on_queue(place, work, looks=True)


@audited("jobs cancel")
def cancel(
    url: OptionalUrl = None,
    job_id: Ids = None,
    all_: Annotated[bool, typer.Option("--all", help="All jobs that wait or run and fit the options.")] = False,
    state: States = None,
    entrypoint: Entrypoint = None,
    zone: Zone = None,
    yes: Yes = False,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Take waiting or running jobs out of the queue, and into the archive as cancelled. Asks before it does.

    A worker that is at one of them learns of it at its next heartbeat, or when it is done. Dead jobs are not
    cancelled: retry or purge them.

    Exit code 0: all of them are cancelled. 1: at least one is not, because it was not there, or nobody wanted it.
    2: it cannot be done. 4: nobody knows whether it was done.
    """
    with clear_ends():
        address, ids = apart(url, *(job_id or []))
        alive = frozenset({JobState.READY, JobState.DELAYED, JobState.RUNNING})
        chosen = _chosen("cancel", ids, all_, Chosen(_states(state) or alive, entrypoint, zone))
        place = find_place(address, queue, option)

    async def work(q: Queue[bytes]) -> bool:
        meant = ids if chosen is None else [job.id async for job in chosen.among(q)]
        if meant:
            confirmed(f"Cancel {_jobs(meant)}?", yes=yes)
        return await _each(meant, q.cancel, "cancelled", json)

    if not on_queue(place, work):
        raise typer.Exit(EXIT_FAILED)


@audited("jobs retry")
def retry(
    url: OptionalUrl = None,
    job_id: Ids = None,
    all_: Annotated[bool, typer.Option("--all", help="All dead jobs that fit the options.")] = False,
    entrypoint: Entrypoint = None,
    zone: Zone = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Give dead jobs a fresh set of attempts: they are due at once.

    Exit code 0: all of them wait again. 1: at least one does not, because it is not there or not dead. 2: it cannot be
    done. 4: nobody knows whether it was done.
    """
    with clear_ends():
        address, ids = apart(url, *(job_id or []))
        chosen = _chosen("retry", ids, all_, Chosen(frozenset({JobState.DEAD}), entrypoint, zone))
        place = find_place(address, queue, option)

    async def work(q: Queue[bytes]) -> bool:
        meant = ids if chosen is None else [job.id async for job in chosen.among(q)]
        return await _each(meant, q.retry, "retried", json)

    if not on_queue(place, work):
        raise typer.Exit(EXIT_FAILED)


@audited("jobs purge")
def purge(
    url: OptionalUrl = None,
    entrypoint: Entrypoint = None,
    yes: Yes = False,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Remove dead jobs from the queue for good, of one entrypoint or all. Asks before it does.

    The archive keeps what it has of them.

    Exit code 0: they are gone, or there were none. 1: nobody wanted it, or the queue is damaged. 2: it cannot be done.
    4: nobody knows whether it was done.
    """
    with clear_ends():
        place = find_place(url, queue, option)

    async def work(q: Queue[bytes]) -> int:
        dead = Chosen(frozenset({JobState.DEAD}), entrypoint)
        ids = [] if yes else [job.id async for job in dead.among(q)]
        if ids:
            confirmed(f"Remove {len(ids):,} dead {'job' if len(ids) == 1 else 'jobs'} for good?", yes=yes)
        return await q.purge(entrypoint)

    purged = on_queue(place, work)
    if json:
        print_json({"purged": purged})
    else:
        say(f"{purged:,} dead {'job' if purged == 1 else 'jobs'} removed")


@audited("jobs requeue")
def requeue(
    url: OptionalUrl = None,
    stale: Annotated[
        float | None,
        typer.Option(
            "--stale",
            metavar="SECONDS",
            help="Jobs without a claim or heartbeat for this long, by the clocks on the wall.",
            show_default=False,
        ),
    ] = None,
    entrypoint: Entrypoint = None,
    zone: Zone = None,
    yes: Yes = False,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Take running jobs back from workers that are gone, without waiting for their leases. Asks before it does.

    Written times are compared with the clock of this machine, or of the broker that leads the queue. If a worker is
    alive all the same, it learns at its next heartbeat that the job is no longer its own, and the job runs twice. It
    counts as a lease that ran out.

    Exit code 0: they wait again, or there were none. 1: nobody wanted it, or the queue is damaged. 2: it cannot be
    done. 4: nobody knows whether it was done.
    """
    with clear_ends():
        if stale is None or stale < 0:
            raise InvalidInputError("which jobs? Give --stale SECONDS, more than the longest lease of your workers")
        place = find_place(url, queue, option)

    async def work(q: Queue[bytes]) -> int:
        confirmed(f"Take back running jobs without a sign of life for {stale:g} s?", yes=yes)
        return await q.requeue_stale(stale, entrypoint=entrypoint, zone=zone)

    requeued = on_queue(place, work)
    if json:
        print_json({"requeued": requeued})
    else:
        say(f"{requeued:,} {'job' if requeued == 1 else 'jobs'} taken back")


def _states(state: list[Listed] | None) -> frozenset[JobState] | None:
    return frozenset(JobState(one.value) for one in state) if state else None


def _chosen(verb: str, ids: list[str], everything: bool, chosen: Chosen) -> Chosen | None:
    """None if they are named one by one."""
    if ids and everything:
        raise InvalidInputError("give the ids of jobs, or --all, not both")
    if not ids and not everything:
        raise InvalidInputError(f"which jobs? casque jobs {verb} [URL] ID..., or --all with --entrypoint or --zone")
    if ids and (chosen.entrypoint is not None or chosen.zone is not None):
        raise InvalidInputError("--entrypoint and --zone go together with --all; jobs are named by their ids alone")
    return chosen if everything else None


async def _each(ids: list[str], verb: Callable[[str], Awaitable[None]], done: str, json: bool) -> bool:
    """Carry it out on every one; what one of them refuses does not keep it from the others. Whether none did."""
    console = Terminal(stderr=True)
    refused = 0
    async for one, answer in answers(ids, verb):
        if answer is not None:
            refused += 1
            console.print(str(answer), markup=False, style="red", highlight=False, soft_wrap=True)
        if json:
            print_json({"id": one, "done": answer is None, "error": None if answer is None else str(answer)})
    if not json:
        say(f"{len(ids) - refused:,} {'job' if len(ids) - refused == 1 else 'jobs'} {done}")
    return not refused


async def answers(
    ids: list[str], verb: Callable[[str], Awaitable[None]]
) -> AsyncIterator[tuple[str, CasqueError | None]]:
    """Carry it out on many at a time, and say of each what kept it from being done, if anything."""
    with progress(len(ids), "jobs", wanted=len(ids) > AT_ONCE) as (bar, task):
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            for answered in zip(some, await asyncio.gather(*map(_tried(verb), some)), strict=True):
                yield answered
            bar.update(task, completed=start + len(some))


def _tried(verb: Callable[[str], Awaitable[None]]) -> Callable[[str], Awaitable[CasqueError | None]]:
    async def tried(job_id: str) -> CasqueError | None:
        try:
            await verb(job_id)
        except (JobNotFoundError, JobStateError) as error:
            return error
        return None

    return tried


def _jobs(ids: list[str]) -> str:
    return f"job {ids[0]}" if len(ids) == 1 else f"{len(ids):,} jobs"
