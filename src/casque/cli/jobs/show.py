"""`casque jobs show`: all that is known about one job."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import msgspec
import typer

from casque.cli.command import command
from casque.cli.formats import clock_time, colour_state, duration, of_max, preview
from casque.cli.job_view import JobView, view_job
from casque.cli.jobs.why import describe_end, explain
from casque.cli.options import Json, parse_moment
from casque.cli.output import Columns, Out, Terminal, answer, print_facts, print_table
from casque.cli.target import QueueTarget
from casque.client.queue import Queue
from casque.errors import JobNotFoundError
from casque.fields import GAINED, shown
from casque.printable import printable
from casque.service import ArchivedJob
from casque.types import JobState, Progress


class Story(msgspec.Struct, frozen=True):
    """A job as it is in the queue, or else how it finished."""

    id: str
    why: str
    """Why it is where it is, in words."""
    job: JobView | None = None
    finishes: tuple[ArchivedJob, ...] = ()
    """More than one if it was dead and given fresh attempts."""


class AttemptRow(msgspec.Struct, frozen=True):
    """A row of the table of attempts."""

    claimed_at: datetime | None
    ended_at: datetime | None
    how: str
    worker: str | None
    token: int
    error: str | None

    @property
    def took(self) -> str:
        return "" if self.claimed_at is None or self.ended_at is None else duration(self.ended_at - self.claimed_at)


COLUMNS: Columns = (
    ("claimed", lambda row: clock_time(row.claimed_at)),
    ("ended", lambda row: clock_time(row.ended_at)),
    ("took", lambda row: row.took),
    ("how", lambda row: colour_state(row.how)),
    ("worker", lambda row: row.worker or ""),
    ("token", lambda row: str(row.token or "")),
    ("error", lambda row: row.error or ""),
)


@command(
    "jobs show",
    examples=[
        "casque jobs show file:///var/lib/orders 05789eba-9c3a-4b4b-967a-84db93d181bf",
        "casque jobs show 05789eba-9c3a-4b4b-967a-84db93d181bf --since 24h --json",
    ],
    reads_only=True,
)
def show(
    target: QueueTarget,
    job_id: Annotated[str | None, typer.Argument(metavar="ID", help="Which job.", show_default=False)] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Search the archive from then on: 2026-02-15T10:00, or 24h ago. All of it unless set.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show the whole story of one job: every attempt, who made it, when, and why it failed; and if the job waits, what
    for.

    A job that is not in the queue any more is looked for in the archive, all of it unless --since says where to begin.
    A job that finished within the last seconds may not be there yet.

    Exit code 0: shown. 1: there is no such job, or the queue is damaged. 2: it cannot be asked.
    """
    target, [name] = target.separate(job_id, count=1, usage="which job? casque jobs show [URL] ID")
    begin = parse_moment("--since", since)
    story = target.run(lambda q: _read_story(q, name, begin))
    answer(story, lambda: _print_story(story), json=json)


async def _read_story(q: Queue[bytes], job_id: str, since: datetime | None) -> Story:
    if (job := await q.find(job_id)) is not None:
        return Story(job_id, await explain(q, job), view_job(job))
    console = Terminal(stderr=True)
    with console.status("not in the queue: looking through the archive"):
        finishes = [job async for job in q.archive(since=since) if job.id == job_id]
    if not finishes:
        if since is not None:
            console.print("it is not in the archive since then either; without --since all of it is searched")
        raise JobNotFoundError(job_id)
    return Story(job_id, describe_end(finishes[-1]), None, tuple(finishes))


def _print_story(story: Story) -> None:
    job = story.job or story.finishes[-1]
    console = Out(highlight=False)
    print_facts(
        {
            "job": job.id,
            "entrypoint": job.entrypoint,
            "state": colour_state(job.state.value),
            "zone": job.zone or "",
            "key": job.key or "",
            "headers": " ".join(f"{name}={value}" for name, value in (job.headers or {}).items()),
            **{field.name: shown(getattr(job, field.name)) for field in GAINED if field.name != "expires_ms"},
            "priority": str(job.priority or ""),
            "enqueued": f"{clock_time(job.created_at)} UTC",
            "due": f"{clock_time(job.due_at)} UTC",
            "expires": _expires(job),
            "attempts": of_max(job.attempts, job.max_attempts),
            "crashes": of_max(job.crashes, job.max_crashes) if job.crashes else "",
            "progress": _progress(job),
            "payload": _payload(job),
            "result": _with_size(job.result) if isinstance(job, ArchivedJob) else "",
        }
    )
    if rows := _attempts(job):
        console.print()
        print_table(COLUMNS, rows)
    console.print()
    console.print(printable(story.why), soft_wrap=True)
    for earlier in story.finishes[:-1]:
        console.print(printable(f"Before that: {describe_end(earlier)}"), soft_wrap=True)


def _expires(job: JobView | ArchivedJob) -> str:
    if job.expires_ms is None:
        return ""
    return f"{clock_time(job.created_at + timedelta(milliseconds=job.expires_ms))} UTC"


def _attempts(job: JobView | ArchivedJob) -> list[AttemptRow]:
    rows = [AttemptRow(t.claimed_at, t.ended_at, t.how.value, t.worker, t.token, t.error) for t in job.tries]
    if isinstance(job, ArchivedJob):
        if not job.waiting:
            # The attempt that ended it is not among its tries.
            error = job.error if job.state is JobState.DEAD else None
            rows.append(AttemptRow(job.claimed_at, job.finished_at, job.state.value, job.worker, job.token, error))
    elif job.state is JobState.RUNNING:
        rows.append(AttemptRow(job.claimed_at, None, job.state.value, job.worker, job.token, None))
    return rows


def _progress(job: JobView | ArchivedJob) -> str:
    if isinstance(job, ArchivedJob) or (far := job.progress) is None:
        return ""
    progress = Progress(far.done, far.total, far.note)
    return str(progress) if progress.share is None else f"{progress}, {progress.share:.0%}"


def _payload(job: JobView | ArchivedJob) -> str:
    if isinstance(job, ArchivedJob) and job.blob_bytes is not None:
        return f"{job.blob_bytes:,} bytes, which were deleted with the job"
    return "gone: it lay in an object of its own" if job.payload is None else _with_size(job.payload)


def _with_size(content: bytes | None) -> str:
    if content is None:
        return ""
    return preview(content) if len(content) <= 60 else f"{preview(content)} ({len(content):,} bytes)"
