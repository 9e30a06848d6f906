"""`casque archive cat URL` and `casque archive ls URL`: finished jobs, as the archive keeps them."""

from __future__ import annotations

from contextlib import aclosing
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape
from typer.core import TyperGroup

from casque import times
from casque.cli.place import QueueName
from casque.cli.running import Json, OptionalBucket, StoreOptions, on_store
from casque.cli.shown import Out, now, print_table
from casque.cli.terminal import print_json
from casque.client.queue import Queue
from casque.codec.archive import ARCHIVE, hour_of, parse_key
from casque.codec.head import KEY, RING, Head, read_layout
from casque.codec.ring import SHARDS, decode_ring, shard_prefix
from casque.codec.stored import to_ms
from casque.errors import InvalidInputError
from casque.printable import printable
from casque.service import ArchivedJob
from casque.storage.port import Store, Stored, locate
from casque.types import JobState

EXAMPLES_CAT = """
[bold]Examples[/]

  casque archive cat file:///var/lib/orders --since 24h

  casque archive cat s3://bucket/orders --since 2026-02-15T10:00 --until 2026-02-15T12:00 --state dead

  casque archive cat s3://bucket/orders --entrypoint send --json > sent.jsonl
"""
EXAMPLES_LS = """
[bold]Examples[/]

  casque archive ls file:///var/lib/orders

  casque archive ls s3://bucket/orders --since 7d --json
"""
COLOURS = {"done": "cyan", "dead": "bold red", "cancelled": "yellow"}
SHOWN = 60


Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Finished then or later: 2026-02-15T10:00, or 90m, 24h, 7d ago."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Finished before then.")]
HOURS = (
    ("hour (UTC)", lambda one: one[0][0]),
    ("shard", lambda one: one[0][1]),
    ("objects", lambda one: f"{len(one[1]):,}"),
    ("first commit", lambda one: f"{min(each.first for each in one[1]):,}"),
    ("last commit", lambda one: f"{max(each.last for each in one[1]):,}"),
)


class Finish(StrEnum):
    """How a job can be over."""

    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


class ArchivedObject(msgspec.Struct, frozen=True):
    """One object of the archive: what was finished by these commits, in this hour."""

    key: str
    hour: str
    first: int
    last: int


class CatUnlessNamed(TyperGroup):
    """`casque archive URL` is `casque archive cat URL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args and (args[0] in self.commands or args[0] in ("-h", "--help"))
        return super().parse_args(ctx, args if named else ["cat", *args])


def cat(
    url: OptionalBucket = None,
    since: Since = None,
    until: Until = None,
    entrypoint: Annotated[str | None, typer.Option("--entrypoint", "-e", help="Only jobs of this entrypoint.")] = None,
    state: Annotated[
        list[Finish] | None, typer.Option("--state", "-s", help="Only jobs that ended like this; may be repeated.")
    ] = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Show finished jobs, one line each, hour by hour: when they finished, how, after how many attempts and by whom.

    Times without a zone are in UTC. Reads beside whatever else goes on, and never writes. What was finished within the
    last seconds may not be there yet.

    Exit code 0: ended. 1: the archive is damaged. 2: there is no queue, or the question makes no sense.
    """

    async def work(store: Store) -> None:
        await _there(store)
        console = Out(soft_wrap=True, highlight=False)
        jobs = Queue.open(store).archive(
            since=moment("--since", since),
            until=moment("--until", until),
            entrypoint=entrypoint,
            states=None if state is None else [JobState(one.value) for one in state],
        )
        async with aclosing(jobs):
            async for job in jobs:
                if json:
                    print_json(job)
                else:
                    console.print(_line(job), markup=True)

    on_store(url, option, work, queue=queue)


def ls(
    url: OptionalBucket = None,
    since: Since = None,
    until: Until = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """List the objects of the archive, hour by hour: how many there are, and which commits they cover. Reads no job.

    --since and --until are about whole hours.

    Exit code 0: listed. 2: there is no queue, or the question makes no sense.
    """

    async def work(store: Store) -> None:
        begin, end = (
            None if one is None else hour_of(to_ms(one)) for one in (moment("--since", since), moment("--until", until))
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

    on_store(url, option, work, queue=queue)


async def _archives(store: Store) -> list[str]:
    """Where there are any: beside the queue, or beside each shard of a ring."""
    read = await store.get(KEY)
    if (await _there(store)).layout != RING or not isinstance(read, Stored):
        return [""]
    return [f"{shard_prefix(token)}/" for token in range(decode_ring(read.body).shards)]


async def _there(store: Store) -> Head:
    read = await store.get(KEY)
    if not isinstance(read, Stored):
        raise InvalidInputError(f"there is no queue here: {KEY} is missing")
    return read_layout(KEY, read.body, locate(store, KEY))


def moment(name: str, text: str | None) -> datetime | None:
    """A time, or how long ago."""
    return None if text is None else times.moment_or_ago(name, text, now())


def _line(job: ArchivedJob) -> str:
    finished = job.finished_at.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    said = {"attempts": job.attempts, "worker": job.worker, "error": job.error, "result": job.result}
    fields = " ".join(f"{name}={_text(value)}" for name, value in said.items() if value is not None)
    job_id, entrypoint, fields = (escape(printable(one)) for one in (job.id, job.entrypoint, fields))
    colour = COLOURS[job.state.value]
    return f"{finished}  [{colour}]{job.state.value:<9}[/]  {job_id:<36}  {entrypoint}  {fields}"


def _text(value: object) -> str:
    text = repr(value)[1:] if isinstance(value, bytes) else str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
