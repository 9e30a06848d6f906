"""`casque queue release URL`: brokers led this queue, and none is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated

import typer

from casque.broker.election import Elected, Election, OtherLeader
from casque.cli.auditing import audited
from casque.cli.place import QueueName
from casque.cli.running import Json, OptionalBucket, StoreOptions, on_store
from casque.cli.terminal import Terminal, print_json
from casque.client.opening import Parts
from casque.clock import new_id
from casque.codec.head import KEY, RING, read_layout
from casque.engine.committer import Committer
from casque.errors import InvalidInputError, QueueLedError
from casque.ring.members import Members
from casque.settings import BrokerSettings, QueueSettings
from casque.storage.port import Store, Stored, locate

EXAMPLES = """
[bold]Examples[/]

  casque queue release s3://bucket/orders

  casque queue release file:///var/lib/orders --lease 30
"""


@audited("queue release")
def release(
    url: OptionalBucket = None,
    queue: QueueName = None,
    option: StoreOptions = None,
    lease: Annotated[
        float, typer.Option(min=0.1, help="The brokers' lease in seconds: so long the leader must have been silent.")
    ] = 8.0,
    json: Json = False,
) -> None:
    """Open a queue to embedded writers again whose brokers are gone.

    Brokers that are stopped cleanly do this themselves. After the last of them has crashed, its lead is left in
    queue.json, and embedded writers are refused. This waits for as long as a broker that stands by would, takes the
    lead and resigns. It does nothing to a queue whose leader is alive, or to a ring of which any broker is.

    Exit code 0: the queue is open. 1: a broker leads it, and shows signs of life.
    """
    console = Terminal(stderr=True)

    async def work(store: Store) -> str | None:
        with console.status(f"watching for {lease:g} s whether somebody leads"):
            return await _release(store, BrokerSettings(lease=timedelta(seconds=lease), heartbeat=_tenth(lease)))

    before = on_store(url, option, work, queue=queue)
    if json:
        print_json({"open": True, "released_from": before})
    elif before is None:
        console.print("nobody leads this queue: it is open", style="green", highlight=False)
    else:
        console.print(f"the lead of {before} is over, and the queue is open", style="green", highlight=False)


async def _release(store: Store, settings: BrokerSettings) -> str | None:
    """Who led it, if anybody did."""
    parts = Parts(store, QueueSettings())
    read = await store.get(KEY)
    if isinstance(read, Stored) and read_layout(KEY, read.body, locate(store, KEY)).layout == RING:
        return await _release_ring(parts, settings)
    committer = parts.committer()
    await committer.open()
    if committer.state.ring is not None:
        raise InvalidInputError("this is a shard of a ring: release the ring, by its own URL")
    return await _take_and_resign(parts, committer, settings)


async def _release_ring(parts: Parts, settings: BrokerSettings) -> str | None:
    """All of its shards, if all of its brokers are silent for a lease."""
    members = Members(parts.store, "released", settings=settings, clock=parts.clock, rng=parts.rng)
    await members.look()
    ends_ms = parts.clock.monotonic_ms() + settings.lease.total_seconds() * 1000
    while members.alive() and parts.clock.monotonic_ms() <= ends_ms + settings.heartbeat.total_seconds() * 1000:
        await parts.clock.sleep(settings.heartbeat.total_seconds())
        await members.look()
    for member in members.alive().values():
        raise QueueLedError(member.address)

    async def release(token: int) -> str | None:
        shard = parts.shard(token)
        committer = shard.committer()
        await committer.open()
        return await _take_and_resign(shard, committer, settings, gone=members.is_gone)

    leaders = await asyncio.gather(*map(release, range((await parts.root().read()).shards)))
    await members.forget_all()
    return ", ".join(sorted({leader for leader in leaders if leader is not None})) or None


async def _take_and_resign(
    parts: Parts,
    committer: Committer,
    settings: BrokerSettings,
    gone: Callable[[str], bool] = lambda _leader: False,
) -> str | None:
    first = committer.sighting()
    if first.owner is None:
        return None
    election = Election(
        committer,
        name=new_id(parts.rng),
        address="released",
        settings=settings,
        clock=parts.clock,
        rng=parts.rng,
        gone=gone,
    )
    while not isinstance(result := await election.try_elect(), Elected):
        if isinstance(result, OtherLeader) and committer.sighting() != first:
            raise QueueLedError(result.leader.address)
        await parts.clock.sleep(settings.heartbeat.total_seconds())
    await committer.resign()
    return first.owner.address


def _tenth(seconds: float) -> timedelta:
    return timedelta(seconds=seconds / 10)
