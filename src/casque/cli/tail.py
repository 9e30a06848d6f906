"""`casque tail URL`: watch what happens to a queue."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from casque.cli.place import QueueName
from casque.cli.running import Json, OptionalBucket, StoreOptions, on_store
from casque.cli.shown import Out, print_json
from casque.client.queue import Queue
from casque.clock import SystemClock, system_random
from casque.codec.head import KEY
from casque.errors import HistoryGoneError, InvalidInputError
from casque.journal.log.past import Past
from casque.service import EventKind, QueueEvent
from casque.settings import QueueSettings
from casque.storage.port import Store, Stored

EXAMPLES = """
[bold]Examples[/]

  casque tail file:///var/lib/orders

  casque tail s3://bucket/orders --from start --no-follow --json > history.jsonl

  casque tail s3://bucket/orders --entrypoint send --kind died --kind nacked
"""
ENDS = frozenset({EventKind.ACKED, EventKind.CANCELLED, EventKind.WITHDRAWN, EventKind.PURGED})
COLOURS = {
    "added": "green",
    "acked": "cyan",
    "nacked": "yellow",
    "expired": "yellow",
    "crashed": "red",
    "died": "bold red",
    "quarantined": "bold red",
}
PAYLOAD_SHOWN = 60


def tail(
    url: OptionalBucket = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="POSITION|start", help="Begin after this commit, or with the oldest that is kept."
        ),
    ] = None,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="Stop at the end instead of waiting.")] = False,
    entrypoint: Annotated[
        list[str] | None, typer.Option("--entrypoint", "-e", help="Only jobs of this entrypoint; may be repeated.")
    ] = None,
    kind: Annotated[
        list[EventKind] | None, typer.Option("--kind", "-k", help="Only events of this kind; may be repeated.")
    ] = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Watch what happens to a queue in the log layout: one line per event, from now on or from any position kept.

    Reads beside whatever else goes on, never writes, and needs no process to be running. Ctrl-C ends it.

    Exit code 0: ended. 1: the log is damaged. 2: no such history.
    """
    chosen = _Chosen(frozenset(entrypoint or ()), frozenset(kind or ()))

    async def work(store: Store) -> None:
        q = Queue.open(store)
        if not isinstance(await store.get(KEY), Stored):
            # A queue that is about to be made is worth waiting for; a wrong URL should not look like a quiet queue.
            if no_follow:
                raise InvalidInputError(f"there is no queue here: {KEY} is missing")
            Console(stderr=True).print(
                f"There is no queue here yet; waiting for {escape(url or 'one')}", soft_wrap=True
            )
        position = await _begin(q, from_)
        if chosen.entrypoints:
            position = await chosen.learn(store, position)
        console = Out(soft_wrap=True, highlight=False)
        async with aclosing(q.events(from_position=position, follow=not no_follow)) as events:
            async for event in events:
                if not chosen.has(event):
                    continue
                if json:
                    print_json(event)
                else:
                    console.print(_line(event))

    on_store(url, option, work, queue=queue)


async def _begin(queue: Queue[bytes], from_: str | None) -> int | None:
    if from_ is None:
        return None
    if from_ != "start":
        if not from_.isascii() or not from_.isdecimal():
            raise InvalidInputError(f"--from takes a position, a whole number from 0, or start, not {from_!r}")
        return int(from_)
    try:
        async for _ in queue.events(from_position=0, follow=False):
            break
    except HistoryGoneError as error:
        return error.oldest
    return 0


class _Chosen:
    """Which events to show. Most of them name only a job, so its entrypoint has to be remembered."""

    def __init__(self, entrypoints: frozenset[str], kinds: frozenset[EventKind]) -> None:
        self.entrypoints = entrypoints
        self._kinds = kinds
        self._jobs: set[str] = set()

    async def learn(self, store: Store, position: int | None) -> int:
        """The jobs that are there when the watch begins; answers where that is."""
        past = Past(store, settings=QueueSettings(), clock=SystemClock(), rng=system_random())
        moment = await past.at_position(position)
        jobs = moment.state.jobs.values()
        self._jobs = {job.spec.id for job in jobs if job.spec.entrypoint in self.entrypoints}
        return moment.state.position

    def has(self, event: QueueEvent) -> bool:
        """To be asked about every event, in order."""
        return self._is_about_one_of_them(event) and (not self._kinds or event.kind in self._kinds)

    def _is_about_one_of_them(self, event: QueueEvent) -> bool:
        if not self.entrypoints:
            return True
        if event.kind is EventKind.ADDED and event.fields["entrypoint"] in self.entrypoints:
            self._jobs.add(str(event.job_id))
        known = event.job_id in self._jobs
        if event.kind in ENDS:
            self._jobs.discard(str(event.job_id))
        return known


def _line(event: QueueEvent) -> str:
    colour = COLOURS.get(event.kind.value, "default")
    moment = event.at.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    fields = escape(" ".join(f"{name}={_text(value)}" for name, value in _worth_showing(event.fields)))
    job = escape(event.job_id or "")
    return f"{event.position:>8}  {moment}  [{colour}]{event.kind.value:<10}[/]  {job:<36}  {fields}"


def _worth_showing(fields: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in fields.items() if value not in (None, False, (), [])]


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        text = repr(value)[1:]
        return text if len(text) <= PAYLOAD_SHOWN else f"{text[:PAYLOAD_SHOWN]}… ({len(value)} bytes)"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return str(len(value))  # the parts of an admission: what is in them follows
    return str(value)
