"""Several processes of one kind that look after a queue, to be killed: see `ticking.py` for what they do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from casque.journal.discovery import find_leader
from casque.storage.port import Store

ROOT = Path(__file__).parents[2]


class Process(NamedTuple):
    popen: subprocess.Popen[str]
    address: str


@contextmanager
def processes(kind: str, url: str, count: int) -> Iterator[list[Process]]:
    """Several of them, ready; killed in the end."""
    command = [sys.executable, "-W", "error", "-m", "tests.acceptance.ticking", kind, url]
    started = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        found = []
        for one in started:
            assert one.stdout is not None
            said, address = one.stdout.readline().split()
            assert said == "ready"
            found.append(Process(one, address))
        yield found
    finally:
        for one in started:
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()


def addresses(brokers: Sequence[Process]) -> str:
    """The URL by which their queue is opened, whoever of them leads it."""
    return "grpc://" + ",".join(broker.address for broker in brokers)


async def kill_leader(store: Store, brokers: Sequence[Process]) -> None:
    leader = await find_leader(store)
    [leading] = [broker for broker in brokers if broker.address == leader]
    leading.popen.kill()
    leading.popen.wait()
