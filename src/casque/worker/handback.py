"""Gives back the jobs of handlers that cannot be stopped.

A thread runs on, and so does a coroutine that ignores its cancellation. Their leases can go back only when they can no
longer act. `give_back_after` replaces the process by one that does nothing else, which ends all threads. The process id
stays the same, so a service manager waits for it, and a container does not end before it is done.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from casque.client.queue import Queue
from casque.errors import CasqueError
from casque.service import Lease
from casque.telemetry import logger

log = logger("worker")

LIMIT_S = 10.0
"""Time limit. After that the leases expire."""


def give_back_after(url: Any, opening: Mapping[str, Any], *, worker: str, leases: Sequence[Lease]) -> None:
    """Replace this process by one that gives these leases back. Returns only if that fails; the leases then expire."""
    if not isinstance(url, str) or url.startswith("memory:"):
        return  # the queue vanishes with this process
    kept = {name: value for name, value in opening.items() if name not in ("clock", "rng")}
    try:
        body = pickle.dumps((url, kept, worker, list(leases)))
        file = tempfile.TemporaryFile()  # noqa: SIM115  stays open for the process that replaces this one
        file.write(body)
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        os.set_inheritable(file.fileno(), True)
    except (OSError, TypeError, AttributeError, pickle.PicklingError) as error:
        log.warning("%d jobs could not be given back; their leases run out: %s", len(leases), error)
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    program = "from casque.worker.handback import main; main()"
    os.execv(sys.executable, [sys.executable, "-c", program, str(file.fileno())])  # noqa: S606


def main() -> None:
    """The process that replaces the worker. Exits with 0, as the worker would have."""
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        url, opening, worker, leases = pickle.loads(file.read())  # noqa: S301  written by this process
    try:
        asyncio.run(_give_back(url, opening, worker, leases))
    except (CasqueError, TimeoutError) as error:
        sys.stderr.write(f"jobs could not be given back; their leases run out: {error}\n")


async def _give_back(url: str, opening: dict[str, Any], worker: str, leases: list[Lease]) -> None:
    async with asyncio.timeout(LIMIT_S), Queue.open(url, worker=worker, **opening) as queue:
        for refused in await queue.give_back(leases):
            if refused is not None:
                raise refused
