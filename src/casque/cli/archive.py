"""`casque archive cat|list|erase|erasures`: finished jobs, as the archive keeps them."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import aclosing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.markup import escape

from casque.cli.command import command
from casque.cli.exits import confirm
from casque.cli.formats import COLOURS, TEXT_MAX, clock_time, jobs_noun
from casque.cli.help import PlainGroup
from casque.cli.options import Entrypoint, Json, Since, Until, Yes, parse_moment
from casque.cli.output import Columns, Out, answer, counted_steps, print_json, print_table, say
from casque.cli.target import BucketTarget
from casque.client.head import require_head
from casque.client.queue import Queue
from casque.printable import printable
from casque.service import ArchivedJob
from casque.storage.port import Store
from casque.types import JobState, to_ms

if TYPE_CHECKING:
    from casque.scan import ArchiveObject

EMPTY = "no finished jobs in the archive; jobs that finished within the last seconds may follow"
HOURS: Columns = (
    ("hour (UTC)", lambda one: one[0][0]),
    ("shard", lambda one: one[0][1]),
    ("objects", lambda one: f"{len(one[1]):,}"),
    ("forms", lambda one: ", ".join(sorted({each.key.rpartition(".")[2] for each in one[1]}))),
    ("first commit", lambda one: f"{min(each.first for each in one[1]):,}"),
    ("last commit", lambda one: f"{max(each.last for each in one[1]):,}"),
)

ERASURES: Columns = (
    ("when", lambda one: clock_time(one.at)),
    ("by", lambda one: printable(one.by)),
    ("zone", lambda one: printable(one.zone or "")),
    ("ids", lambda one: printable(", ".join(one.ids))),
    ("jobs", lambda one: f"{one.jobs:,}"),
    ("objects", lambda one: f"{one.objects:,}"),
    ("ended", lambda one: "yes" if one.done else "no: ask again"),
)


class FinalState(StrEnum):
    """The states a job can finish in."""

    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


class CatByDefault(PlainGroup):
    """`casque archive URL` is `casque archive cat URL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args and (args[0] in self.commands or args[0] in ("-h", "--help"))
        return super().parse_args(ctx, args if named else ["cat", *args])


@command(
    "archive cat",
    examples=[
        "casque archive cat file:///var/lib/orders --since 24h",
        "casque archive cat s3://bucket/orders --since 2026-02-15T10:00 --until 2026-02-15T12:00 --state dead",
        "casque archive cat s3://bucket/orders --entrypoint send --json > sent.jsonl",
    ],
    reads_only=True,
    interrupt_is_success=True,
)
def cat(
    target: BucketTarget,
    since: Since = None,
    until: Until = None,
    entrypoint: Entrypoint = None,
    state: Annotated[
        list[FinalState] | None, typer.Option("--state", "-s", help="Only jobs that ended like this; may be repeated.")
    ] = None,
    json: Json = False,
) -> None:
    """Show finished jobs, one line each, hour by hour: when they finished, how, after how many attempts and by whom.

    Times without a zone are in UTC. Reads beside running processes, and never writes. Jobs that finished within the
    last seconds may not be there yet.

    Exit code 0: ended. 1: the archive is damaged. 2: there is no queue, or the question makes no sense.
    """

    async def work(store: Store) -> None:
        await require_head(store)
        console = Out(soft_wrap=True, highlight=False)
        jobs = Queue.open(store).archive(
            since=parse_moment("--since", since),
            until=parse_moment("--until", until),
            entrypoint=entrypoint,
            states=None if state is None else [JobState(one.value) for one in state],
        )
        found = False
        async with aclosing(jobs):
            async for job in jobs:
                found = True
                if json:
                    print_json(job)
                else:
                    console.print(_line(job), markup=True)
        if not found and not json:
            say(EMPTY, err=True)

    target.run_on_store(work)


@command(
    "archive list",
    aliases=["ls"],
    examples=["casque archive list file:///var/lib/orders", "casque archive list s3://bucket/orders --since 7d --json"],
    reads_only=True,
    interrupt_is_success=True,
)
def list_(target: BucketTarget, since: Since = None, until: Until = None, json: Json = False) -> None:
    """List the objects of the archive, hour by hour: how many there are, in which form, and which commits they cover.
    Reads no job.

    Objects of the same hour and commits hold the same jobs, as JSON lines and as Parquet.

    --since and --until are about whole hours.

    Exit code 0: listed. 2: there is no queue, or the question makes no sense.
    """
    from casque.scan.bucket import list_archive
    from casque.scan.shards import shard_key, shard_name, shard_store

    async def work(store: Store) -> None:
        begin, end = (
            None if one is None else to_ms(one)
            for one in (parse_moment("--since", since), parse_moment("--until", until))
        )
        shards = (await require_head(store)).shards
        hours: dict[tuple[str, str], list[ArchiveObject]] = {}
        for shard in [None] if shards is None else range(shards):
            async for one in list_archive(shard_store(store, shard), since_ms=begin, through_ms=end, every_form=True):
                if json:
                    print_json(one if shard is None else msgspec.structs.replace(one, key=shard_key(shard, one.key)))
                else:
                    hours.setdefault((one.hour, "" if shard is None else shard_name(shard)), []).append(one)
        if hours:
            print_table(HOURS, sorted(hours.items()))
        elif not json:
            say(EMPTY, err=True)

    target.run_on_store(work)


@command(
    "archive erase",
    examples=[
        "casque archive erase s3://bucket/orders --zone acme --dry-run",
        "casque archive erase s3://bucket/orders --id 0b5c4e7a --id 91aa03f2 --yes",
    ],
    audited=True,
)
def erase(
    target: BucketTarget,
    zone: Annotated[str | None, typer.Option("--zone", help="Erase the jobs of this zone.")] = None,
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="Erase this job; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Erase finished jobs from the archive: its objects are written again without them, as lines and as Parquet. Asks
    first, and records who asked for what, and how many there were.

    Works beside a running queue; repeat it if it breaks off. It reaches the archive alone. Jobs in the queue: `casque
    zones purge` or `casque jobs cancel` and `purge`. Log and snapshots have everything until `retention` has passed and
    more commits have come. Backups are left alone, and so are the tables of a warehouse: make them again with a full
    run of the pipeline into a new one.

    Exit code 0: erased, or there was nothing. 1: the answer was no, or the archive is damaged. 2: it cannot be done. 4:
    the outcome is unknown.
    """
    from casque.client.erasing import Erasing, Erasure, Found

    async def work(store: Store) -> tuple[Found, Erasure | None]:
        with counted_steps(wanted=not json) as progress:
            erasing = Erasing(store, by=_user(), zone=zone, ids=ids or (), progress=progress)
            found = await erasing.find()
        if dry_run or not found.archived:
            return found, None
        finishes = f"{found.archived:,} finished {jobs_noun(found.archived)}"
        confirm(f"Erase {finishes} from the archive for good?", yes=yes)
        with counted_steps(wanted=not json) as progress:
            erasing = Erasing(store, by=_user(), zone=zone, ids=ids or (), progress=progress)
            return found, await erasing.erase()

    found, done = target.run_on_store(work)
    erased = 0 if done is None else done.jobs
    would = found.archived if dry_run else 0
    text = f"would be erased: {would:,}" if dry_run else f"erased: {erased:,} finished {jobs_noun(erased)}"
    answer({"erased": erased, "found": found, "dry_run": dry_run}, text, json=json)
    if found.waiting and not json:
        say(f"finished and not archived yet, repeat this in a while: {found.waiting:,}", err=True)
    if found.queued and not json:
        say(f"still in the queue, cancel or purge them first: {found.queued:,}", err=True)


@command(
    "archive erasures",
    examples=["casque archive erasures s3://bucket/orders"],
    reads_only=True,
)
def erasures(target: BucketTarget, json: Json = False) -> None:
    """List what was erased from the archive: when, by whom, what was asked for, and how many jobs there were.

    A ring has a record for each shard.

    Exit code 0: listed. 1: a record is damaged. 2: there is no queue.
    """
    from casque.client.erasing import list_erasures

    found = target.run_on_store(list_erasures)
    if json:
        for one in found:
            print_json(one)
    elif found:
        print_table(ERASURES, found)
    else:
        say("nothing was erased from this archive", err=True)


def _user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())  # a container's user may have no name
    return f"{user}@{socket.gethostname()}"


def _line(job: ArchivedJob) -> str:
    details = {"attempts": job.attempts, "worker": job.worker, "error": job.error, "result": job.result}
    fields = " ".join(f"{name}={_text(value)}" for name, value in details.items() if value is not None)
    job_id, entrypoint, fields = (escape(printable(one)) for one in (job.id, job.entrypoint, fields))
    state = f"[{COLOURS[job.state.value]}]{job.state.value:<9}[/]"
    return f"{clock_time(job.finished_at, 'milliseconds')}  {state}  {job_id:<36}  {entrypoint}  {fields}"


def _text(value: object) -> str:
    text = repr(value)[1:] if isinstance(value, bytes) else str(value)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
