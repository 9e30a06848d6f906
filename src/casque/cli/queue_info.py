"""`casque queue info URL`: how a queue stands."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from casque.cli.place import Place, QueueName, find_place
from casque.cli.running import EXIT_INTERRUPTED, Json, OptionalUrl, StoreOptions, clear_ends
from casque.cli.shown import Out, clock_time, length, now, print_table
from casque.cli.terminal import print_json
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS, Queue
from casque.client.reaching import is_address
from casque.clock import SystemClock
from casque.codec.head import KEY, RING, read_layout
from casque.engine.embedded import state_at
from casque.errors import CorruptQueueError, InvalidInputError
from casque.journal.discovery import is_copy, leader_here, read_leader
from casque.printable import printable
from casque.ring.service import strictest, total
from casque.state import State
from casque.storage.port import Stored, locate
from casque.types import ALL_OPEN, Gate, Gates, JobRecord, JobState, from_ms

EXAMPLES = """
[bold]Examples[/]

  casque queue info file:///var/lib/orders

  casque queue info grpc://broker:7700 --json
"""


class Depth(msgspec.Struct):
    """The jobs of one entrypoint that are in the queue."""

    entrypoint: str
    ready: int = 0
    delayed: int = 0
    running: int = 0
    dead: int = 0
    oldest_due_at: datetime | None = None
    """Since when the one that has waited longest is due."""


class ShardInfo(msgspec.Struct, frozen=True):
    """One shard of a ring."""

    token: int
    position: int
    waiting: int
    running: int
    zones: int
    """That have jobs here, dead ones included."""
    misplaced: int
    """Zones and keys that would be elsewhere if they were made now: they stay until they have run empty. Of a shard
    that the ring has no use for any more, all of its jobs."""
    leader: str | None = None
    """The broker that leads it, if one does."""


class Ring(msgspec.Struct, frozen=True):
    """The shards of a ring."""

    generation: int
    sizes: tuple[int, ...]
    """Newest last: of the past those that zones may still be found by."""
    shards: tuple[ShardInfo, ...]


class Info(msgspec.Struct, frozen=True):
    """How a queue stands."""

    url: str
    position: int
    enqueued: int
    ready: int
    delayed: int
    running: int
    dead: int
    """Those that were purged are counted here too."""
    done: int
    cancelled: int
    layout: str | None = None
    """None if only a broker was asked, which does not say."""
    queue_id: str | None = None
    leader: str | None = None
    copy_of: str | None = None
    """If this is a copy of a queue that is led in another place: the broker that leads the original."""
    entrypoints: tuple[Depth, ...] | None = None
    gates: Gates = ALL_OPEN
    """What is paused or being drained."""
    zones: int | None = None
    """That have jobs; None if only a broker was asked."""
    zones_with_rules: int | None = None
    ring: Ring | None = None
    """If it is a ring of shards."""


def info(
    url: OptionalUrl = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Show how a queue stands: its layout, who leads it, what is paused or being drained, how many jobs are in which
    state, and by entrypoint how many wait and since when.

    A bucket is read beside whatever else goes on, and never written. Of a broker only the totals are known.

    Exit code 0: shown. 1: the queue is damaged. 2: there is none, or it cannot be read.
    """
    try:
        with clear_ends():
            place = find_place(url, queue, option)
            found = asyncio.run(_asked(place) if is_address(place.url) else _read(place))
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if json:
        print_json(found)
    else:
        _show(found, Out(highlight=False))


async def _asked(place: Place) -> Info:
    async with Queue.open(place.url, tls=place.tls, **place.changes()) as q:
        stats = await q.stats()
    return Info(place.url, stats.position, **msgspec.structs.asdict(stats.totals), gates=stats.gates)


async def _read(place: Place) -> Info:
    store = as_store(place.url, place.options)
    try:
        read = await store.get(KEY)
        if not isinstance(read, Stored):
            raise InvalidInputError(f"there is no queue here: {KEY} is missing")
        head = read_layout(KEY, read.body, locate(store, KEY))
        if head.layout == RING:
            return await _read_ring(place, Parts(store, DEFAULTS.with_changes(place.changes())), head.queue_id)
        owner = await read_leader(store)
        leader = None if owner is None else owner.address
        copied = owner is not None and await is_copy(store, owner)
        state = await Parts(store, DEFAULTS.with_changes(place.changes())).read()
    finally:
        await store.close()
    now_ms = SystemClock().wall_ms()
    return Info(
        place.url,
        state.position,
        **msgspec.structs.asdict(state.totals(now_ms)),
        layout=head.layout,
        queue_id=head.queue_id,
        leader=None if copied else leader,
        copy_of=leader if copied else None,
        entrypoints=depths(state.jobs.values(), now_ms),
        gates=state.gates,
        zones=len(state.zone_jobs),
        zones_with_rules=len(state.rules),
    )


async def _read_ring(place: Place, parts: Parts, queue_id: str | None) -> Info:
    """All shards at once. Each is read as of a moment of its own."""
    ring = await parts.root().read()
    shards = [parts.shard(token) for token in range(ring.shards)]
    states = await asyncio.gather(*(shard.read() for shard in shards))
    leaders = await asyncio.gather(*(leader_here(shard.store) for shard in shards))
    now_ms = SystemClock().wall_ms()
    return Info(
        place.url,
        sum(state.position for state in states),
        **msgspec.structs.asdict(total([state.totals(now_ms) for state in states])),
        layout=RING,
        queue_id=queue_id,
        entrypoints=depths((job for state in states for job in state.jobs.values()), now_ms),
        gates=strictest([state.gates for state in states]),
        zones=len({zone for state in states for zone in state.zone_jobs}),
        zones_with_rules=len({zone for state in states for zone in state.rules}),
        ring=Ring(ring.generation, ring.sizes, tuple(map(_standing, states, leaders))),
    )


def _standing(state: State, leader: str | None) -> ShardInfo:
    ring = state.ring
    if ring is None:
        raise CorruptQueueError(KEY, "one of its shards is missing or no shard: it was deleted. Restore it")
    elsewhere = state.places.misplaced(ring, len(state.jobs))
    zones = len(state.places.zones)
    return ShardInfo(ring.token, state.position, state.waiting, state.running, zones, elsewhere, leader)


def depths(jobs: Iterable[JobRecord], now_ms: int) -> tuple[Depth, ...]:
    """How many of them are in which state, by entrypoint."""
    found: dict[str, Depth] = {}
    oldest: dict[str, int] = {}
    for job in jobs:
        name = job.spec.entrypoint
        depth = found.setdefault(name, Depth(name))
        match state_at(job, now_ms):
            case JobState.READY:
                depth.ready += 1
                oldest[name] = min(oldest.get(name, job.due_ms), job.due_ms)
            case JobState.DELAYED:
                depth.delayed += 1
            case JobState.RUNNING:
                depth.running += 1
            case _:
                depth.dead += 1
    for name, due_ms in oldest.items():
        found[name].oldest_due_at = from_ms(due_ms)
    return tuple(found[name] for name in sorted(found))


def _show(found: Info, console: Console) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    facts = {
        "queue": found.url,
        "layout": found.layout or "",
        "shards": "" if found.ring is None else _ring_told(found.ring),
        "leader": _led_told(found),
        "gates": gates_told(found.gates),
        "zones": _zones_told(found),
        "position": f"{found.position:,}",
        "enqueued": f"{found.enqueued:,}",
    }
    states = ("ready", "delayed", "running", "done", "cancelled", "dead")
    for name, value in {**facts, **{state: f"{getattr(found, state):,}" for state in states}}.items():
        if value:
            table.add_row(Text(name, "bold"), Text(printable(value)))
    console.print(table, soft_wrap=True)
    if found.ring is not None:
        console.print()
        columns = ("position", "waiting", "running", "zones", "misplaced")
        shard = ("shard", lambda shard: f"{shard.token:04d}")
        counts = [(name, _counted(name)) for name in columns]
        leader = [("leader", _leader_of)] if any(shard.leader for shard in found.ring.shards) else []
        print_table((shard, *counts, *leader), found.ring.shards)
    if found.entrypoints:
        console.print()
        print_table(
            (
                ("entrypoint", lambda depth: depth.entrypoint),
                *((name, _counted(name)) for name in ("ready", "delayed", "running", "dead")),
                ("oldest due", lambda depth: _since(depth.oldest_due_at)),
            ),
            found.entrypoints,
        )


def gates_told(gates: Gates) -> str:
    """What is not open, in words."""
    whole = [] if gates.queue is Gate.OPEN else [f"the queue is {gates.queue.value}"]
    return "; ".join(whole + [f"{name} is {gate.value}" for name, gate in sorted(gates.entrypoints.items())])


def _zones_told(found: Info) -> str:
    if not found.zones and not found.zones_with_rules:
        return ""
    return f"{found.zones:,} with jobs, {found.zones_with_rules:,} with rules; `casque zones ls` shows them"


def _led_told(found: Info) -> str:
    if found.ring is not None and any(shard.leader for shard in found.ring.shards):
        leads = Counter(shard.leader or "nobody" for shard in found.ring.shards)
        return ", ".join(f"{leader} ({count} {'shard' if count == 1 else 'shards'})" for leader, count in leads.items())
    if found.copy_of is not None:
        return f"none: this is a copy of the queue that {found.copy_of} leads; `casque queue release` ends that here"
    return found.leader or ("" if found.layout is None else "none: whoever opens it writes it")


def _ring_told(ring: Ring) -> str:
    older = f", and zones that were made with {', '.join(map(str, ring.sizes[:-1]))}" if len(ring.sizes) > 1 else ""
    return f"{ring.sizes[-1]} (generation {ring.generation}{older})"


def _leader_of(shard: Any) -> str:
    return shard.leader or ""


def _counted(name: str) -> Callable[[Any], str]:
    return lambda depth: f"{getattr(depth, name):,}"


def _since(due: datetime | None) -> str:
    return "" if due is None else f"{clock_time(due)} ({length(max(now() - due, timedelta(0)))})"
