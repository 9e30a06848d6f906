"""`casque tail`: watch the events of a queue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from casque.cli.command import command
from casque.cli.event_names import complete_kinds, parse_kind, shown_name
from casque.cli.formats import TEXT_MAX, clock_time
from casque.cli.options import Entrypoints, Json
from casque.cli.output import Out, print_json, say
from casque.cli.target import BucketTarget
from casque.client.head import MISSING, find_head
from casque.client.opening import Parts
from casque.client.past import past_of
from casque.client.queue import DEFAULTS, Queue
from casque.errors import HistoryGoneError, InvalidInputError
from casque.printable import printable
from casque.service import EventKind, QueueEvent
from casque.storage.port import Store

ENDS = frozenset({EventKind.ACKED, EventKind.CANCELLED, EventKind.WITHDRAWN, EventKind.LAPSED, EventKind.PURGED})
COLOURS = {
    "added": "green",
    "acked": "cyan",
    "nacked": "yellow",
    "expired": "yellow",
    "lapsed": "yellow",
    "crashed": "red",
    "died": "bold red",
    "quarantined": "bold red",
}


@command(
    "tail",
    examples=[
        "casque tail file:///var/lib/orders",
        "casque tail s3://bucket/orders --from start --no-follow --json > history.jsonl",
        "casque tail s3://bucket/orders --entrypoint send --kind died --kind nacked",
    ],
    reads_only=True,
    interrupt_is_success=True,
)
def tail(
    target: BucketTarget,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION|start",
            help="Begin after this commit, or with the oldest that is kept. For a ring of shards: a commit of each, as "
            '{"0000": 41, "0001": 7}.',
        ),
    ] = None,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="Stop at the end instead of waiting.")] = False,
    entrypoint: Entrypoints = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            "-k",
            metavar="EVENT",
            help="Only events of this kind, such as died, as they are shown; may be repeated.",
            autocompletion=complete_kinds,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Watch the events of a queue in the log layout: one line per event, from now on or from any position kept.

    Reads beside running processes, never writes, and needs no process to be running. Ctrl-C ends it.

    Exit code 0: ended. 1: the log is damaged. 2: no such history.
    """
    wanted = _EventFilter(frozenset(entrypoint or ()), frozenset(map(parse_kind, kind or ())))

    async def work(store: Store) -> None:
        if (head := await find_head(store)) is None:
            # Waiting for a queue that is about to be made is useful, but a wrong URL must not look like a quiet queue.
            if no_follow:
                raise InvalidInputError(MISSING)
            say(f"There is no queue here yet; waiting for {target.url or 'one'}", err=True)
        shards = None if head is None else head.shards
        position: int | dict[int, int] | None
        if head is None and from_ is None:
            position = 0  # all of it will be from now on
        elif shards is None:
            position = await _start_of(store, from_, wanted)
        else:
            # Each by itself: the beginning of one is in the middle of another.
            given, ring = _positions(from_), Parts(store, DEFAULTS)
            starts = {
                shard: await _start_of(ring.shard(shard).store, given.get(shard, from_), wanted)
                for shard in range(shards)
            }
            position = {shard: start for shard, start in starts.items() if start is not None} or None
        console = Out(soft_wrap=True, highlight=False)
        async with aclosing(Queue.open(store).events(from_position=position, follow=not no_follow)) as events:
            async for event in events:
                if not wanted.matches(event):
                    continue
                if json:
                    print_json(event)
                else:
                    console.print(_line(event, is_ring=shards is not None), markup=True)

    target.run_on_store(work)


def _positions(from_: str | None) -> dict[int, str]:
    """The positions of a ring's shards, if they are given."""
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


async def _start_of(store: Store, from_: str | None, wanted: _EventFilter) -> int | None:
    """Where to begin in a queue or shard. A filter by entrypoint first reads the jobs that are there."""
    position = await _parse_start(Queue.open(store), from_)
    return await wanted.read_jobs(store, position) if wanted.entrypoints else position


async def _parse_start(queue: Queue[bytes], from_: str | None) -> int | None:
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


class _EventFilter:
    """Which events to show. Most of them name only a job, so the filter remembers the jobs of its entrypoints."""

    def __init__(self, entrypoints: frozenset[str], kinds: frozenset[EventKind]) -> None:
        self.entrypoints = entrypoints
        self._kinds = kinds
        self._jobs: set[str] = set()

    async def read_jobs(self, store: Store, position: int | None) -> int:
        """Read the jobs at the position where the watch begins, and return it."""
        moment = await past_of(Parts(store, DEFAULTS)).at_position(position)
        jobs = moment.state.jobs.values()
        self._jobs |= {job.spec.id for job in jobs if job.spec.entrypoint in self.entrypoints}
        return moment.state.position

    def matches(self, event: QueueEvent) -> bool:
        """Must be called with every event, in order."""
        return self._is_of_entrypoints(event) and (not self._kinds or event.kind in self._kinds)

    def _is_of_entrypoints(self, event: QueueEvent) -> bool:
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
    fields = " ".join(f"{name}={_text(value)}" for name, value in _set_fields(event.fields))
    fields, job = escape(printable(fields)), escape(printable(event.job_id or ""))
    position = f"{event.shard:04d} {event.position:>8}" if is_ring else f"{event.position:>8}"
    kind = f"[{colour}]{shown_name(event.kind):<10}[/]"
    return f"{position}  {clock_time(event.at, 'milliseconds')}  {kind}  {job:<36}  {fields}"


def _set_fields(fields: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in fields.items() if value not in (None, False, (), [])]


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        text = repr(value)[1:]
        return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}… ({len(value)} bytes)"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return str(len(value))  # the parts of an admission; their jobs follow
    return str(value)
