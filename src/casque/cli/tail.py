"""`casque tail URL`: watch what happens to a queue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from casque.cli.place import QueueName
from casque.cli.running import Json, OptionalBucket, StoreOptions, on_store
from casque.cli.shown import Out
from casque.cli.terminal import Terminal, print_json
from casque.client.queue import Queue
from casque.clock import SystemClock, system_random
from casque.codec.head import KEY, RING, read_layout
from casque.codec.ring import decode_ring, shard_prefix
from casque.errors import HistoryGoneError, InvalidInputError
from casque.journal.log.past import Past
from casque.printable import printable
from casque.service import EventKind, QueueEvent
from casque.settings import QueueSettings
from casque.storage.below import StoreBelow
from casque.storage.port import Store, Stored, locate

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
            "--from",
            metavar="POSITION|start",
            help="Begin after this commit, or with the oldest that is kept. Of a ring of shards: a commit of each, as "
            '{"0000": 41, "0001": 7}.',
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
        if not isinstance(await store.get(KEY), Stored):
            # A queue that is about to be made is worth waiting for; a wrong URL should not look like a quiet queue.
            if no_follow:
                raise InvalidInputError(f"there is no queue here: {KEY} is missing")
            Terminal(stderr=True).print(f"There is no queue here yet; waiting for {url or 'one'}", soft_wrap=True)
        shards = await _shards(store)
        position: int | dict[int, int] | None
        if shards is None:
            position = await _begun(store, from_, chosen)
        else:
            # Each by itself: what is the beginning of one is in the middle of another.
            given = _positions(from_)
            begun = {
                shard: await _begun(StoreBelow(store, shard_prefix(shard)), given.get(shard, from_), chosen)
                for shard in range(shards)
            }
            known = {shard: begin for shard, begin in begun.items() if begin is not None}
            position = known or None
        console = Out(soft_wrap=True, highlight=False)
        async with aclosing(Queue.open(store).events(from_position=position, follow=not no_follow)) as events:
            async for event in events:
                if not chosen.has(event):
                    continue
                if json:
                    print_json(event)
                else:
                    console.print(_line(event, is_ring=shards is not None), markup=True)

    on_store(url, option, work, queue=queue)


async def _shards(store: Store) -> int | None:
    """How many, if it is a ring."""
    read = await store.get(KEY)
    if not isinstance(read, Stored) or read_layout(KEY, read.body, locate(store, KEY)).layout != RING:
        return None
    return decode_ring(read.body).shards


def _positions(from_: str | None) -> dict[int, str]:
    """Of the shards of a ring, if they are named."""
    if from_ is None or not from_.startswith("{"):
        if from_ not in (None, "0", "start"):
            raise InvalidInputError(
                "this queue is a ring of shards, each with positions of its own: --from takes start, 0, or one for "
                f'each of them, as {{"0000": 41, "0001": 7}}, not {from_!r}'
            )
        return {}
    try:
        named = msgspec.json.decode(from_, type=dict[str, int])
        return defaultdict(lambda: "0", {int(shard): str(position) for shard, position in named.items()})
    except ValueError:
        raise InvalidInputError(f'--from takes positions as {{"0000": 41, "0001": 7}}, not {from_!r}') from None


async def _begun(store: Store, from_: str | None, chosen: _Chosen) -> int | None:
    """Where to begin in a queue, or a shard; who asks for some entrypoints has to know the jobs that are there."""
    position = await _begin(Queue.open(store), from_)
    return await chosen.learn(store, position) if chosen.entrypoints else position


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
        self._jobs |= {job.spec.id for job in jobs if job.spec.entrypoint in self.entrypoints}
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


def _line(event: QueueEvent, *, is_ring: bool) -> str:
    colour = COLOURS.get(event.kind.value, "default")
    moment = event.at.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    fields = " ".join(f"{name}={_text(value)}" for name, value in _worth_showing(event.fields))
    fields, job = escape(printable(fields)), escape(printable(event.job_id or ""))
    shard = f"{event.shard:04d} " if is_ring else ""
    return f"{shard}{event.position:>8}  {moment}  [{colour}]{event.kind.value:<10}[/]  {job:<36}  {fields}"


def _worth_showing(fields: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in fields.items() if value not in (None, False, (), [])]


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        text = repr(value)[1:]
        return text if len(text) <= PAYLOAD_SHOWN else f"{text[:PAYLOAD_SHOWN]}… ({len(value)} bytes)"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return str(len(value))  # the parts of an admission: what is in them follows
    return str(value)
