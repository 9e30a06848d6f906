"""The load: callers that go round as fast as they are answered, and jobs that arrive by chance.

Standard library only, because the same code drives casque in its environment and jqueue in another one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

ENTRYPOINT = "task"
PAYLOAD = bytes(range(100))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One measurement. It travels to the process that carries it out as JSON."""

    api: str = "broker"
    """`broker` for BrokerQueue, `queue` for casque's Queue.open."""
    layout: str = "document"
    place: str = "file"
    """`file`, `memory`, or the URL of a store."""
    depth: int = 0
    concurrency: int = 50
    seconds: float = 2.0
    warm_up_s: float = 0.3
    jobs_per_second: float = 0.0
    """Jobs that arrive by chance at this rate; 0 stands for a closed loop."""
    spread_s: float = 0.0
    """Callers of a closed loop start at random moments within this span."""
    delay_ms: float = 0.0
    """What each request to a memory store takes."""
    loop: str = "asyncio"
    seed: int = 1
    options: dict[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Result:
    """What came of it."""

    calls: int
    failed: int
    seconds: float
    median_ms: float
    p99_ms: float
    cpu_seconds: float = 0.0
    """Of this process, in a closed loop: what the rate would be limited by on a machine of one's own."""
    first_error: str = ""
    python: str = ""
    requests: dict[str, int] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_of_snapshots: int = 0
    """Part of `bytes_up`."""
    round_trip_ms: float = 0.0

    @property
    def rate(self) -> float:
        return self.calls / self.seconds


class Verbs(Protocol):
    """What all three queues have in common."""

    async def enqueue(self, entrypoint: str, payload: bytes) -> Any: ...

    async def dequeue(self, entrypoint: str) -> list[Any]: ...

    async def ack(self, job_id: str) -> None: ...


class Log:
    """How long each call took, and which failed."""

    def __init__(self) -> None:
        self.took_s: list[float] = []
        self.failed = 0
        self.first_error = ""

    async def job(self, queue: Verbs, arrived_s: float | None = None) -> None:
        """One job's worth of calls, with the first counted from the moment it should have begun."""
        clock, took = time.perf_counter, self.took_s
        started = arrived_s or clock()
        try:
            await queue.enqueue(ENTRYPOINT, PAYLOAD)
            added = clock()
            took.append(added - started)
            [job] = await queue.dequeue(ENTRYPOINT)
            claimed = clock()
            took.append(claimed - added)
            await queue.ack(job.id)
            took.append(clock() - claimed)
        except Exception as error:  # noqa: BLE001 (a failed call is a result here)
            self.failed += 1
            self.first_error = self.first_error or repr(error)

    def result(self, seconds: float) -> Result:
        took = sorted(self.took_s) or [0.0]
        return Result(
            calls=len(self.took_s),
            failed=self.failed,
            seconds=seconds,
            median_ms=took[len(took) // 2] * 1000,
            p99_ms=took[min(len(took) - 1, len(took) * 99 // 100)] * 1000,
            first_error=self.first_error,
            python=sys.version.split()[0],
        )


async def drive(queue: Verbs, run: Run, *, warm: Callable[[], None] = lambda: None) -> Result:
    """Warm up, say so, then measure."""
    rng = random.Random(run.seed)
    await _closed(queue, run, run.warm_up_s, rng)
    await upkeep_is_over()
    warm()
    if run.jobs_per_second:
        return await _arrivals(queue, run, rng)
    return await _closed(queue, run, run.seconds, rng)


def upkeep_goes_on() -> bool:
    """Whether casque writes a snapshot just now, in a task of its own beside the calls.

    Filling a queue leaves one due, which would fall into a measurement of seconds though it comes once in many minutes.
    What it costs while it is being written has a table of its own (`deep.py`).
    """
    return any(task.get_name() == "casque maintenance" for task in asyncio.all_tasks())


async def upkeep_is_over() -> None:
    while upkeep_goes_on():
        await asyncio.sleep(0.01)


async def _closed(queue: Verbs, run: Run, seconds: float, rng: random.Random) -> Result:
    """Everybody goes round until time is up and finishes the round, so no call is cut in two."""
    log = Log()
    begun, cpu_begun = time.perf_counter(), time.process_time()

    async def caller(start_after_s: float) -> None:
        if start_after_s:
            await asyncio.sleep(start_after_s)
        while True:
            await log.job(queue)
            if time.perf_counter() - begun >= seconds or log.failed > 100:
                return

    await asyncio.gather(*(caller(run.spread_s * rng.random()) for _ in range(run.concurrency)))
    result = log.result(time.perf_counter() - begun)
    result.cpu_seconds = time.process_time() - cpu_begun
    return result


async def _arrivals(queue: Verbs, run: Run, rng: random.Random) -> Result:
    """Nobody waits for anybody: each job comes when it comes."""
    log = Log()
    begun = time.perf_counter()
    due_s = 0.0
    async with asyncio.TaskGroup() as group:
        while (due_s := due_s + rng.expovariate(run.jobs_per_second)) < run.seconds:
            early_s = begun + due_s - time.perf_counter()
            if early_s > 0:
                await asyncio.sleep(early_s)
            group.create_task(log.job(queue, begun + due_s))
    return log.result(time.perf_counter() - begun)


def main(carry_out: Callable[[Run], Coroutine[Any, Any, Result | dict[str, float]]]) -> None:
    """The whole of a driver: a run comes as the argument, its result goes to standard output."""
    run = Run(**json.loads(sys.argv[1]))
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if run.loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        result = runner.run(carry_out(run))
    print(json.dumps(asdict(result) if isinstance(result, Result) else result), flush=True)
    # Threads that still hold on to a store have nothing left to say.
    os._exit(0)
