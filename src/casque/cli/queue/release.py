"""`casque queue release`: open a queue again whose brokers are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated

import typer

from casque.broker.election import Elected, Election, OtherLeader
from casque.cli.command import command
from casque.cli.options import Json
from casque.cli.output import Terminal, print_json
from casque.cli.target import BucketTarget
from casque.client.head import find_head
from casque.client.opening import Parts
from casque.clock import new_id
from casque.engine.committer import Committer
from casque.errors import InvalidInputError, QueueLedError
from casque.ring.members import Members
from casque.settings import BrokerSettings, QueueSettings
from casque.storage.port import Store


@command(
    "queue release",
    examples=[
        "casque queue release s3://bucket/orders",
        "casque queue release file:///var/lib/orders --leader-lease 30",
    ],
    audited=True,
)
def release(
    target: BucketTarget,
    lease: Annotated[
        float,
        typer.Option(
            "--leader-lease",
            "--lease",
            metavar="SECONDS",
            min=0.1,
            help="The leader's lease, as the brokers had it: the leader must have been silent that long.",
        ),
    ] = 8.0,
    json: Json = False,
) -> None:
    """Open a queue to embedded writers again after its brokers have crashed.

    Brokers that are stopped cleanly do this themselves. After the last of them has crashed, its lead is left in
    queue.json, and embedded writers are refused. This waits for as long as a standby broker would, takes the lead and
    resigns. It does nothing to a queue whose leader is alive, or to a ring that has a broker alive.

    Exit code 0: the queue is open. 1: a broker leads it, and shows signs of life.
    """
    console = Terminal(stderr=True, highlight=False)

    async def work(store: Store) -> str | None:
        with console.status(f"watching for {lease:g} s for a leader's heartbeat"):
            return await _release(store, BrokerSettings(lease=timedelta(seconds=lease), heartbeat=_tenth(lease)))

    before = target.run_on_store(work)
    if json:
        print_json({"open": True, "released_from": before})
    elif before is None:
        console.print("no broker leads this queue: it is open", style="green")
    else:
        console.print(f"{before} no longer leads, and the queue is open", style="green")


async def _release(store: Store, settings: BrokerSettings) -> str | None:
    """Returns the broker that led it, if one did."""
    parts = Parts(store, QueueSettings())
    head = await find_head(store)
    if head is not None and head.shards is not None:
        return await _release_ring(parts, settings)
    committer = parts.committer()
    await committer.open()
    if committer.state.ring is not None:
        raise InvalidInputError("this is a shard of a ring: release the ring, by its own URL")
    return await _take_and_resign(parts, committer, settings)


async def _release_ring(parts: Parts, settings: BrokerSettings) -> str | None:
    """Release all shards, if all brokers stay silent for a lease."""
    members = Members(parts.store, "released", parts, settings=settings)
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
        parts,
        name=new_id(parts.rng),
        address="released",
        settings=settings,
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
