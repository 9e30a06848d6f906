"""`casque archive cat|ls`: finished jobs, as the archive keeps them."""

from __future__ import annotations

from contextlib import aclosing
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape
from typer.core import TyperGroup

from casque.cli.command import command
from casque.cli.formats import COLOURS, TEXT_MAX, clock_time
from casque.cli.head import require_head
from casque.cli.options import Entrypoint, Json, Since, Until, parse_moment
from casque.cli.output import Columns, Out, print_json, print_table
from casque.cli.target import BucketTarget
from casque.client.queue import Queue
from casque.codec.archive import ARCHIVE, hour_of, parse_key
from casque.codec.ring import SHARDS, shard_prefix
from casque.codec.stored import to_ms
from casque.printable import printable
from casque.service import ArchivedJob
from casque.storage.port import Store
from casque.types import JobState

HOURS: Columns = (
    ("hour (UTC)", lambda one: one[0][0]),
    ("shard", lambda one: one[0][1]),
    ("objects", lambda one: f"{len(one[1]):,}"),
    ("first commit", lambda one: f"{min(each.first for each in one[1]):,}"),
    ("last commit", lambda one: f"{max(each.last for each in one[1]):,}"),
)


class FinalState(StrEnum):
    """The states a job can finish in."""

    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


class ArchivedObject(msgspec.Struct, frozen=True):
    """One object of the archive: the jobs that these commits finished in this hour."""

    key: str
    hour: str
    first: int
    last: int


class CatByDefault(TyperGroup):
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
        async with aclosing(jobs):
            async for job in jobs:
                if json:
                    print_json(job)
                else:
                    console.print(_line(job), markup=True)

    target.run_on_store(work)


@command(
    "archive ls",
    examples=["casque archive ls file:///var/lib/orders", "casque archive ls s3://bucket/orders --since 7d --json"],
    reads_only=True,
    interrupt_is_success=True,
)
def ls(target: BucketTarget, since: Since = None, until: Until = None, json: Json = False) -> None:
    """List the objects of the archive, hour by hour: how many there are, and which commits they cover. Reads no job.

    --since and --until are about whole hours.

    Exit code 0: listed. 2: there is no queue, or the question makes no sense.
    """

    async def work(store: Store) -> None:
        begin, end = (
            None if one is None else hour_of(to_ms(one))
            for one in (parse_moment("--since", since), parse_moment("--until", until))
        )
        hours: dict[tuple[str, str], list[ArchivedObject]] = {}
        for prefix in await _archives(store):
            async for key in store.list(prefix + ARCHIVE):
                found = parse_key(key.removeprefix(prefix))
                if found is None or (begin and found[0] < begin) or (end and found[0] > end):
                    continue
                one = ArchivedObject(key, found[0], found[1].first, found[1].last)
                if json:
                    print_json(one)
                else:
                    hours.setdefault((one.hour, prefix.removeprefix(f"{SHARDS}/").removesuffix("/")), []).append(one)
        if hours:
            print_table(HOURS, sorted(hours.items()))

    target.run_on_store(work)


async def _archives(store: Store) -> list[str]:
    """The prefixes of the archives: one of a queue, one for each shard of a ring."""
    shards = (await require_head(store)).shards
    return [""] if shards is None else [f"{shard_prefix(token)}/" for token in range(shards)]


def _line(job: ArchivedJob) -> str:
    details = {"attempts": job.attempts, "worker": job.worker, "error": job.error, "result": job.result}
    fields = " ".join(f"{name}={_text(value)}" for name, value in details.items() if value is not None)
    job_id, entrypoint, fields = (escape(printable(one)) for one in (job.id, job.entrypoint, fields))
    state = f"[{COLOURS[job.state.value]}]{job.state.value:<9}[/]"
    return f"{clock_time(job.finished_at, 'milliseconds')}  {state}  {job_id:<36}  {entrypoint}  {fields}"


def _text(value: object) -> str:
    text = repr(value)[1:] if isinstance(value, bytes) else str(value)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
