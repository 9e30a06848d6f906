"""`casque jobs cancel|retry|reschedule|purge|requeue`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

import typer

from casque import times
from casque.cli.command import command
from casque.cli.exits import EXIT_FAILED, confirm, print_error
from casque.cli.formats import jobs_noun
from casque.cli.jobs.list import States, Zone, job_states
from casque.cli.jobs.select import DEAD, UNFINISHED, WAITING, JobFilter
from casque.cli.options import Entrypoint, Json, Yes, parse_span
from casque.cli.output import answer, print_json, progress, say
from casque.cli.target import QueueTarget
from casque.client.queue import Queue
from casque.errors import CasqueError, InvalidInputError, JobNotFoundError, JobStateError

CALLS_MAX = 500
"""Calls in flight: together they are few commits."""

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Which jobs.", show_default=False)]
Change = Callable[[str], Awaitable[None]]


@command(
    "jobs cancel",
    examples=[
        "casque jobs cancel 05789eba-9c3a-4b4b-967a-84db93d181bf",
        "casque jobs cancel s3://bucket/orders --all --state delayed --entrypoint send --yes",
    ],
    audited=True,
)
def cancel(
    target: QueueTarget,
    job_id: Ids = None,
    all_: Annotated[bool, typer.Option("--all", help="All jobs that wait or run and fit the options.")] = False,
    state: States = None,
    entrypoint: Entrypoint = None,
    zone: Zone = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Take waiting or running jobs out of the queue, and into the archive as cancelled. Asks first.

    A worker that runs one of them learns of it at its next heartbeat, or when it is done. Dead jobs are not
    cancelled: retry or purge them.

    Exit code 0: all of them are cancelled. 1: at least one is not, because it was not there, or the question was
    answered with no. 2: it cannot be done. 4: the outcome is unknown.
    """
    wanted = JobFilter(job_states(state) or UNFINISHED, entrypoint, zone)

    def confirm_all(ids: list[str]) -> None:
        confirm(f"Cancel {f'job {ids[0]}' if len(ids) == 1 else f'{len(ids):,} jobs'}?", yes=yes)

    _change_jobs(target, "cancel", job_id, all_, wanted, lambda q: q.cancel, "cancelled", json, confirm_all)


@command(
    "jobs retry",
    examples=[
        "casque jobs retry 05789eba-9c3a-4b4b-967a-84db93d181bf",
        "casque jobs retry s3://bucket/orders --all --entrypoint send",
    ],
    audited=True,
)
def retry(
    target: QueueTarget,
    job_id: Ids = None,
    all_: Annotated[bool, typer.Option("--all", help="All dead jobs that fit the options.")] = False,
    entrypoint: Entrypoint = None,
    zone: Zone = None,
    json: Json = False,
) -> None:
    """Give dead jobs a fresh set of attempts: they are due at once.

    Exit code 0: all of them wait again. 1: at least one does not, because it is not there or not dead. 2: it cannot be
    done. 4: the outcome is unknown.
    """
    wanted = JobFilter(DEAD, entrypoint, zone)
    _change_jobs(target, "retry", job_id, all_, wanted, lambda q: q.retry, "retried", json)


@command(
    "jobs reschedule",
    examples=[
        "casque jobs reschedule 05789eba-9c3a-4b4b-967a-84db93d181bf --at 2030-01-01T06:00",
        "casque jobs reschedule s3://bucket/orders --all --entrypoint send --delay 2h --yes",
        "casque jobs reschedule --all --zone acme --priority -5",
    ],
    audited=True,
)
def reschedule(
    target: QueueTarget,
    job_id: Ids = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="When they are to run; in the past: now.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="SPAN", help="The same, from now: 0s, 30s, 10m, 2h, 1d.")
    ] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="Lower runs first.", show_default=False)] = None,
    all_: Annotated[bool, typer.Option("--all", help="All jobs that wait and fit the options.")] = False,
    state: States = None,
    entrypoint: Entrypoint = None,
    zone: Zone = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Have waiting jobs run at another time, with another priority, or both. With --all it asks first.

    What is not given stays as it is. Jobs of a FIFO zone come one after the other and cannot be put off.

    Exit code 0: all of them are rescheduled. 1: at least one is not, because it is not there or does not wait, or the
    question was answered with no. 2: it cannot be done. 4: the outcome is unknown.
    """
    if at is None and delay is None and priority is None:
        raise InvalidInputError("say what to change: --at, --delay, --priority")
    if at is not None and delay is not None:
        raise InvalidInputError("give either --delay or --at, not both")
    run_at = None if at is None else times.moment("--at", at)
    span = None if delay is None else parse_span("--delay", delay)
    wanted = JobFilter(job_states(state) or WAITING, entrypoint, zone)

    def confirm_all(ids: list[str]) -> None:
        if all_ and ids:
            confirm(f"Reschedule {len(ids):,} {jobs_noun(len(ids))}?", yes=yes)

    def change(q: Queue[bytes]) -> Change:
        return lambda job_id: q.reschedule(job_id, run_at=run_at, delay=span, priority=priority)

    _change_jobs(target, "reschedule", job_id, all_, wanted, change, "rescheduled", json, confirm_all)


@command(
    "jobs purge",
    examples=["casque jobs purge file:///var/lib/orders --entrypoint send", "casque jobs purge --yes --json"],
    audited=True,
)
def purge(target: QueueTarget, entrypoint: Entrypoint = None, yes: Yes = False, json: Json = False) -> None:
    """Remove dead jobs from the queue for good, of one entrypoint or all. Asks first.

    The archive keeps what it has of them.

    Exit code 0: they are gone, or there were none. 1: the question was answered with no, or the queue is damaged. 2: it
    cannot be done. 4: the outcome is unknown.
    """

    async def work(q: Queue[bytes]) -> int:
        if not yes and (ids := await JobFilter(DEAD, entrypoint).find_ids(q)):
            confirm(f"Remove {len(ids):,} dead {jobs_noun(len(ids))} for good?", yes=yes)
        return await q.purge(entrypoint)

    purged = target.run(work)
    answer({"purged": purged}, f"{purged:,} dead {jobs_noun(purged)} removed", json=json)


@command(
    "jobs requeue",
    examples=[
        "casque jobs requeue file:///var/lib/orders --stale 600",
        "casque jobs requeue --stale 3600 --entrypoint send --yes --json",
    ],
    audited=True,
)
def requeue(
    target: QueueTarget,
    stale: Annotated[
        float | None,
        typer.Option(
            "--stale",
            metavar="SECONDS",
            help="Take jobs without a claim or heartbeat for this long, by wall clocks.",
            show_default=False,
        ),
    ] = None,
    entrypoint: Entrypoint = None,
    zone: Zone = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Take running jobs back from workers that are gone, without waiting for their leases. Asks first.

    Stored times are compared with the clock of this machine, or of the broker that leads the queue. If a worker is
    alive all the same, it learns at its next heartbeat that the job is no longer its own, and the job runs twice. It
    counts as a lease that ran out.

    Exit code 0: they wait again, or there were none. 1: the question was answered with no, or the queue is damaged. 2:
    it cannot be done. 4: the outcome is unknown.
    """
    if stale is None or stale < 0:
        raise InvalidInputError("which jobs? Give --stale SECONDS, more than the longest lease of your workers")

    async def work(q: Queue[bytes]) -> int:
        confirm(f"Take back running jobs without a sign of life for {stale:g} s?", yes=yes)
        return await q.requeue_stale(stale, entrypoint=entrypoint, zone=zone)

    requeued = target.run(work)
    answer({"requeued": requeued}, f"{requeued:,} {jobs_noun(requeued)} taken back", json=json)


def _change_jobs(
    target: QueueTarget,
    verb: str,
    job_ids: list[str] | None,
    everything: bool,
    wanted: JobFilter,
    change: Callable[[Queue[bytes]], Change],
    done: str,
    json: bool,
    confirm_all: Callable[[list[str]], None] = lambda _ids: None,
) -> None:
    """Change the jobs that are named, or all that fit. One that is refused does not stop the others."""
    target, named = target.separate(*(job_ids or []))
    if named and everything:
        raise InvalidInputError("give the ids of jobs, or --all, not both")
    if not named and not everything:
        raise InvalidInputError(f"which jobs? casque jobs {verb} [URL] ID..., or --all with --entrypoint or --zone")
    if named and (wanted.entrypoint is not None or wanted.zone is not None):
        raise InvalidInputError("--entrypoint and --zone go together with --all; jobs are named by their ids alone")

    async def work(q: Queue[bytes]) -> int:
        ids = await wanted.find_ids(q) if everything else named
        if ids:
            confirm_all(ids)
        refused = 0
        async for job_id, error in change_each(ids, change(q)):
            if error is not None:
                refused += 1
                print_error(error)
            if json:
                print_json({"id": job_id, "done": error is None, "error": None if error is None else str(error)})
        if not json:
            say(f"{len(ids) - refused:,} {jobs_noun(len(ids) - refused)} {done}")
        return refused

    if target.run(work):
        raise typer.Exit(EXIT_FAILED)


async def change_each(ids: list[str], change: Change) -> AsyncIterator[tuple[str, CasqueError | None]]:
    """Change jobs, many at a time. Yields each with the error that refused it, if any."""

    async def attempt(job_id: str) -> CasqueError | None:
        try:
            await change(job_id)
        except (JobNotFoundError, JobStateError) as error:
            return error
        except InvalidInputError as error:
            if len(ids) == 1:
                raise
            return error  # the other jobs may be in other zones
        return None

    with progress(len(ids), "jobs", wanted=len(ids) > CALLS_MAX) as (bar, task):
        for start in range(0, len(ids), CALLS_MAX):
            some = ids[start : start + CALLS_MAX]
            for result in zip(some, await asyncio.gather(*map(attempt, some)), strict=True):
                yield result
            bar.update(task, completed=start + len(some))
