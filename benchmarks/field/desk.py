"""What every side is put through, in a process of its own; the standard library only.

    python -m benchmarks.field.of_saq '{"task": "enqueue", "place": "unix:///tmp/redis.sock", "count": 1000}'

prints what was found as JSON. A worker is one more process, started from here. Times are of a clock that all processes
of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

PAYLOAD_BYTES = 100
STAMP_DIGITS = 20
BULK = 1_000
"""Jobs in one call of a bulk enqueue."""
_STARTED = "started after ms: "
PAUSE_S = (0.02, 0.06)
"""Between two jobs that find the worker idle; by chance, so that no timer is met again and again."""


@dataclass(frozen=True, kw_only=True)
class Task:
    task: str
    place: str
    kind: str = "noop"
    """Which jobs: a worker takes those of one kind only."""
    callers: int = 1
    count: int = 0
    limit_s: float = 0.0
    """Filling ends after so long, however many there are then."""


class Side:
    """One of the field. Calls are coroutines, or plain functions where `blocks` says so."""

    blocks: ClassVar[bool] = False
    has_bulk: ClassVar[bool] = True

    def __init__(self, task: Task) -> None:
        self.place = task.place
        self.kind = task.kind
        self.callers = task.callers

    def prepare(self) -> Any:
        """Make tables, or whatever a fresh place needs."""

    def open(self) -> Any:
        """Connect, for enqueuing."""

    def enqueue(self, payload: str) -> Any:
        raise NotImplementedError

    def enqueue_many(self, payloads: list[str]) -> Any:
        raise NotImplementedError

    def hurry(self, *, on: bool) -> Any:
        """Syncing may be left out while a queue is filled, which nobody times, and is switched on again after that."""

    def work(self, handle: Callable[[str], None]) -> Any:
        """Work with one process, until that is ended."""
        raise NotImplementedError


def main(side_class: type[Side], run: Callable[[Any], Any] = asyncio.run) -> None:
    task = Task(**json.loads(sys.argv[1]))
    side = side_class(task)
    found = _blocking(side, task) if side.blocks else run(_running(side, task))
    print(json.dumps(found), flush=True)
    os._exit(0)  # whatever a library has left running


def payload(stamp: int = 0) -> str:
    return f"{stamp:0{STAMP_DIGITS}}".ljust(PAYLOAD_BYTES, "x")


# --- Coroutines ---


async def _running(side: Side, task: Task) -> Any:
    match task.task:
        case "prepare":
            await side.prepare()
        case "work" | "answer":
            await side.work(handler_of(task))
        case "enqueue":
            await side.open()
            await _one_by_one(side, task.callers, max(task.count // 10, task.callers))
            return await _one_by_one(side, task.callers, task.count)
        case "bulk":
            await side.open()
            return await _bulk(side, task.count)
        case "fill":
            await side.open()
            await side.hurry(on=True)
            filled = await _fill(side, task)
            await side.hurry(on=False)
            return filled
        case "idle":
            await side.open()
            with _Worker(task) as started:
                for number in range(task.count + 5):
                    stamp = time.perf_counter_ns()
                    await side.enqueue(payload(stamp))
                    started(number)
                    await asyncio.sleep(random.uniform(*PAUSE_S))
                return started.found
    return None


async def _one_by_one(side: Side, callers: int, count: int) -> float:
    left = count

    async def call() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await side.enqueue(payload())

    begun = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    return count / (time.perf_counter() - begun)


async def _bulk(side: Side, count: int) -> float:
    begun = time.perf_counter()
    if side.has_bulk:
        for first in range(0, count, BULK):
            await side.enqueue_many([payload() for _ in range(min(BULK, count - first))])
        return count / (time.perf_counter() - begun)
    return await _one_by_one(side, 100, count)


async def _fill(side: Side, task: Task) -> int:
    filled = 0
    ends = time.perf_counter() + task.limit_s
    while filled < task.count and time.perf_counter() < ends:
        if side.has_bulk:
            await side.enqueue_many([payload() for _ in range(BULK)])
        else:
            await _one_by_one(side, task.callers, BULK)
        filled += BULK
    return filled


# --- Plain functions ---


def _blocking(side: Side, task: Task) -> Any:
    match task.task:
        case "prepare":
            side.prepare()
        case "work" | "answer":
            side.work(handler_of(task))
        case "enqueue":
            side.open()
            _one_by_one_in_threads(side, task.callers, max(task.count // 10, task.callers))
            return _one_by_one_in_threads(side, task.callers, task.count)
        case "bulk":
            side.open()
            begun = time.perf_counter()
            for first in range(0, task.count, BULK):
                _add(side, min(BULK, task.count - first))
            return task.count / (time.perf_counter() - begun)
        case "fill":
            side.open()
            side.hurry(on=True)
            filled = _fill_blocking(side, task)
            side.hurry(on=False)
            return filled
        case "idle":
            side.open()
            with _Worker(task) as started:
                for number in range(task.count + 5):
                    side.enqueue(payload(time.perf_counter_ns()))
                    started(number)
                    time.sleep(random.uniform(*PAUSE_S))
                return started.found
    return None


def _add(side: Side, count: int) -> None:
    wanted = [payload() for _ in range(count)]
    if side.has_bulk:
        side.enqueue_many(wanted)
    else:
        for one in wanted:
            side.enqueue(one)


def _fill_blocking(side: Side, task: Task) -> int:
    filled = 0
    ends = time.perf_counter() + task.limit_s
    while filled < task.count and time.perf_counter() < ends:
        _add(side, BULK)
        filled += BULK
    return filled


def _one_by_one_in_threads(side: Side, callers: int, count: int) -> float:
    def call(_caller: int) -> None:
        for _ in range(count // callers):
            side.enqueue(payload())

    begun = time.perf_counter()
    if callers == 1:
        call(0)
    else:
        with ThreadPoolExecutor(callers) as threads:
            list(threads.map(call, range(callers)))
    return count // callers * callers / (time.perf_counter() - begun)


# --- The worker's side ---


def handler_of(task: Task) -> Callable[[str], None]:
    """What jobs do: count, or tell how long they took to begin."""
    return _Counter(task.count) if task.task == "work" else _answer


class _Counter:
    """The rate between the first tenth and the last: what is claimed ahead and what is yet to be written are the same
    at both ends."""

    def __init__(self, count: int) -> None:
        self._from, self._to = count // 10, count - count // 10
        self._seen = 0
        self._begun = 0.0

    def __call__(self, _payload: str) -> None:
        self._seen += 1
        if self._seen == self._from:
            self._begun = time.perf_counter()
        elif self._seen == self._to:
            rate = (self._to - self._from) / (time.perf_counter() - self._begun)
            print(json.dumps(rate), flush=True)
            os._exit(0)


def _answer(payload: str) -> None:
    took_ns = time.perf_counter_ns() - int(payload[:STAMP_DIGITS])
    print(f"{_STARTED}{took_ns / 1e6}", flush=True)


class _Worker:
    """A worker in a process of its own, which says of each job how long it took to begin."""

    def __init__(self, task: Task) -> None:
        self._task = replace(task, task="answer")
        self.found: list[float] = []

    def __enter__(self) -> Self:
        module = sys.modules["__main__"].__spec__
        assert module is not None
        command = [sys.executable, "-m", module.name, json.dumps(asdict(self._task))]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return self

    def __call__(self, number: int) -> None:
        """Wait for the next job to begin. The first ones start the worker and warm it up, and do not count."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_STARTED):  # and not what a library has to say about itself
                took_ms = float(line.removeprefix(_STARTED))
                break
        else:
            raise RuntimeError(f"the worker ended with {self._process.wait()}")
        if number >= 5:
            self.found.append(took_ms)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
