"""`casque zones ls|show|set|pause|resume`: the tenants of a queue, and what is set for them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from shlex import quote
from types import EllipsisType
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from casque import checks
from casque.cli.auditing import audited
from casque.cli.jobs import Chosen
from casque.cli.place import QueueName, apart, find_place
from casque.cli.running import EXIT_FAILED, Json, OptionalUrl, StoreOptions, clear_ends, on_queue
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
from casque.cli.terminal import Terminal, print_json, say
from casque.client.queue import Queue
from casque.errors import InvalidInputError
from casque.printable import printable
from casque.types import PLAIN_RULES, JobState, ZoneRules, ZoneStanding, from_ms

EXAMPLES_LS = """
[bold]Examples[/]

  casque zones ls file:///var/lib/orders

  casque zones ls --limit 1000 --json
"""
EXAMPLES_SHOW = """
[bold]Examples[/]

  casque zones show acme

  casque zones show s3://bucket/orders acme --limit 50 --json
"""
EXAMPLES_SET = """
[bold]Examples[/]

  casque zones set acme --weight 3

  casque zones set grpc://broker:7700 giant --running-max 20 --per-second 5

  casque zones set giant --running-max none --per-second none --weight 1
"""
EXAMPLES_PAUSE = """
[bold]Examples[/]

  casque zones pause acme
"""
EXAMPLES_RESUME = """
[bold]Examples[/]

  casque zones resume grpc://broker:7700 acme
"""
NO_LIMIT = "none"
SOMEBODY = "somebody"
"""Who has leased a zone without a name."""

Zone = Annotated[
    str | None,
    typer.Argument(metavar="ZONE", help="Which zone; `casque zones ls` shows them.", show_default=False),
]


class ShownZone(msgspec.Struct, frozen=True):
    """How a zone stands, and what is set for it."""

    zone: str
    ready: int
    delayed: int
    running: int
    dead: int
    next_at: datetime | None
    """When the first of its waiting jobs became, or will become, due."""
    fifo: bool
    weight: float
    running_max: int | None
    per_second: float | None
    paused: bool
    leased_by: str | None = None
    """Who has leased it: nobody else is given its jobs."""
    leased_at: datetime | None = None


class ZoneStory(msgspec.Struct, frozen=True):
    """A zone, and those of its jobs that come first."""

    zone: ShownZone
    jobs: tuple[ShownJob, ...]


class ZoneSet(msgspec.Struct, frozen=True):
    """What holds for a zone from now on."""

    zone: str
    weight: float
    running_max: int | None
    per_second: float | None
    paused: bool


def _counted(name: str) -> Callable[[Any], str]:
    return lambda zone: f"{getattr(zone, name):,}"


def _next(zone: ShownZone) -> str:
    if zone.next_at is None:
        return ""
    late = now() - zone.next_at
    spoken = f"{length(late)} ago" if late >= timedelta(0) else f"in {length(-late)}"
    return f"{clock_time(zone.next_at)} ({spoken})"


COLUMNS: tuple[tuple[str, Callable[[Any], str | Text]], ...] = (
    ("zone", lambda zone: zone.zone),
    *((name, _counted(name)) for name in ("ready", "delayed", "running", "dead")),
    ("next", _next),
    ("weight", lambda zone: f"{zone.weight:g}"),
    ("running max", lambda zone: "" if zone.running_max is None else f"{zone.running_max:,}"),
    ("per second", lambda zone: "" if zone.per_second is None else f"{zone.per_second:g}"),
    ("order", lambda zone: "fifo" if zone.fifo else ""),
    ("paused", lambda zone: Text("paused", "yellow") if zone.paused else ""),
    ("leased by", lambda zone: zone.leased_by or ""),
)
JOBS = (
    ("id", lambda job: job.id),
    ("entrypoint", lambda job: job.entrypoint),
    ("state", lambda job: coloured(job.state)),
    ("due", lambda job: clock_time(job.due_at)),
    ("attempts", lambda job: of_most(job.attempts, job.max_attempts)),
    ("priority", lambda job: str(job.priority or "")),
    ("worker", lambda job: job.worker or ""),
    ("payload", lambda job: cut(job.payload)),
    ("error", lambda job: cut(job.error)),
)


def ls(
    url: OptionalUrl = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=checks.ZONES_SHOWN_MAX, help="At most so many.")
    ] = 50,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Show the zones of a queue that have jobs or rules, those whose jobs have been due longest first.

    A zone is there from its first job on, and needs no setting up: `casque enqueue --zone acme`. Zones take turns, so
    that one with many jobs does not hold up the others; `casque zones set` changes their shares and limits. Jobs that
    were enqueued without a zone take turns with the zones too, and are not listed.

    Exit code 0: shown. 1: the queue is damaged. 2: it cannot be asked.
    """
    with clear_ends():
        place = find_place(url, queue, option)

    async def work(q: Queue[bytes]) -> None:
        found = [_shown(one) for one in await q.zones(limit=min(limit + 1, checks.ZONES_SHOWN_MAX))]
        if json:
            for zone in found[:limit]:
                print_json(zone)
        elif found:
            print_table(COLUMNS, found[:limit])
        if len(found) > limit:
            say(f"there are more than {limit:,}: --limit shows more of them", err=True)
        if not found and not json:
            say("no zone has jobs or rules; `casque enqueue --zone NAME` makes one", err=True)

    on_queue(place, work, looks=True)


def show_(
    url: OptionalUrl = None,
    zone: Zone = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many of its jobs.")] = 10,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Show how a zone stands, what is set for it, what holds it back, and the first of its jobs: those that are being
    worked on, then those that wait, in the order in which they will be claimed, then dead ones.

    Exit code 0: shown. 1: it has neither jobs nor rules, or the queue is damaged. 2: it cannot be asked.
    """
    with clear_ends():
        address, name = named("show", url, zone)
        place = find_place(address, queue, option)

    async def work(q: Queue[bytes]) -> ZoneStory | None:
        if not (found := await q.zones(name)):
            return None
        standing = found[0]
        # Seen all of them, it need not go through the rest of the queue.
        count = standing.ready + standing.delayed + standing.running + standing.dead
        jobs = [show(job) async for job in Chosen(zone=name).among(q, count)] if count else []
        jobs.sort(key=lambda job: _place(job, fifo=standing.fifo))
        return ZoneStory(_shown(standing), tuple(jobs[:limit]))

    story = on_queue(place, work, looks=True)
    if story is None:
        Terminal(stderr=True).print(
            f"the zone {name!r} has neither jobs nor rules here; what it has finished is in the archive",
            style="red", markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        raise typer.Exit(EXIT_FAILED)
    if json:
        print_json(story)
    else:
        _tell(story, Out(highlight=False))


@audited("zones set")
def set_(
    url: OptionalUrl = None,
    zone: Zone = None,
    weight: Annotated[
        float | None,
        typer.Option("--weight", "-w", metavar="X", help="Its share of the turns: 2 has twice the jobs of 1."),
    ] = None,
    running_max: Annotated[
        str | None,
        typer.Option("--running-max", "-r", metavar="N|none", help="So many of its jobs run at a time."),
    ] = None,
    per_second: Annotated[
        str | None,
        typer.Option("--per-second", "-p", metavar="X|none", help="So many of its jobs are claimed in a second."),
    ] = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Change the share of a zone among those that have jobs waiting, and what limits it. What is not given stays as it
    is, `none` takes a limit away, and a zone may be set up before its first job comes.

    The weight is 1 unless set. It is about turns while others wait: a zone that is alone gets everything, up to its
    limits. Limits hold for the whole queue, however many workers there are.

    Exit code 0: it is set. 1: the queue is damaged. 2: it cannot be done, or makes no sense. 4: nobody knows whether it
    was done.
    """
    with clear_ends():
        address, name = named("set", url, zone)
        if weight is None and running_max is None and per_second is None:
            raise InvalidInputError("what is to be set? --weight, --running-max or --per-second")
        most: int | EllipsisType | None = _limit("--running-max", running_max, int)
        rate: float | EllipsisType | None = _limit("--per-second", per_second, float)
        place = find_place(address, queue, option)
    rules = on_queue(place, lambda q: q.set_zone(name, weight=weight, running_max=most, per_second=rate))
    _told(name, rules, json, f"{name!r}: {_words(rules)}")


@audited("zones pause")
def pause(
    url: OptionalUrl = None,
    zone: Zone = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Let nobody claim jobs of a zone until it is resumed. What is being worked on goes on, and jobs may be added.

    Exit code 0: it is paused. 1: the queue is damaged. 2: it cannot be done. 4: nobody knows whether it was done.
    """
    _gate("pause", url, zone, json, queue, option)


@audited("zones resume")
def resume(
    url: OptionalUrl = None,
    zone: Zone = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Let the jobs of a paused zone be claimed again. Its weight and its limits are as before.

    Exit code 0: it goes on. 1: the queue is damaged. 2: it cannot be done. 4: nobody knows whether it was done.
    """
    _gate("resume", url, zone, json, queue, option)


def named(verb: str, *given: str | None) -> tuple[str | None, str]:
    address, names = apart(*given)
    if len(names) != 1:
        raise InvalidInputError(f"which zone? casque zones {verb} [URL] ZONE; `casque zones ls` shows them")
    return address, checks.zone(names[0])


# --- Setting ---


def _gate(
    verb: str, url: str | None, zone: str | None, json: bool, queue: str | None, option: list[str] | None
) -> None:
    paused = verb == "pause"
    with clear_ends():
        address, name = named(verb, url, zone)
        place = find_place(address, queue, option)

    async def work(q: Queue[bytes]) -> tuple[bool, ZoneRules]:
        was = any(one.rules.paused for one in await q.zones(name))
        return was is paused, await q.set_zone(name, paused=paused)

    again, rules = on_queue(place, work)
    already = " already" if again else ""
    said = f"is paused{already}: none of its jobs are claimed" if paused else f"is open{already}"
    _told(name, rules, json, f"{name!r} {said}")


def _told(name: str, rules: ZoneRules, json: bool, said: str) -> None:
    if json:
        print_json(ZoneSet(name, rules.weight, rules.running_max, rules.per_second, rules.paused))
    else:
        say(said)


def _limit(option: str, text: str | None, number: Callable[[str], Any]) -> Any:
    """A number, None for no limit, `...` if nothing was said."""
    if text is None:
        return ...
    if text.lower() == NO_LIMIT:
        return None
    try:
        return number(text)
    except ValueError:
        kind = "a whole number" if number is int else "a number"
        raise InvalidInputError(f"{option} takes {kind}, or none for no limit, not {text!r}") from None


def _words(rules: ZoneRules) -> str:
    if rules == PLAIN_RULES:
        return "weight 1, no limits"
    said = [f"weight {rules.weight:g}"]
    if rules.running_max is not None:
        said.append(f"at most {rules.running_max:,} running")
    if rules.per_second is not None:
        said.append(f"at most {rules.per_second:g} a second")
    return ", ".join(said) + ("; it is paused" if rules.paused else "")


# --- For people ---


def _shown(standing: ZoneStanding) -> ShownZone:
    rules, lease = standing.rules, standing.lease
    return ShownZone(
        zone=standing.zone,
        ready=standing.ready,
        delayed=standing.delayed,
        running=standing.running,
        dead=standing.dead,
        next_at=standing.next_at,
        fifo=standing.fifo,
        weight=rules.weight,
        running_max=rules.running_max,
        per_second=rules.per_second,
        paused=rules.paused,
        leased_by=None if lease is None else lease.worker or SOMEBODY,
        leased_at=None if lease is None else from_ms(lease.leased_ms),
    )


def _place(job: ShownJob, *, fifo: bool) -> tuple[int, int, datetime]:
    """Where it stands in its zone. Jobs are in enqueue order already: that decides between equals, and in a FIFO zone
    between all that wait."""
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


def _tell(story: ZoneStory, console: Console) -> None:
    zone = story.zone
    table = Table(box=None, show_header=False, pad_edge=False)
    facts = {
        "zone": zone.zone,
        "order": "FIFO: strictly as they were enqueued, one at a time" if zone.fifo else "",
        **{name: f"{getattr(zone, name):,}" for name in ("ready", "delayed", "running", "dead")},
        "next": _next(zone),
        "leased by": f"{zone.leased_by}, since {clock_time(zone.leased_at)}" if zone.leased_at is not None else "",
        "rules": _words(ZoneRules(zone.weight, zone.running_max, zone.per_second, zone.paused)),
    }
    for name, value in facts.items():
        if value:
            table.add_row(Text(name, "bold"), Text(printable(value)))
    console.print(table, soft_wrap=True)
    if held := _held(zone):
        console.print()
        console.print(held, markup=False, soft_wrap=True)
    if story.jobs:
        console.print()
        print_table(JOBS, story.jobs)


def _held(zone: ShownZone) -> str:
    """What keeps its jobs from being claimed, if that can be seen."""
    if zone.paused:
        return f"It is paused: none of its jobs are claimed until `casque zones resume {quote(zone.zone)}`."
    if zone.running_max is not None and zone.running >= zone.running_max and zone.ready:
        return (
            f"As many of its jobs run as may at a time, {zone.running_max:,}: the others wait for one of them to end."
        )
    if zone.leased_by is not None and zone.ready:
        return f"It is leased: only {zone.leased_by} is given its jobs, until it lets go or falls silent."
    if zone.fifo and zone.running and zone.ready:
        return "One of its jobs runs: in a FIFO zone the others wait until that is over."
    if zone.fifo and zone.delayed:
        return "Its first job failed and waits to be tried again: in a FIFO zone the others wait behind it."
    return ""
