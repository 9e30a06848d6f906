"""`casque archive URL`: finished jobs, as the archive keeps them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from casque import times
from casque.cli.place import QueueName
from casque.cli.running import Json, OptionalBucket, StoreOptions, on_store
from casque.cli.shown import now
from casque.client.queue import Queue
from casque.codec.head import KEY
from casque.errors import InvalidInputError
from casque.service import ArchivedJob
from casque.storage.port import Store, Stored
from casque.types import JobState

EXAMPLES = """
[bold]Examples[/]

  casque archive file:///var/lib/orders --since 24h

  casque archive s3://bucket/orders --since 2026-02-15T10:00 --until 2026-02-15T12:00 --state dead

  casque archive s3://bucket/orders --entrypoint send --json > sent.jsonl
"""
COLOURS = {"done": "cyan", "dead": "bold red", "cancelled": "yellow"}
SHOWN = 60


class Finish(StrEnum):
    """How a job can be over."""

    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


def archive(
    url: OptionalBucket = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Finished then or later: 2026-02-15T10:00, or 90m, 24h, 7d ago."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Finished before then.")] = None,
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
        if not isinstance(await store.get(KEY), Stored):
            raise InvalidInputError(f"there is no queue here: {KEY} is missing")
        console = Console(soft_wrap=True, highlight=False)
        jobs = Queue.open(store).archive(
            since=moment("--since", since),
            until=moment("--until", until),
            entrypoint=entrypoint,
            states=None if state is None else [JobState(one.value) for one in state],
        )
        async for job in jobs:
            if json:
                typer.echo(msgspec.json.encode(job).decode())
            else:
                console.print(_line(job))

    on_store(url, option, work, queue=queue)


def moment(name: str, text: str | None) -> datetime | None:
    """A time, or how long ago."""
    return None if text is None else times.moment_or_ago(name, text, now())


def _line(job: ArchivedJob) -> str:
    finished = job.finished_at.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    said = {"attempts": job.attempts, "worker": job.worker, "error": job.error, "result": job.result}
    fields = escape(" ".join(f"{name}={_text(value)}" for name, value in said.items() if value is not None))
    colour = COLOURS[job.state.value]
    return f"{finished}  [{colour}]{job.state.value:<9}[/]  {escape(job.id):<36}  {escape(job.entrypoint)}  {fields}"


def _text(value: object) -> str:
    text = repr(value)[1:] if isinstance(value, bytes) else str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
