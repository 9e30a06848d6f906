"""How long it takes until the next leader answers: after a kill -9, and after a clean stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from casque.client.queue import Queue
from casque.clock import SystemClock
from casque.errors import CasqueError, QueueLedError
from casque.service import Stats
from casque.transport.grpc.client import GrpcService
from simulation.chaos.actor import open_queue
from simulation.chaos.fleet import BrokerMember, Fleet, serve_arguments

_CLOCK = SystemClock()
LOOK_S = 0.01
ASK_S = 2.0
BY_BUCKET, BY_ADDRESS = "who asks the bucket", "who knows the addresses"
CRASH_GRACE_S = 2.0
"""Crash failover takes the lease and at most this much more."""


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What is to be measured."""

    url: str
    folder: Path
    options: Mapping[str, str] = field(default_factory=dict)
    brokers: int = 3
    heartbeat_s: float = 2.0
    lease_s: float = 8.0
    rounds: int = 5
    freeze: bool = True


@dataclass
class Times:
    """Seconds until another broker answered, one for each leader that went."""

    crash_s: list[float] = field(default_factory=list)
    resign_s: list[float] = field(default_factory=list)
    frozen_s: dict[str, list[float]] = field(default_factory=lambda: {BY_BUCKET: [], BY_ADDRESS: []})
    """For a client that was connected to a leader that is stopped, and stays so: by how it found the leader."""

    def promise_kept(self, rehearsal: Rehearsal) -> bool:
        return max(self.crash_s, default=0.0) <= rehearsal.lease_s + CRASH_GRACE_S


async def rehearse(rehearsal: Rehearsal) -> Times:
    """Kill leader after leader, then ask leader after leader to go."""
    arguments = serve_arguments(
        rehearsal.url, rehearsal.options, heartbeat_s=rehearsal.heartbeat_s, lease_s=rehearsal.lease_s
    )
    rehearsal.folder.mkdir(parents=True, exist_ok=True)
    brokers = [BrokerMember(f"broker-{number}", rehearsal.folder, arguments) for number in range(rehearsal.brokers)]
    fleet, times = Fleet(list(brokers)), Times()
    with fleet.running():
        for broker in brokers:
            broker.start()
        for broker in brokers:
            await broker.ready()
        leader = await next_leader(brokers)
        for _ in range(rehearsal.rounds):
            await one_stands_by(brokers)
            leader = await _crash(brokers, leader, times)
        for _ in range(rehearsal.rounds):
            await one_stands_by(brokers)
            leader = await _resign(brokers, leader, times)
        for _ in range(rehearsal.rounds if rehearsal.freeze else 0):
            await one_stands_by(brokers)
            leader = await _freeze(rehearsal, brokers, leader, times)
    return times


async def _crash(brokers: list[BrokerMember], leader: BrokerMember, times: Times) -> BrokerMember:
    began_ms = _CLOCK.monotonic_ms()
    leader.kill()
    follower = await next_leader([broker for broker in brokers if broker is not leader])
    times.crash_s.append((_CLOCK.monotonic_ms() - began_ms) / 1000)
    leader.start()
    return follower


async def _resign(brokers: list[BrokerMember], leader: BrokerMember, times: Times) -> BrokerMember:
    began_ms = _CLOCK.monotonic_ms()
    leader.ask_to_leave()
    follower = await next_leader([broker for broker in brokers if broker is not leader])
    times.resign_s.append((_CLOCK.monotonic_ms() - began_ms) / 1000)
    if await leader.ended(within_s=40) != 0:
        raise RuntimeError(f"{leader.name} ended with {leader.exit_code}: {leader.last_words()}")
    leader.start()
    return follower


async def _freeze(
    rehearsal: Rehearsal, brokers: list[BrokerMember], leader: BrokerMember, times: Times
) -> BrokerMember:
    addresses = "grpc://" + ",".join(broker.address for broker in brokers)
    async with (
        open_queue(rehearsal.url, "broker", rehearsal.options) as by_bucket,
        open_queue(addresses, None, {}) as by_address,
    ):
        clients = {BY_BUCKET: by_bucket, BY_ADDRESS: by_address}
        await asyncio.gather(*(queue.stats() for queue in clients.values()))
        began_ms = _CLOCK.monotonic_ms()
        leader.stop()

        async def ask(name: str, queue: Queue[bytes]) -> None:
            await queue.enqueue("work", b"")
            times.frozen_s[name].append((_CLOCK.monotonic_ms() - began_ms) / 1000)

        await asyncio.gather(*(ask(name, queue) for name, queue in clients.items()))
        follower = await next_leader([broker for broker in brokers if broker is not leader])
        leader.wake()
    return follower


async def one_stands_by(brokers: list[BrokerMember]) -> None:
    """There is somebody to take over. Who was hit last may still be starting."""
    await _first(brokers, lambda answer: isinstance(answer, QueueLedError))


async def next_leader(brokers: list[BrokerMember]) -> BrokerMember:
    """Whoever answers as the leader first."""
    return await _first(brokers, lambda answer: isinstance(answer, Stats))


async def _first(brokers: list[BrokerMember], wanted: Callable[[object], bool]) -> BrokerMember:
    """Ask all of them in turn, until one gives such an answer."""
    services = {broker: GrpcService(broker.address, connect_s=ASK_S, call_s=ASK_S) for broker in brokers}
    try:
        while True:
            for broker, service in services.items():
                if wanted(await _answer(service)):
                    return broker
            await _CLOCK.sleep(LOOK_S)
    finally:
        for service in services.values():
            await service.close()


async def _answer(service: GrpcService) -> Stats | CasqueError:
    try:
        return await service.stats()
    except CasqueError as error:
        return error


def show_times(rehearsal: Rehearsal, times: Times, console: Console) -> None:
    timing = f"heartbeat {rehearsal.heartbeat_s:g} s, lease {rehearsal.lease_s:g} s"
    table = Table(title=f"failover on {rehearsal.url.partition(':')[0]}, {timing}", title_justify="left")
    for column in ("until another broker answers", "rounds", "min", "median", "max"):
        table.add_column(column, justify="left" if column.startswith("until") else "right")
    rows = {"after kill -9": times.crash_s, "after SIGTERM": times.resign_s}
    rows |= {f"after SIGSTOP, for {who}": seconds for who, seconds in times.frozen_s.items()}
    for name, seconds in rows.items():
        if seconds:
            figures = (min(seconds), median(seconds), max(seconds))
            table.add_row(name, str(len(seconds)), *(f"{value:.2f} s" for value in figures))
    console.print(table)
    if not times.promise_kept(rehearsal):
        console.print(f"[bold red]a crash failover took more than the lease and {CRASH_GRACE_S:g} s[/]")
