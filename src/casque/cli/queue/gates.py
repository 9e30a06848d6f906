"""`casque queue pause|resume|drain`: what a queue lets through."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from casque.cli.command import command
from casque.cli.jobs.select import UNFINISHED
from casque.cli.options import Json
from casque.cli.output import answer, progress, warn
from casque.cli.target import QueueTarget
from casque.client.queue import Queue
from casque.clock import SystemClock
from casque.types import Gate, Gates

POLL_S = 0.5
COUNTED_MAX = 10_000
"""Jobs of one entrypoint that are counted; more are "at least" this many."""

GateEntrypoint = Annotated[
    str | None,
    typer.Option("--entrypoint", "-e", metavar="NAME", help="Only this entrypoint, instead of the whole queue."),
]


class GateChange(msgspec.Struct, frozen=True):
    """A gate before and after."""

    entrypoint: str | None
    gate: Gate
    was: Gate
    left: int | None = None
    """Unfinished jobs; only of a drain."""


@command(
    "queue pause",
    examples=[
        "casque queue pause file:///var/lib/orders",
        "casque queue pause grpc://broker:7700 --entrypoint send",
    ],
    audited=True,
)
def pause(target: QueueTarget, entrypoint: GateEntrypoint = None, json: Json = False) -> None:
    """Stop all claims of a queue, or of one entrypoint, until it is resumed. Running jobs go on, and jobs may be added.

    Exit code 0: it is paused. 1: the queue is damaged. 2: it cannot be done. 4: the outcome is unknown.
    """
    _set_gate(target, Gate.PAUSED, entrypoint, json=json)


@command(
    "queue resume",
    examples=["casque queue resume file:///var/lib/orders", "casque queue resume --entrypoint send --json"],
    audited=True,
)
def resume(target: QueueTarget, entrypoint: GateEntrypoint = None, json: Json = False) -> None:
    """Open a queue, or one entrypoint, that was paused or drained. An entrypoint that was paused by itself stays so
    when the queue is resumed.

    Exit code 0: it is open. 1: the queue is damaged. 2: it cannot be done. 4: the outcome is unknown.
    """
    _set_gate(target, Gate.OPEN, entrypoint, json=json)


@command(
    "queue drain",
    examples=[
        "casque queue drain file:///var/lib/orders && casque queue info file:///var/lib/orders",
        "casque queue drain grpc://broker:7700 --entrypoint send --no-wait",
    ],
    audited=True,
)
def drain(
    target: QueueTarget,
    entrypoint: GateEntrypoint = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until no unfinished job is left.")] = True,
    json: Json = False,
) -> None:
    """Refuse new jobs of a queue, or of one entrypoint, until it is resumed, and wait until the last one has finished.

    Enqueues are refused with an error, and nothing is lost. Delayed jobs and those that are tried again later are
    waited for as well; dead ones are not. Ctrl-C ends the waiting, and the queue goes on being drained.

    Exit code 0: it is empty, or --no-wait was given. 1: the queue is damaged. 2: it cannot be done. 4: the outcome is
    unknown. 130: the waiting was interrupted.
    """
    _set_gate(target, Gate.DRAINING, entrypoint, json=json, wait=wait)


def _set_gate(target: QueueTarget, gate: Gate, entrypoint: str | None, *, json: bool, wait: bool = False) -> None:
    async def work(q: Queue[bytes]) -> GateChange:
        was = (await q.stats()).gates.of(entrypoint)
        verb = {Gate.PAUSED: q.pause, Gate.DRAINING: q.drain, Gate.OPEN: q.resume}[gate]
        await verb(entrypoint)
        if gate is not Gate.DRAINING:
            return GateChange(entrypoint, gate, was)
        if wait:
            await _wait_until_empty(q, entrypoint)
        return GateChange(entrypoint, gate, was, await _count_unfinished(q, entrypoint))

    done = target.run(work)
    answer(done, _describe(done), json=json)


async def _wait_until_empty(q: Queue[bytes], entrypoint: str | None) -> None:
    clock = SystemClock()
    left = most = await _count_unfinished(q, entrypoint)
    if left and (stuck := _paused((await q.stats()).gates, entrypoint)):
        warn(f"{stuck} is paused: nothing of it is claimed, and the waiting does not end")
    with progress(most, "draining", wanted=bool(left)) as (bar, task):
        while left:
            await clock.sleep(POLL_S)
            left = await _count_unfinished(q, entrypoint)
            most = max(most, left)
            bar.update(task, total=most, completed=most - left, description=f"{left:,} left")


async def _count_unfinished(q: Queue[bytes], entrypoint: str | None) -> int:
    if entrypoint is None:
        totals = (await q.stats()).totals
        return totals.ready + totals.delayed + totals.running
    return len(await q.jobs(states=UNFINISHED, entrypoint=entrypoint, limit=COUNTED_MAX))


def _paused(gates: Gates, entrypoint: str | None) -> str | None:
    """What is to be drained and is paused, if anything."""
    if gates.queue is Gate.PAUSED:
        return "the queue"
    names = [name for name, gate in gates.entrypoints.items() if gate is Gate.PAUSED and entrypoint in (None, name)]
    return ", ".join(map(repr, sorted(names))) or None


def _describe(done: GateChange) -> str:
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


def describe_gates(gates: Gates) -> str:
    """What is not open, in words."""
    whole = [] if gates.queue is Gate.OPEN else [f"the queue is {gates.queue.value}"]
    return "; ".join(whole + [f"{name} is {gate.value}" for name, gate in sorted(gates.entrypoints.items())])
