"""What all callers have in common: how they start, what they are to do, and how they end."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from casque.client.queue import Queue
from casque.clock import Random
from casque.journal.log import pace
from simulation.chaos.caller import Caller, Place, batch_of
from simulation.chaos.shifted_clock import shift_clock
from simulation.history import Outcome, Recorder
from simulation.history.call import Asked, Call
from simulation.history.recorder import read_record

_PR_SET_PDEATHSIG = 1
SNAPSHOT_SEGMENTS = 48


class Orders(msgspec.Struct, frozen=True):
    """What one process is to do."""

    name: str
    record: str
    seed: str
    url: str
    """Of the store, or the addresses of the brokers."""
    via: str | None
    """`broker`: the store says who leads. None: the queue is in this process, or `url` names brokers."""
    store: str
    """Where the objects of the queue are."""
    options: dict[str, str] = {}
    settings: dict[str, float] = {}
    """Of a queue in this process, in seconds."""
    lanes: int = 2
    """Callers at the same time."""
    per_second: float = 10.0
    """Jobs, for each lane of a producer."""
    job_lease_s: float = 2.0
    stages: bool = True
    """Whether producers admit staged jobs, which only the log layout can."""
    shards_max: int = 0
    """Of a ring that is resized; 0 for a queue that is none."""
    earlier: str | None = None
    """The record of the process that was here before, if it was killed or left."""


Lane = Callable[[Caller, Orders, Random, str], Awaitable[None]]


def die_with_parent() -> None:
    """So that nothing is left of a run that was itself killed. Linux only; elsewhere an orderly end has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(1)


def keep_busy() -> None:
    """Take snapshots, and so collect the log, far more often than in peace."""
    pace.SNAPSHOT_SEGMENTS = SNAPSHOT_SEGMENTS


def run(lane: Lane) -> None:
    """Run this process's lanes until SIGTERM."""
    die_with_parent()
    keep_busy()
    shift_clock()
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    asyncio.run(_run(orders, lane))


async def _run(orders: Orders, lane: Lane) -> None:
    stopping = stop_asked()
    queue = open_queue(orders.url, orders.via, orders.options, worker=orders.name, settings=orders.settings)
    place = Place(orders.store, orders.options, whole=not orders.shards_max)
    caller = Caller(queue, Recorder(Path(orders.record)), place, stopping)
    async with queue:
        if orders.earlier is not None:
            await _ask_again(caller, Path(orders.earlier))
        names = [f"{orders.name}.{number}" for number in range(orders.lanes)]
        lanes = [
            asyncio.create_task(_until(stopping, lane, caller, orders, Random(f"{orders.seed}/{name}"), name))
            for name in names
        ]
        await asyncio.gather(*lanes)


async def _ask_again(caller: Caller, earlier: Path) -> None:
    """A careful caller that was killed asks again for what it never heard of, under the same request id."""
    for asked in unheard(read_record(earlier)):
        await caller.again(asked)


def unheard(calls: Sequence[Call]) -> list[Asked]:
    """The requests that got no answer. Batches of a source come in order: one that its source went on without is given
    up, because the queue takes whatever is older than the last batch for a repetition."""
    requests = {call.asked.request: call.asked for call in calls if call.asked.request is not None}
    answered = {call.asked.request for call in calls if call.outcome in (Outcome.OK, Outcome.REFUSED)}
    last: dict[str, int] = {}
    for asked in requests.values():
        if asked.verb == "admit":
            source, batch = batch_of(asked)
            last[source] = max(batch, last.get(source, 0))
    return [
        asked
        for request, asked in requests.items()
        if request not in answered and (asked.verb != "admit" or last[batch_of(asked)[0]] == batch_of(asked)[1])
    ]


async def _until(stopping: asyncio.Event, lane: Lane, caller: Caller, orders: Orders, rng: Random, name: str) -> None:
    number = 0
    while not stopping.is_set():
        number += 1
        await lane(caller, orders, rng, f"{name}/{orders.seed}/{number}")


def stop_asked() -> asyncio.Event:
    """Set by SIGTERM: finish what is under way, and leave."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    return stopping


def open_queue(
    url: str,
    via: str | None,
    options: Mapping[str, str],
    *,
    worker: str | None = None,
    settings: Mapping[str, float] | None = None,
) -> Queue[bytes]:
    """A queue that keeps trying for as long as an operator would want it to."""
    spans = {name: timedelta(seconds=seconds) for name, seconds in (settings or {}).items()}
    changes: Any = {"storage_patience": timedelta(seconds=60), **spans}
    for_store = None if url.startswith("grpc") else dict(options)
    return Queue.open(url, via=via, options=for_store, worker=worker, **changes)
