"""`casque cron list|set|pause|resume|trigger|drop`: the schedules of a queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from casque.cli.command import command
from casque.cli.exits import confirm
from casque.cli.formats import clock_time, duration, now, preview, text_of
from casque.cli.new_job import NewJobOptions
from casque.cli.options import Json, Yes, read_payload
from casque.cli.output import Columns, answer, print_rows, say
from casque.cli.target import QueueTarget
from casque.client.queue import Queue
from casque.errors import InvalidInputError
from casque.fields import gained
from casque.types import GainedFields, Missed, Schedule

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="Which schedule; `casque cron list` shows them.", show_default=False),
]


class ScheduleView(GainedFields, frozen=True, omit_defaults=False):
    """A schedule as commands show it."""

    name: str
    cron: str
    tz: str
    missed: str
    entrypoint: str
    payload: bytes
    text: str | None
    """The payload, if it is text."""
    paused: bool
    next_at: datetime | None
    """None while it is paused."""
    last_at: datetime | None
    """The latest tick that became a job."""
    priority: int
    max_attempts: int | None
    max_crashes: int | None
    key: str | None
    zone: str | None
    headers: dict[str, str] | None
    origin: str | None
    """The module that declares it; None if it was set by hand."""


COLUMNS: Columns = (
    ("name", lambda one: one.name),
    ("cron", lambda one: one.cron),
    ("tz", lambda one: one.tz),
    ("next", lambda one: "paused" if one.next_at is None else clock_time(one.next_at)),
    ("in", lambda one: "" if one.next_at is None else duration(one.next_at - now())),
    ("last", lambda one: clock_time(one.last_at)),
    ("missed", lambda one: one.missed),
    ("entrypoint", lambda one: one.entrypoint),
    ("payload", lambda one: preview(one.payload)),
    ("origin", lambda one: one.origin or ""),
)


@command("cron list", aliases=["ls"], examples=["casque cron list", "casque cron list s3://bucket/orders --json"])
def list_(target: QueueTarget, json: Json = False) -> None:
    """Show the schedules of a queue: which jobs are added again and again, and when next.

    Times are in UTC; `tz` is the time zone of the expression. Schedules tick while a process runs that can add their
    jobs: the broker that leads the queue, or any process that has it open, such as a worker.

    Exit code 0: shown. 1: the queue is damaged. 2: it cannot be asked.
    """

    async def work(q: Queue[bytes]) -> list[ScheduleView]:
        return [_view(schedule) for schedule in await q.schedules()]

    empty = "this queue has no schedules; `casque cron set` sets one, or @app.cron(...)"
    print_rows(COLUMNS, target.run(work), json=json, empty=empty)


@command(
    "cron set",
    examples=[
        'casque cron set clean-up "*/5 * * * *" --entrypoint clean-up',
        """casque cron set report "0 7 * * mon-fri" --tz Europe/Berlin --entrypoint report --args '{"to": "ada"}'""",
        "casque cron set s3://bucket/orders export @daily --entrypoint export --payload @job.json --missed skip",
    ],
    audited=True,
)
def set_(
    target: QueueTarget,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="What the schedule is called.", show_default=False)
    ] = None,
    expression: Annotated[
        str | None,
        typer.Argument(
            metavar="EXPRESSION", help="When: five fields in quotes, or @hourly and the like.", show_default=False
        ),
    ] = None,
    entrypoint: Annotated[
        str | None, typer.Option("--entrypoint", "-e", help="Which handler its jobs are for; must be given.")
    ] = None,
    payload: Annotated[
        str | None,
        typer.Option(
            "--payload", help="The same at every tick: text, - for standard input, or @FILE. Empty if left out."
        ),
    ] = None,
    args: Annotated[
        str | None,
        typer.Option("--args", metavar="JSON", help="The arguments of a function instead: a JSON object, by name."),
    ] = None,
    tz: Annotated[str, typer.Option("--tz", metavar="ZONE", help="The time zone of the expression.")] = "UTC",
    missed: Annotated[
        Missed,
        typer.Option("--missed", help="Ticks that were missed by more than a minute become no job, one job, or all."),
    ] = Missed.ONE,
    *,
    options: NewJobOptions,
    json: Json = False,
) -> None:
    """Set a schedule: a job is added at every tick of it, by the broker that leads the queue, or by any process that
    has it open, such as a worker.

    A schedule that is the same already stays as it is, its next tick and a pause included; one that differs is changed.
    One that a program declares is set back when the next worker of that program starts.

    Exit code 0: it is set. 1: the queue refuses or is damaged. 2: it cannot be done. 4: the outcome is unknown.
    """
    target, [called, when] = target.separate(
        name,
        expression,
        count=2,
        usage='which schedule, and when? casque cron set [URL] NAME "*/5 * * * *" --entrypoint ENTRYPOINT; '
        "an expression with spaces needs quotes around it",
    )
    if entrypoint is None:
        raise InvalidInputError("for which handler? Give --entrypoint")
    job = options.job(entrypoint, _content(payload, args))

    async def work(q: Queue[bytes]) -> tuple[str | None, Schedule]:
        before = [schedule.spec.origin for schedule in await q.schedules() if schedule.name == called]
        return next(iter(before), None), await q.set_schedule(called, when, job, tz=tz, missed=missed.value)

    origin, schedule = target.run(work)
    if origin is not None:
        say(f"{called} is declared in {origin}: the next worker of that program sets it back", err=True)
    _report(schedule, "is set", "is set, and rests until it is resumed", json)


@command("cron pause", examples=["casque cron pause nightly-report"], audited=True)
def pause(target: QueueTarget, name: Name = None, json: Json = False) -> None:
    """Pause a schedule: it adds no more jobs until it is resumed. Workers that start meanwhile do not change that.

    Exit code 0: it is paused. 1: there is no such schedule. 2: it cannot be done. 4: the outcome is unknown.
    """
    _change(target, "pause", name, json, lambda q, called: q.pause_schedule(called))


@command("cron resume", examples=["casque cron resume nightly-report"], audited=True)
def resume(target: QueueTarget, name: Name = None, json: Json = False) -> None:
    """Resume a paused schedule with its next tick. Ticks during the pause are not made up for.

    Exit code 0: it is resumed. 1: there is no such schedule. 2: it cannot be done. 4: the outcome is unknown.
    """
    _change(target, "resume", name, json, lambda q, called: q.resume_schedule(called))


@command("cron trigger", examples=["casque jobs show $(casque cron trigger nightly-report)"], audited=True)
def trigger(target: QueueTarget, name: Name = None, json: Json = False) -> None:
    """Add the job of a schedule now, beside its ticks, paused or not. Prints the id of the job.

    Exit code 0: added, or there already if it has a unique key. 1: there is no such schedule. 2: it cannot be done. 4:
    the outcome is unknown.
    """
    target, called = _named(target, "trigger", name)
    job_id = target.run(lambda q: q.trigger_schedule(called)).id
    answer({"schedule": called, "id": job_id}, job_id, json=json)


@command("cron drop", examples=["casque cron drop nightly-report --yes"], audited=True)
def drop(target: QueueTarget, name: Name = None, yes: Yes = False, json: Json = False) -> None:
    """Delete a schedule. Jobs that it has added stay. Asks first.

    One that a program still declares is set again when the next worker of that program starts: pause it instead.

    Exit code 0: it is gone. 1: there is no such schedule, or the question was answered with no. 2: it cannot be done.
    4: the outcome is unknown.
    """
    target, called = _named(target, "drop", name)

    async def work(q: Queue[bytes]) -> None:
        if any(schedule.name == called for schedule in await q.schedules()):
            confirm(f"Drop the schedule {called}?", yes=yes)
        await q.drop_schedule(called)

    target.run(work)
    answer({"schedule": called, "dropped": True}, f"{called} is dropped", json=json)


def _change(
    target: QueueTarget,
    verb: str,
    name: str | None,
    json: bool,
    change: Callable[[Queue[bytes], str], Awaitable[Schedule]],
) -> None:
    target, called = _named(target, verb, name)
    _report(target.run(lambda q: change(q, called)), "goes on", "rests", json)


def _report(schedule: Schedule, ticking: str, resting: str, json: bool) -> None:
    view = _view(schedule)
    state = resting if view.next_at is None else f"{ticking}: next at {clock_time(view.next_at)} UTC"
    answer(view, f"{view.name} {state}", json=json)


def _named(target: QueueTarget, verb: str, name: str | None) -> tuple[QueueTarget, str]:
    usage = f"which schedule? casque cron {verb} [URL] NAME; `casque cron list` shows them"
    target, [called] = target.separate(name, count=1, usage=usage)
    return target, called


def _content(payload: str | None, args: str | None) -> bytes:
    if args is None:
        return read_payload(payload)
    if payload is not None:
        raise InvalidInputError("give either --payload or --args, not both")
    try:
        return msgspec.json.encode(msgspec.json.decode(args, type=dict[str, Any]))
    except msgspec.DecodeError as error:
        raise InvalidInputError(f'--args must be a JSON object such as {{"to": "ada"}}: {error}') from error


def _view(schedule: Schedule) -> ScheduleView:
    spec, job = schedule.spec, schedule.spec.job
    return ScheduleView(
        name=spec.name,
        cron=spec.cron,
        tz=spec.tz,
        missed=spec.missed.value,
        entrypoint=job.entrypoint,
        payload=job.payload,
        text=text_of(job.payload),
        paused=schedule.paused,
        next_at=None if schedule.paused else schedule.next_at,
        last_at=schedule.last_at,
        priority=job.priority,
        max_attempts=job.max_attempts,
        max_crashes=job.max_crashes,
        key=job.key,
        zone=job.zone,
        headers=job.headers,
        origin=spec.origin,
        **gained(job),
    )
