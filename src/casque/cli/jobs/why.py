"""Why a job is where it is: what it waits for, who runs it, how it ended."""

from __future__ import annotations

from datetime import timedelta
from shlex import quote

from casque.cli.formats import clock_time, duration, jobs_noun, now, of_max
from casque.cli.job_view import JobView, view_job
from casque.cli.jobs.select import UNFINISHED, JobFilter
from casque.client.job import Job
from casque.client.queue import Queue
from casque.errors import NotAllowedError
from casque.service import ArchivedJob
from casque.types import NOT_CLAIMED_IN_TIME, Gate, JobState, ZoneStanding, from_ms

COUNTED_MAX = 10_000
"""How many other jobs are counted; more are "at least" this many."""


async def explain(q: Queue[bytes], job: Job[bytes]) -> str:
    view = view_job(job)
    zone = None
    if view.state in (JobState.READY, JobState.DELAYED):
        gates = (await q.stats()).gates
        if gates.pauses(job.entrypoint):
            whole = gates.queue is Gate.PAUSED
            what, where = ("the queue", "") if whole else (repr(job.entrypoint), f" --entrypoint {job.entrypoint}")
            return f"It waits because {what} is paused. `casque queue resume{where}` lets workers go on.{_due(view)}"
        zone = await _standing(q, job.zone)
        if zone is not None and (waits := await _why_zone_waits(zone, q, job)) is not None:
            return waits + _due(view)
    match view.state:
        case JobState.READY:
            why = await _why_ready(q, job, zone)
            return why if not _is_not_understood(view) else f"{_declines(view)}. {why}"
        case JobState.DELAYED:
            until = f"at {clock_time(view.due_at)} UTC, in {duration(view.due_at - now())}"
            if not view.token:
                return f"It was enqueued for later: it is due {until}."
            if view.crashes and not view.attempts:
                crashes = of_max(view.crashes, view.max_crashes)
                return f"It waits after crash {crashes} of its worker: it is tried again {until}."
            if _is_not_understood(view):
                return f"{_declines(view)}. It is offered again {until}: start workers of the version that enqueued it."
            if not view.attempts:
                return f"Its worker put it off: it is due {until}."
            return f"It waits after attempt {of_max(view.attempts, view.max_attempts)}: it is tried again {until}."
        case JobState.RUNNING:
            return _describe_run(view)
        case _:
            if view.error is not None and view.max_crashes is not None and view.crashes >= view.max_crashes:
                return (
                    f"It is quarantined: {view.crashes} times the process that worked on it died. When the cause is "
                    f"found, `casque jobs retry {job.id}` gives it a fresh start; `casque jobs purge` removes what is "
                    "dead."
                )
            if view.declined and (view.error or "").startswith("no worker understood it"):
                return (
                    f"It is dead because {view.error}. When workers of the right version run, `casque jobs retry "
                    f"{job.id}` gives it a fresh start; `casque jobs purge` removes what is dead."
                )
            spent = view.max_attempts is not None and view.attempts >= view.max_attempts
            how = f"All of its {view.attempts} attempts failed" if spent else "It was given up"
            return (
                f"{how}. `casque jobs retry {job.id}` gives it a fresh set, `casque jobs purge` removes what is dead."
            )


def _is_not_understood(view: JobView) -> bool:
    return bool(view.declined) and not view.attempts


def _declines(view: JobView) -> str:
    count = "One claim" if view.declined == 1 else f"{view.declined} claims"
    return f"{count} gave it back because the worker did not understand it: {view.error}"


def _due(job: JobView) -> str:
    return "" if job.state is JobState.READY else f" It is due at {clock_time(job.due_at)} UTC."


async def _standing(q: Queue[bytes], zone: str | None) -> ZoneStanding | None:
    if zone is None:
        return None
    try:
        found = await q.zones(zone)
    except NotAllowedError:
        return None  # a token for some entrypoints only may not see zones
    return found[0] if found else None


async def _why_zone_waits(standing: ZoneStanding, q: Queue[bytes], job: Job[bytes]) -> str | None:
    """What keeps the jobs of the zone from being claimed, or this one behind others of it; None if nothing does."""
    zone, rules = standing.zone, standing.rules
    if standing.lease is not None and not rules.paused:
        holder = standing.lease.worker or "an unnamed worker"
        return f"It waits for {holder}, which leases its zone {zone!r}: no other worker gets its jobs meanwhile."
    if rules.paused:
        return f"It waits because its zone {zone!r} is paused. `casque zones resume {quote(zone)}` lets workers go on."
    if rules.running_max is not None and standing.running >= rules.running_max:
        return (
            f"It waits because {standing.running:,} of the jobs of its zone {zone!r} run, and its limit is "
            f"{rules.running_max:,}. `casque zones set {quote(zone)} --running-max N` allows more."
        )
    if not standing.fifo:
        return None
    first, ahead = None, 0
    async for other in JobFilter(UNFINISHED, zone=zone).find(q, COUNTED_MAX):
        if other.record.sequence >= job.record.sequence:
            break
        first, ahead = first or other, ahead + 1
    if first is None:
        return None
    least = "at least " if ahead == COUNTED_MAX else ""
    return (
        f"It waits because its zone {zone!r} is FIFO, and {least}{ahead:,} "
        f"{jobs_noun(ahead)} of it came before. The first of them is {first.id}: {view_job(first).state}."
    )


def _describe_run(job: JobView) -> str:
    since = "" if job.claimed_at is None else f" since {clock_time(job.claimed_at)} UTC"
    beat = "" if job.heartbeat_at is None else f", last heartbeat at {clock_time(job.heartbeat_at)} UTC"
    lease = timedelta(seconds=job.lease_s or 0)
    text = f"{job.worker or 'A worker'} has been running it{since}{beat}. "
    if job.heartbeat_at is not None and job.heartbeat_at + lease < now():
        # For people only: queues never compare two clocks.
        return (
            f"{text}Its lease seems to have run out; a process that has had the queue open for {duration(lease)} takes "
            "the job back."
        )
    return f"{text}After {duration(lease)} without a heartbeat another worker gets it."


async def _why_ready(q: Queue[bytes], job: Job[bytes], zone: ZoneStanding | None) -> str:
    """Workers take jobs by priority. Then zones take turns, and jobs without one count as one zone. Within a zone jobs
    go by the time they became due, then in enqueue order."""
    own = _order(job)
    ahead = seen = 0
    neighbours: set[str | None] = set()
    async for other in JobFilter(frozenset({JobState.READY}), job.entrypoint).find(q, COUNTED_MAX):
        seen += 1
        if other.zone == job.zone or other.priority < job.priority:
            ahead += _order(other) < own
        elif other.priority == job.priority:
            neighbours.add(other.zone)
    running = len(await q.jobs(states=[JobState.RUNNING], entrypoint=job.entrypoint, limit=COUNTED_MAX))
    least = "at least " if seen == COUNTED_MAX else ""
    due = from_ms(job.record.due_ms)
    text = f"It has been due since {clock_time(due)} UTC ({duration(now() - due)}), and no worker has claimed it. "
    text += f"Jobs of {job.entrypoint!r} that come before it: {least}{ahead:,}; being worked on: {running:,}."
    if neighbours:
        text += f" It takes turns with {least}{len(neighbours):,} other {'zone' if len(neighbours) == 1 else 'zones'}."
    if zone is not None and zone.rules.per_second is not None:
        text += f" Its zone {zone.zone!r} is limited to {zone.rules.per_second:g} claims per second."
    if not running:
        text += f" Is there a worker for {job.entrypoint!r}?"
    return text


def _order(job: Job[bytes]) -> tuple[int, int, int]:
    return job.priority, job.record.due_ms, job.record.sequence


def describe_end(job: ArchivedJob) -> str:
    at = f"{clock_time(job.finished_at)} UTC"
    match job.state:
        case JobState.DONE:
            return f"It was done at {at}, on attempt {of_max(job.attempts, job.max_attempts)}."
        case JobState.CANCELLED if job.error == NOT_CLAIMED_IN_TIME:
            return f"It expired at {at}: no worker had claimed it in time."
        case JobState.CANCELLED:
            return f"It was cancelled at {at}, {'while it waited' if job.waiting else 'while it ran'}."
        case _:
            crashes = f" and {job.crashes} crashes" if job.crashes else ""
            return f"It died at {at} after {job.attempts} attempts{crashes}, and was removed since."
