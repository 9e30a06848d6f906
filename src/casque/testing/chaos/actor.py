"""What producers and workers have in common: how they are told what to do, and how they end."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path

import msgspec

from casque.client.queue import Queue
from casque.clock import Random
from casque.errors import CasqueError
from casque.testing.chaos.diary import NO, Diary

_PR_SET_PDEATHSIG = 1
ENTRYPOINT = "work"


class Orders(msgspec.Struct, frozen=True):
    """What one process is told to do."""

    name: str
    diary: str
    seed: str
    url: str
    """Of the store, to be asked who leads; or the addresses of the brokers."""
    via: str | None
    options: dict[str, str] = {}
    lanes: int = 2
    """Callers at the same time."""
    per_second: float = 10.0
    """Jobs, for each lane of a producer."""
    job_lease_s: float = 2.0


Lane = Callable[[Queue[bytes], Diary, Orders, Random, str], Awaitable[None]]


def die_with_parent() -> None:
    """So that nothing is left of a run that was itself killed. Linux only; elsewhere an orderly end has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(1)


def run(lane: Lane) -> None:
    """Run this process's lanes until SIGTERM."""
    die_with_parent()
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    asyncio.run(_run(orders, lane))


async def _run(orders: Orders, lane: Lane) -> None:
    stopping = stop_asked()
    queue = open_queue(orders.url, orders.via, orders.options, worker=orders.name)
    diary = Diary(Path(orders.diary))
    async with queue:
        names = [f"{orders.name}.{number}" for number in range(orders.lanes)]
        lanes = [
            asyncio.create_task(_until(stopping, lane, queue, diary, orders, Random(f"{orders.seed}/{name}"), name))
            for name in names
        ]
        await asyncio.gather(*lanes)


async def _until(
    stopping: asyncio.Event,
    lane: Lane,
    queue: Queue[bytes],
    diary: Diary,
    orders: Orders,
    rng: Random,
    name: str,
) -> None:
    number = 0
    while not stopping.is_set():
        number += 1
        await lane(queue, diary, orders, rng, f"{name}/{number}")


def stop_asked() -> asyncio.Event:
    """Set by SIGTERM: finish what is under way, and leave."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    return stopping


def open_queue(url: str, via: str | None, options: Mapping[str, str], *, worker: str | None = None) -> Queue[bytes]:
    """A queue that follows the leader for as long as an operator would want it to."""
    return Queue.open(
        url,
        via=via,
        options=dict(options) if via is not None else None,
        worker=worker,
        storage_patience=timedelta(seconds=60),
    )


async def told(diary: Diary, verb: str, call: Awaitable[None]) -> bool:
    """Whether it succeeded; what was said otherwise is written down."""
    try:
        await call
    except CasqueError as error:
        diary.write(NO, verb, error=type(error).__name__)
        return False
    return True
