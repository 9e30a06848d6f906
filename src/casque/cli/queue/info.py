"""`casque queue info`: what a queue is, and how many jobs it has."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from datetime import datetime

import msgspec

from casque.cli.command import command
from casque.cli.formats import clock_time, count_of, duration, now
from casque.cli.options import Json
from casque.cli.output import Columns, answer, print_facts, print_table, say
from casque.cli.queue.gates import describe_gates
from casque.cli.reaching import Brokers, watch
from casque.cli.target import QueueTarget, open_brokers
from casque.client.config import QueueConfig
from casque.client.head import KEY, RING, QueueHead, require_head
from casque.client.leading import leader_of
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.clock import SystemClock
from casque.engine.embedded import state_at
from casque.errors import CorruptQueueError
from casque.ring.service import strictest, total
from casque.service import Stats
from casque.storage.url import is_address
from casque.types import ALL_OPEN, Gates, JobRecord, JobState, from_ms


class Depth(msgspec.Struct):
    """The jobs of one entrypoint that are in the queue."""

    entrypoint: str
    ready: int = 0
    delayed: int = 0
    running: int = 0
    dead: int = 0
    oldest_due_at: datetime | None = None
    """When the job that has waited longest became due."""


class ShardInfo(msgspec.Struct, frozen=True):
    """One shard of a ring."""

    token: int
    position: int
    waiting: int
    running: int
    zones: int
    """Zones that have jobs here, dead ones included."""
    misplaced: int
    """Zones and keys that would be elsewhere if they were new: they stay until they have run empty. On a surplus shard
    that is all of its jobs."""
    leader: str | None = None
    """The broker that leads it, if one does."""


class Ring(msgspec.Struct, frozen=True):
    """The shards of a ring."""

    generation: int
    sizes: tuple[int, ...]
    """Newest last. Earlier sizes are kept as long as zones may be found by them."""
    shards: tuple[ShardInfo, ...]


class Info(msgspec.Struct, frozen=True):
    """A queue and its counts."""

    url: str
    position: int
    enqueued: int
    ready: int
    delayed: int
    running: int
    dead: int
    """Dead now."""
    done: int
    cancelled: int
    purged: int
    """Dead jobs that were removed."""
    layout: str | None = None
    """None if a broker was asked, which does not say."""
    queue_id: str | None = None
    leader: str | None = None
    copy_of: str | None = None
    """If this is a copy of a queue that is led in another place: the broker that leads the original."""
    entrypoints: tuple[Depth, ...] | None = None
    gates: Gates = ALL_OPEN
    """What is paused or being drained."""
    zones: int | None = None
    """Zones that have jobs; None if a broker was asked."""
    zones_with_rules: int | None = None
    ring: Ring | None = None
    """If it is a ring of shards."""


@command(
    "queue info",
    examples=["casque queue info file:///var/lib/orders", "casque queue info grpc://broker:7700 --json"],
)
def info(target: QueueTarget, json: Json = False) -> None:
    """Show what a queue is and how many jobs it has: its layout, who leads it, what is paused or being drained, how
    many jobs are in which state, and by entrypoint how many wait and since when.

    A bucket is read beside running processes, and never written. A broker reports only the totals.

    Exit code 0: shown. 1: the queue is damaged. 2: there is none, or it cannot be read.
    """
    place = target.resolve()
    found = asyncio.run(_ask_broker(place) if is_address(place.url) else _read_bucket(place))
    answer(found, lambda: _print_info(found), json=json)


async def _ask_broker(place: QueueConfig) -> Info:
    async def ask() -> Stats:
        async with open_brokers(place, **place.changes()) as q:
            return await q.stats()

    stats = await watch(ask(), Brokers.of(place.url, place.tls))
    return Info(place.url, stats.position, **msgspec.structs.asdict(stats.totals), gates=stats.gates)


async def _read_bucket(place: QueueConfig) -> Info:
    store = as_store(place.url, place.options)
    try:
        head = await require_head(store)
        parts = Parts(store, DEFAULTS.with_changes(place.changes()))
        if head.layout == RING:
            return await _read_ring(place, parts, head)
        leader = await leader_of(store)
        state = await parts.read()
    finally:
        await store.close()
    now_ms = SystemClock().wall_ms()
    return Info(
        place.url,
        state.position,
        **msgspec.structs.asdict(state.totals(now_ms)),
        layout=head.layout,
        queue_id=head.queue_id,
        leader=leader.address,
        copy_of=leader.copy_of,
        entrypoints=depths(state.jobs.values(), now_ms),
        gates=state.gates,
        zones=len(state.zone_jobs),
        zones_with_rules=len(state.rules),
    )


async def _read_ring(place: QueueConfig, parts: Parts, head: QueueHead) -> Info:
    """Read all shards at once, each as of a moment of its own."""
    ring = await parts.root().read()
    shards = [parts.shard(token) for token in range(ring.shards)]
    states = await asyncio.gather(*(shard.read() for shard in shards))
    leaders = await asyncio.gather(*(leader_of(shard.store) for shard in shards))
    infos: list[ShardInfo] = []
    for state, leader in zip(states, leaders, strict=True):
        if (view := state.ring) is None:
            raise CorruptQueueError(KEY, "one of its shards is missing or no shard: it was deleted. Restore it")
        misplaced = state.places.misplaced(view, len(state.jobs))
        counts = (state.position, state.waiting, state.running, len(state.places.zones), misplaced)
        infos.append(ShardInfo(view.token, *counts, leader.address))
    now_ms = SystemClock().wall_ms()
    return Info(
        place.url,
        sum(state.position for state in states),
        **msgspec.structs.asdict(total([state.totals(now_ms) for state in states])),
        layout=RING,
        queue_id=head.queue_id,
        entrypoints=depths((job for state in states for job in state.jobs.values()), now_ms),
        gates=strictest([state.gates for state in states]),
        zones=len({zone for state in states for zone in state.zone_jobs}),
        zones_with_rules=len({zone for state in states for zone in state.rules}),
        ring=Ring(ring.generation, ring.sizes, tuple(infos)),
    )


def depths(jobs: Iterable[JobRecord], now_ms: int) -> tuple[Depth, ...]:
    """Count jobs by entrypoint and state."""
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


def _print_info(found: Info) -> None:
    states = ("ready", "delayed", "running", "done", "cancelled", "dead")
    print_facts(
        {
            "queue": found.url,
            "layout": found.layout or "",
            "shards": "" if found.ring is None else _describe_ring(found.ring),
            "leader": _describe_leader(found),
            "gates": describe_gates(found.gates),
            "zones": _describe_zones(found),
            "position": f"{found.position:,}",
            "enqueued": f"{found.enqueued:,}",
            **{state: f"{getattr(found, state):,}" for state in states},
            "purged": f"{found.purged:,}" if found.purged else "",
        }
    )
    if found.ring is not None:
        say("")
        columns: Columns = [
            ("shard", lambda shard: f"{shard.token:04d}"),
            *((name, count_of(name)) for name in ("position", "waiting", "running", "zones", "misplaced")),
            ("leader", lambda shard: shard.leader or ""),
        ]
        print_table(columns, found.ring.shards)
    if found.entrypoints:
        say("")
        columns = [
            ("entrypoint", lambda depth: depth.entrypoint),
            *((name, count_of(name)) for name in ("ready", "delayed", "running", "dead")),
            ("oldest due", lambda depth: _since(depth.oldest_due_at)),
        ]
        print_table(columns, found.entrypoints)


def _describe_zones(found: Info) -> str:
    if not found.zones and not found.zones_with_rules:
        return ""
    return f"{found.zones:,} with jobs, {found.zones_with_rules:,} with rules; `casque zones list` shows them"


def _describe_leader(found: Info) -> str:
    if found.ring is not None and any(shard.leader for shard in found.ring.shards):
        leads = Counter(shard.leader or "no leader" for shard in found.ring.shards)
        return ", ".join(f"{leader} ({count} {'shard' if count == 1 else 'shards'})" for leader, count in leads.items())
    if found.copy_of is not None:
        return f"none: this is a copy of the queue that {found.copy_of} leads; `casque queue release` ends that here"
    return found.leader or ("" if found.layout is None else "none: every process that opens it writes to it")


def _describe_ring(ring: Ring) -> str:
    older = f", and zones that were made with {', '.join(map(str, ring.sizes[:-1]))}" if len(ring.sizes) > 1 else ""
    return f"{ring.sizes[-1]} (generation {ring.generation}{older})"


def _since(due: datetime | None) -> str:
    return "" if due is None else f"{clock_time(due)} ({duration(now() - due)})"
