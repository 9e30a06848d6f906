"""`casque jobs show URL ID`: the whole story of one job."""

from __future__ import annotations

from datetime import datetime, timedelta
from shlex import quote
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from casque import times
from casque.cli.jobs import Chosen
from casque.cli.place import QueueName, apart, find_place
from casque.cli.running import Json, OptionalUrl, StoreOptions, clear_ends, on_queue
from casque.cli.shown import (
    Out,
    ShownJob,
    clock_time,
    coloured,
    cut,
    length,
    now,
    of_most,
    print_table,
    show,
)
from casque.cli.terminal import Terminal, print_json
from casque.client.job import Job
from casque.client.queue import Queue
from casque.errors import InvalidInputError, JobNotFoundError, NotAllowedError
from casque.printable import printable
from casque.service import ArchivedJob
from casque.types import Gate, JobState, Progress, ZoneStanding, from_ms

EXAMPLES = """
[bold]Examples[/]

  casque jobs show file:///var/lib/orders 05789eba-9c3a-4b4b-967a-84db93d181bf

  casque jobs show 05789eba-9c3a-4b4b-967a-84db93d181bf --since 24h --json
"""
AHEAD_MAX = 10_000
"""So many others are counted before it says: at least."""
FIFO_WAITS_FOR = frozenset({JobState.READY, JobState.DELAYED, JobState.RUNNING})


class Story(msgspec.Struct, frozen=True):
    """What is known about a job: as it is in the queue, or else how it has finished."""

    id: str
    why: str
    """Why it is where it is, in words."""
    job: ShownJob | None = None
    finishes: tuple[ArchivedJob, ...] = ()
    """More than one if it was dead and given fresh attempts."""


class TriedOnce(msgspec.Struct, frozen=True):
    """A line of the table of attempts."""

    claimed_at: datetime | None
    ended_at: datetime | None
    how: str
    worker: str | None
    token: int
    error: str | None

    @property
    def took(self) -> str:
        return "" if self.claimed_at is None or self.ended_at is None else length(self.ended_at - self.claimed_at)


COLUMNS = (
    ("claimed", lambda tried: clock_time(tried.claimed_at)),
    ("ended", lambda tried: clock_time(tried.ended_at)),
    ("took", lambda tried: tried.took),
    ("how", lambda tried: coloured(tried.how)),
    ("worker", lambda tried: tried.worker or ""),
    ("token", lambda tried: str(tried.token or "")),
    ("error", lambda tried: tried.error or ""),
)


def show_(
    url: OptionalUrl = None,
    job_id: Annotated[str | None, typer.Argument(metavar="ID", help="Which job.", show_default=False)] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="If it is over: it finished then or later, 2026-02-15T10:00, or 24h ago."
        ),
    ] = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Tell the whole story of one job: every attempt, who made it, when, and why it failed; and if the job waits, what
    for.

    A job that is not in the queue any more is looked for in the archive, all of it unless --since says where to begin.
    What was finished within the last seconds may not be there yet.

    Exit code 0: told. 1: there is no such job, or the queue is damaged. 2: it cannot be asked.
    """
    with clear_ends():
        address, rest = apart(url, job_id)
        if len(rest) != 1:
            raise InvalidInputError("which job? casque jobs show [URL] ID")
        place = find_place(address, queue, option)
        begin = None if since is None else times.moment_or_ago("--since", since, now())
    story = on_queue(place, lambda q: _story(q, rest[0], begin), looks=True)
    if json:
        print_json(story)
    else:
        _tell(story, Out(highlight=False))


async def _story(q: Queue[bytes], job_id: str, since: datetime | None) -> Story:
    if (job := await q.find(job_id)) is not None:
        return Story(job_id, await _why(q, job), show(job))
    console = Terminal(stderr=True)
    with console.status("not in the queue: looking through the archive"):
        finishes = [over async for over in q.archive(since=since) if over.id == job_id]
    if not finishes:
        if since is not None:
            console.print("it is not in the archive since then either; without --since all of it is searched")
        raise JobNotFoundError(job_id)
    return Story(job_id, _how_it_ended(finishes[-1]), None, tuple(finishes))


# --- Why ---


async def _why(q: Queue[bytes], job: Job[bytes]) -> str:
    shown = show(job)
    zone = None
    if shown.state in (JobState.READY, JobState.DELAYED):
        gates = (await q.stats()).gates
        if gates.pauses(job.entrypoint):
            whole = gates.queue is Gate.PAUSED
            what, where = ("the queue", "") if whole else (repr(job.entrypoint), f" --entrypoint {job.entrypoint}")
            return f"It waits because {what} is paused. `casque queue resume{where}` lets workers go on.{_due(shown)}"
        zone = await _standing(q, job.zone)
        if zone is not None and (held := await _held_by(zone, q, job)) is not None:
            return held + _due(shown)
    match shown.state:
        case JobState.READY:
            why = await _why_ready(q, job, zone)
            return why if not _is_not_understood(shown) else f"{_declines(shown)}. {why}"
        case JobState.DELAYED:
            until = f"at {clock_time(shown.due_at)} UTC, in {length(max(shown.due_at - now(), timedelta(0)))}"
            if not shown.token:
                return f"It was enqueued for later: it is due {until}."
            if shown.crashes and not shown.attempts:
                crashes = of_most(shown.crashes, shown.max_crashes)
                return f"It waits after crash {crashes} of its worker: it is tried again {until}."
            if _is_not_understood(shown):
                return (
                    f"{_declines(shown)}. It is offered again {until}: start workers of the version that enqueued it."
                )
            if not shown.attempts:
                return f"Its worker put it off: it is due {until}."
            return f"It waits after attempt {of_most(shown.attempts, shown.max_attempts)}: it is tried again {until}."
        case JobState.RUNNING:
            return _who_is_at_it(shown)
        case _:
            if shown.error is not None and shown.max_crashes is not None and shown.crashes >= shown.max_crashes:
                return (
                    f"It is quarantined: {shown.crashes} times the process that worked on it died. When the cause is "
                    f"found, `casque jobs retry {job.id}` gives it a fresh start; `casque jobs purge` removes what is "
                    "dead."
                )
            if shown.declined and (shown.error or "").startswith("no worker understood it"):
                return (
                    f"It is dead because {shown.error}. When workers of the right version run, `casque jobs retry "
                    f"{job.id}` gives it a fresh start; `casque jobs purge` removes what is dead."
                )
            spent = shown.max_attempts is not None and shown.attempts >= shown.max_attempts
            how = f"All of its {shown.attempts} attempts failed" if spent else "It was given up"
            return (
                f"{how}. `casque jobs retry {job.id}` gives it a fresh set, `casque jobs purge` removes what is dead."
            )


def _is_not_understood(shown: ShownJob) -> bool:
    return bool(shown.declined) and not shown.attempts


def _declines(shown: ShownJob) -> str:
    count = "One claim" if shown.declined == 1 else f"{shown.declined} claims"
    return f"{count} gave it back because the worker did not understand it: {shown.error}"


def _due(job: ShownJob) -> str:
    return "" if job.state is JobState.READY else f" It is due at {clock_time(job.due_at)} UTC."


async def _standing(q: Queue[bytes], zone: str | None) -> ZoneStanding | None:
    if zone is None:
        return None
    try:
        found = await q.zones(zone)
    except NotAllowedError:
        return None  # a token that is for some entrypoints only does not see how zones stand
    return found[0] if found else None


async def _held_by(standing: ZoneStanding, q: Queue[bytes], job: Job[bytes]) -> str | None:
    """What keeps all jobs of the zone from being claimed, or this one behind its neighbours; None if nothing does."""
    zone, rules = standing.zone, standing.rules
    if standing.lease is not None and not rules.paused:
        who = standing.lease.worker or "somebody"
        return f"It waits for {who}, who has leased its zone {zone!r}: nobody else is given jobs of it meanwhile."
    if rules.paused:
        return f"It waits because its zone {zone!r} is paused. `casque zones resume {quote(zone)}` lets workers go on."
    if rules.running_max is not None and standing.running >= rules.running_max:
        return (
            f"It waits because {standing.running:,} of the jobs of its zone {zone!r} run, and more may not at a time. "
            f"`casque zones set {quote(zone)} --running-max N` allows more."
        )
    if not standing.fifo:
        return None
    first, ahead = None, 0
    async for other in Chosen(FIFO_WAITS_FOR, zone=zone).among(q, AHEAD_MAX):
        if other.record.sequence >= job.record.sequence:
            break
        first, ahead = first or other, ahead + 1
    if first is None:
        return None
    least = "at least " if ahead == AHEAD_MAX else ""
    return (
        f"It waits because its zone {zone!r} is FIFO, and {least}{ahead:,} "
        f"{'job' if ahead == 1 else 'jobs'} of it came before. The first of them is {first.id}: {show(first).state}."
    )


def _progress(job: ShownJob | ArchivedJob) -> str:
    if isinstance(job, ArchivedJob) or (far := job.progress) is None:
        return ""
    progress = Progress(far.done, far.total, far.note)
    return str(progress) if progress.share is None else f"{progress}, {progress.share:.0%}"


def _who_is_at_it(job: ShownJob) -> str:
    since = "" if job.claimed_at is None else f" since {clock_time(job.claimed_at)} UTC"
    beat = "" if job.heartbeat_at is None else f", last heard of at {clock_time(job.heartbeat_at)} UTC"
    lease = timedelta(seconds=job.lease_s or 0)
    said = f"{job.worker or 'A worker'} is at it{since}{beat}. "
    if job.heartbeat_at is not None and job.heartbeat_at + lease < now():
        # For people: no queue goes by this comparison of two clocks.
        return f"{said}Its lease seems to be over; who has had the queue open for {length(lease)} gives the job away."
    return f"{said}After {length(lease)} of silence somebody else gets it."


async def _why_ready(q: Queue[bytes], job: Job[bytes], zone: ZoneStanding | None) -> str:
    """Workers take jobs by priority; then zones take turns, those without one as if they were one; within a zone it is
    by when they became due, then as they were enqueued."""
    place = _order(job)
    ahead = seen = 0
    neighbours: set[str | None] = set()
    async for other in Chosen(frozenset({JobState.READY}), job.entrypoint).among(q, AHEAD_MAX):
        seen += 1
        if other.zone == job.zone or other.priority < job.priority:
            ahead += _order(other) < place
        elif other.priority == job.priority:
            neighbours.add(other.zone)
    running = len(await q.jobs(states=[JobState.RUNNING], entrypoint=job.entrypoint, limit=AHEAD_MAX))
    least = "at least " if seen == AHEAD_MAX else ""
    due = from_ms(job.record.due_ms)
    said = (
        f"It is due since {clock_time(due)} UTC ({length(max(now() - due, timedelta(0)))}), and nobody has claimed it. "
    )
    said += f"Jobs of {job.entrypoint!r} that come before it: {least}{ahead:,}; being worked on: {running:,}."
    if neighbours:
        said += f" It takes turns with {least}{len(neighbours):,} other {'zone' if len(neighbours) == 1 else 'zones'}."
    if zone is not None and zone.rules.per_second is not None:
        said += f" Of its zone {zone.zone!r} at most {zone.rules.per_second:g} are claimed in a second."
    if not running:
        said += f" Is there a worker for {job.entrypoint!r}?"
    return said


def _order(job: Job[bytes]) -> tuple[int, int, int]:
    return job.priority, job.record.due_ms, job.record.sequence


def _how_it_ended(job: ArchivedJob) -> str:
    at = f"{clock_time(job.finished_at)} UTC"
    match job.state:
        case JobState.DONE:
            return f"It was done at {at}, on attempt {of_most(job.attempts, job.max_attempts)}."
        case JobState.CANCELLED:
            return f"It was cancelled at {at}, {'before anybody was at it' if job.waiting else 'while it ran'}."
        case _:
            crashes = f" and {job.crashes} crashes" if job.crashes else ""
            return f"It died at {at} after {job.attempts} attempts{crashes}, and was removed since."


# --- For people ---


def _tell(story: Story, console: Console) -> None:
    job = story.job or story.finishes[-1]
    table = Table(box=None, show_header=False, pad_edge=False)
    facts: list[tuple[str, str | Text]] = [
        ("job", job.id),
        ("entrypoint", job.entrypoint),
        ("state", coloured(job.state.value)),
        ("zone", job.zone or ""),
        ("key", job.key or ""),
        ("headers", " ".join(f"{name}={value}" for name, value in (job.headers or {}).items())),
        ("priority", str(job.priority or "")),
        ("enqueued", f"{clock_time(job.created_at)} UTC"),
        ("due", f"{clock_time(job.due_at)} UTC"),
        ("attempts", of_most(job.attempts, job.max_attempts)),
        ("crashes", of_most(job.crashes, job.max_crashes) if job.crashes else ""),
        ("progress", _progress(job)),
        ("payload", _payload(job)),
        ("result", _sized(job.result) if isinstance(job, ArchivedJob) else ""),
    ]
    for name, value in facts:
        if value:
            table.add_row(Text(name, "bold"), value if isinstance(value, Text) else Text(printable(value)))
    console.print(table, soft_wrap=True)
    if tries := _attempts(job):
        console.print()
        print_table(COLUMNS, tries)
    console.print()
    console.print(printable(story.why), soft_wrap=True)
    for earlier in story.finishes[:-1]:
        console.print(printable(f"Before that: {_how_it_ended(earlier)}"), soft_wrap=True)


def _attempts(job: ShownJob | ArchivedJob) -> list[TriedOnce]:
    tries = [TriedOnce(t.claimed_at, t.ended_at, t.how.value, t.worker, t.token, t.error) for t in job.tries]
    if isinstance(job, ArchivedJob):
        if not job.waiting:
            # The attempt that ended it is not among its tries.
            error = job.error if job.state is JobState.DEAD else None
            tries.append(TriedOnce(job.claimed_at, job.finished_at, job.state.value, job.worker, job.token, error))
    elif job.state is JobState.RUNNING:
        tries.append(TriedOnce(job.claimed_at, None, job.state.value, job.worker, job.token, None))
    return tries


def _payload(job: ShownJob | ArchivedJob) -> str:
    if isinstance(job, ArchivedJob) and job.blob_bytes is not None:
        return f"{job.blob_bytes:,} bytes, which were deleted with the job"
    return "gone: it lay in an object of its own" if job.payload is None else _sized(job.payload)


def _sized(content: bytes | None) -> str:
    if content is None:
        return ""
    return cut(content) if len(content) <= 60 else f"{cut(content)} ({len(content):,} bytes)"
