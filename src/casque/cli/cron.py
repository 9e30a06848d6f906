"""`casque cron list|set|pause|resume|trigger|drop`: the schedules of a queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from casque.cli.auditing import audited
from casque.cli.enqueue import MaxCrashes, headers_of, payload_of
from casque.cli.place import QueueName, apart, find_place
from casque.cli.running import Json, OptionalUrl, StoreOptions, clear_ends, confirmed, on_queue
from casque.cli.shown import clock_time, cut, length, now, print_table, text_of
from casque.cli.terminal import print_json, say
from casque.client.queue import NewJob, Queue
from casque.errors import InvalidInputError
from casque.types import Schedule

EXAMPLES_LIST = """
[bold]Examples[/]

  casque cron list

  casque cron list s3://bucket/orders --json
"""
EXAMPLES_SET = """
[bold]Examples[/]

  casque cron set clean-up "*/5 * * * *" --entrypoint clean-up

  casque cron set report "0 7 * * mon-fri" --tz Europe/Berlin --entrypoint report --args '{"to": "ada"}'

  casque cron set s3://bucket/orders export @daily --entrypoint export --payload @job.json --missed skip
"""
EXAMPLES_PAUSE = """
[bold]Examples[/]

  casque cron pause nightly-report
"""
EXAMPLES_RESUME = """
[bold]Examples[/]

  casque cron resume nightly-report
"""
EXAMPLES_TRIGGER = """
[bold]Examples[/]

  casque jobs show $(casque cron trigger nightly-report)
"""
EXAMPLES_DROP = """
[bold]Examples[/]

  casque cron drop nightly-report --yes
"""
Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="Which schedule; `casque cron list` shows them.", show_default=False),
]


class Misses(StrEnum):
    """What becomes of ticks that nobody noticed."""

    SKIP = "skip"
    ONE = "one"
    ALL = "all"


class ShownSchedule(msgspec.Struct, frozen=True):
    """A schedule, with times that people and programs can read."""

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


COLUMNS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("name", lambda one: one.name),
    ("cron", lambda one: one.cron),
    ("tz", lambda one: one.tz),
    ("next", lambda one: "paused" if one.next_at is None else clock_time(one.next_at)),
    ("in", lambda one: "" if one.next_at is None else length(max(one.next_at - now(), timedelta(0)))),
    ("last", lambda one: clock_time(one.last_at)),
    ("missed", lambda one: one.missed),
    ("entrypoint", lambda one: one.entrypoint),
    ("payload", lambda one: cut(one.payload)),
    ("origin", lambda one: one.origin or ""),
)


def list_(url: OptionalUrl = None, json: Json = False, queue: QueueName = None, option: StoreOptions = None) -> None:
    """Show the schedules of a queue: what becomes a job again and again, and when next.

    Times are in UTC; `tz` is the zone that the expression is told in. A schedule ticks while somebody is there to
    notice it: the broker that leads the queue, or any process that has it open, such as a worker.

    Exit code 0: shown. 1: the queue is damaged. 2: it cannot be asked.
    """
    with clear_ends():
        place = find_place(url, queue, option)

    async def work(q: Queue[bytes]) -> None:
        found = [_shown(schedule) for schedule in await q.schedules()]
        if json:
            for one in found:
                print_json(one)
        elif found:
            print_table(COLUMNS, found)
        else:
            say("this queue has no schedules; `casque cron set` sets one, or @app.cron(...)", err=True)

    on_queue(place, work)


@audited("cron set")
def set_(
    url: OptionalUrl = None,
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
        Misses,
        typer.Option("--missed", help="Ticks that nobody noticed for more than a minute: none, one job, or all."),
    ] = Misses.ONE,
    priority: Annotated[int, typer.Option("--priority", "-p", help="Lower runs first.")] = 0,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="While an unfinished job holds this key, nothing is added.")
    ] = None,
    zone: Annotated[str | None, typer.Option("--zone", "-z", help="Whose job it is.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="Goes along; may be repeated.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", min=1, help="Kept as dead after so many; 25 unless set.")
    ] = None,
    max_crashes: MaxCrashes = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Set a schedule: a job is added at every tick of it, by the broker that leads the queue, or by any process that
    has it open, such as a worker.

    One that is there and says the same stays as it is, its next tick and a pause included; one that says something else
    is changed. One that a program declares is set back when the next worker of that program starts.

    Exit code 0: it is set. 1: the queue refuses or is damaged. 2: it cannot be done. 4: nobody knows whether it was
    done.
    """
    with clear_ends():
        address, rest = apart(url, name, expression)
        if len(rest) != 2:
            raise InvalidInputError(
                'which schedule, and when? casque cron set [URL] NAME "*/5 * * * *" --entrypoint ENTRYPOINT; '
                "an expression with spaces needs quotes around it"
            )
        if entrypoint is None:
            raise InvalidInputError("for which handler? Give --entrypoint")
        called, when = rest
        job = NewJob(
            entrypoint,
            _content(payload, args),
            priority=priority,
            key=key,
            max_attempts=max_attempts,
            headers=headers_of(header or []),
            zone=zone,
            max_crashes=max_crashes,
        )
        place = find_place(address, queue, option)

    async def work(q: Queue[bytes]) -> tuple[str | None, Schedule]:
        before = [schedule.spec.origin for schedule in await q.schedules() if schedule.name == called]
        return next(iter(before), None), await q.set_schedule(called, when, job, tz=tz, missed=missed.value)

    origin, schedule = on_queue(place, work)
    shown = _shown(schedule)
    if origin is not None:
        say(f"{called} is declared in {origin}: the next worker of that program sets it back", err=True)
    if json:
        print_json(shown)
    elif shown.next_at is None:
        say(f"{called} is set, and rests until it is resumed")
    else:
        say(f"{called} is set: next at {clock_time(shown.next_at)} UTC")


@audited("cron pause")
def pause(
    url: OptionalUrl = None,
    name: Name = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Let a schedule rest: no more jobs of it until it is resumed. Workers that start meanwhile do not change that.

    Exit code 0: it rests. 1: there is no such schedule. 2: it cannot be done. 4: nobody knows whether it was done.
    """
    _changed("pause", url, name, json, queue, option, lambda q, called: q.pause_schedule(called))


@audited("cron resume")
def resume(
    url: OptionalUrl = None,
    name: Name = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Let a paused schedule go on, with its next tick. Those that it rested through are not made up for.

    Exit code 0: it goes on. 1: there is no such schedule. 2: it cannot be done. 4: nobody knows whether it was done.
    """
    _changed("resume", url, name, json, queue, option, lambda q, called: q.resume_schedule(called))


@audited("cron trigger")
def trigger(
    url: OptionalUrl = None,
    name: Name = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Add the job of a schedule now, beside its ticks, paused or not. Prints the id of the job.

    Exit code 0: added, or there already if it has a unique key. 1: there is no such schedule. 2: it cannot be done. 4:
    nobody knows whether it was done.
    """
    with clear_ends():
        address, called = _named("trigger", url, name)
        place = find_place(address, queue, option)

    async def work(q: Queue[bytes]) -> str:
        return (await q.trigger_schedule(called)).id

    job_id = on_queue(place, work)
    if json:
        print_json({"schedule": called, "id": job_id})
    else:
        say(job_id)


@audited("cron drop")
def drop(
    url: OptionalUrl = None,
    name: Name = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Forget a schedule. Jobs that it has become stay. Asks before it does.

    One that a program still declares is set again when the next worker of that program starts: pause it instead.

    Exit code 0: it is gone. 1: there is no such schedule, or nobody wanted it. 2: it cannot be done. 4: nobody knows
    whether it was done.
    """
    with clear_ends():
        address, called = _named("drop", url, name)
        place = find_place(address, queue, option)

    async def work(q: Queue[bytes]) -> None:
        if any(schedule.name == called for schedule in await q.schedules()):
            confirmed(f"Drop the schedule {called}?", yes=yes)
        await q.drop_schedule(called)

    on_queue(place, work)
    if json:
        print_json({"schedule": called, "dropped": True})
    else:
        say(f"{called} is dropped")


def _changed(
    verb: str,
    url: str | None,
    name: str | None,
    json: bool,
    queue: str | None,
    option: list[str] | None,
    change: Callable[[Queue[bytes], str], Awaitable[Schedule]],
) -> None:
    with clear_ends():
        address, called = _named(verb, url, name)
        place = find_place(address, queue, option)
    shown = _shown(on_queue(place, lambda q: change(q, called)))
    if json:
        print_json(shown)
    elif shown.next_at is None:
        say(f"{called} rests")
    else:
        say(f"{called} goes on: next at {clock_time(shown.next_at)} UTC")


def _content(payload: str | None, args: str | None) -> bytes:
    if args is None:
        return payload_of(payload)
    if payload is not None:
        raise InvalidInputError("give either --payload or --args, not both")
    try:
        return msgspec.json.encode(msgspec.json.decode(args, type=dict[str, Any]))
    except msgspec.DecodeError as error:
        raise InvalidInputError(f'--args must be a JSON object such as {{"to": "ada"}}: {error}') from error


def _named(verb: str, *given: str | None) -> tuple[str | None, str]:
    address, names = apart(*given)
    if len(names) != 1:
        raise InvalidInputError(f"which schedule? casque cron {verb} [URL] NAME; `casque cron list` shows them")
    return address, names[0]


def _shown(schedule: Schedule) -> ShownSchedule:
    spec, job = schedule.spec, schedule.spec.job
    return ShownSchedule(
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
        max_attempts=job.attempts_max,
        max_crashes=job.max_crashes,
        key=job.key,
        zone=job.zone,
        headers=job.headers,
        origin=spec.origin,
    )
