"""`casque queue pause|resume|drain`: what a queue lets through."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Console

from casque.cli.auditing import audited
from casque.cli.place import QueueName, find_place
from casque.cli.running import Json, OptionalUrl, StoreOptions, clear_ends, on_queue
from casque.cli.shown import progress
from casque.cli.terminal import Terminal, print_json, say
from casque.client.queue import Queue
from casque.clock import SystemClock
from casque.types import Gate, Gates, JobState

EXAMPLES_PAUSE = """
[bold]Examples[/]

  casque queue pause file:///var/lib/orders

  casque queue pause grpc://broker:7700 --entrypoint send
"""
EXAMPLES_RESUME = """
[bold]Examples[/]

  casque queue resume file:///var/lib/orders

  casque queue resume --entrypoint send --json
"""
EXAMPLES_DRAIN = """
[bold]Examples[/]

  casque queue drain file:///var/lib/orders && casque queue info file:///var/lib/orders

  casque queue drain grpc://broker:7700 --entrypoint send --no-wait
"""
LOOK_S = 0.5
COUNTED_MAX = 10_000
"""Jobs of one entrypoint that are counted; more are 'at least' so many."""
UNFINISHED = (JobState.READY, JobState.DELAYED, JobState.RUNNING)

Entrypoint = Annotated[
    str | None,
    typer.Option("--entrypoint", "-e", metavar="NAME", help="Only this entrypoint, instead of the whole queue."),
]


class GateSet(msgspec.Struct, frozen=True):
    """What became of a gate."""

    entrypoint: str | None
    gate: Gate
    was: Gate
    left: int | None = None
    """Jobs that are not over; only of a drain."""


@audited("queue pause")
def pause(
    url: OptionalUrl = None,
    entrypoint: Entrypoint = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Let nobody claim jobs of a queue, or of one entrypoint, until it is resumed. What is being worked on goes on, and
    jobs may be added.

    Exit code 0: it is paused. 1: the queue is damaged. 2: it cannot be done. 4: nobody knows whether it was done.
    """
    _set(Gate.PAUSED, url, entrypoint, json, queue, option)


@audited("queue resume")
def resume(
    url: OptionalUrl = None,
    entrypoint: Entrypoint = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Open a queue, or one entrypoint, that was paused or drained. An entrypoint that was paused by itself stays so
    when the queue is resumed.

    Exit code 0: it is open. 1: the queue is damaged. 2: it cannot be done. 4: nobody knows whether it was done.
    """
    _set(Gate.OPEN, url, entrypoint, json, queue, option)


@audited("queue drain")
def drain(
    url: OptionalUrl = None,
    entrypoint: Entrypoint = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until no job is left that is not over.")] = True,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Let nobody add jobs to a queue, or to one entrypoint, until it is resumed, and wait until the last one is over.

    Whoever enqueues is refused, and nothing is lost. Delayed jobs and those that are tried again later are waited for
    as well; dead ones are not. Ctrl-C ends the waiting, and the queue goes on being drained.

    Exit code 0: it is empty, or was only to be told. 1: the queue is damaged. 2: it cannot be done. 4: nobody knows
    whether it was done. 130: somebody did not want to wait.
    """
    _set(Gate.DRAINING, url, entrypoint, json, queue, option, wait=wait)


def _set(
    gate: Gate,
    url: str | None,
    entrypoint: str | None,
    json: bool,
    queue: str | None,
    option: list[str] | None,
    *,
    wait: bool = False,
) -> None:
    with clear_ends():
        place = find_place(url, queue, option)
    console = Terminal(stderr=True, highlight=False)

    async def work(q: Queue[bytes]) -> GateSet:
        was = (await q.stats()).gates.of(entrypoint)
        verb = {Gate.PAUSED: q.pause, Gate.DRAINING: q.drain, Gate.OPEN: q.resume}[gate]
        await verb(entrypoint)
        if gate is not Gate.DRAINING:
            return GateSet(entrypoint, gate, was)
        if wait:
            await _until_empty(q, entrypoint, console)
        return GateSet(entrypoint, gate, was, await _left(q, entrypoint))

    done = on_queue(place, work)
    if json:
        print_json(done)
    else:
        say(_told(done))


async def _until_empty(q: Queue[bytes], entrypoint: str | None, console: Console) -> None:
    clock = SystemClock()
    left = most = await _left(q, entrypoint)
    if left and (stuck := _paused((await q.stats()).gates, entrypoint)):
        console.print(f"{stuck} is paused: nothing of it is claimed, and the waiting does not end", style="yellow")
    with progress(most, "draining", wanted=bool(left)) as (bar, task):
        while left:
            await clock.sleep(LOOK_S)
            left = await _left(q, entrypoint)
            most = max(most, left)
            bar.update(task, total=most, completed=most - left, description=f"{left:,} left")


async def _left(q: Queue[bytes], entrypoint: str | None) -> int:
    """Jobs that are not over."""
    if entrypoint is None:
        totals = (await q.stats()).totals
        return totals.ready + totals.delayed + totals.running
    return len(await q.jobs(states=UNFINISHED, entrypoint=entrypoint, limit=COUNTED_MAX))


def _paused(gates: Gates, entrypoint: str | None) -> str | None:
    """What is paused of that which is to be drained, if anything is."""
    if gates.queue is Gate.PAUSED:
        return "the queue"
    names = [name for name, gate in gates.entrypoints.items() if gate is Gate.PAUSED and entrypoint in (None, name)]
    return ", ".join(map(repr, sorted(names))) or None


def _told(done: GateSet) -> str:
    what = "the queue" if done.entrypoint is None else repr(done.entrypoint)
    again = " already" if done.was is done.gate and done.left is None else ""
    match done.gate:
        case Gate.PAUSED:
            opened = "; jobs may be added again" if done.was is Gate.DRAINING else ""
            return f"{what} is paused{again}: nothing is claimed{opened}"
        case Gate.OPEN:
            return f"{what} is open{again}"
        case _ if not done.left:
            return f"{what} is drained: no job is left, and none is added until it is resumed"
        case _:
            least = "at least " if done.entrypoint is not None and done.left == COUNTED_MAX else ""
            return f"{what} is draining: {least}{done.left:,} left, and none is added"
