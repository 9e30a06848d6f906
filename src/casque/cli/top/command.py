"""`casque top`: watch a queue live."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from casque.cli.command import command
from casque.cli.options import Json
from casque.cli.output import Out
from casque.cli.reaching import Brokers, watch
from casque.cli.target import QueueTarget


@command(
    "top",
    examples=[
        "casque top file:///var/lib/orders",
        "casque top grpc://broker:7700 --interval 0.5",
        "casque top s3://bucket/orders --once --json | jq .rates",
    ],
    reads_only=True,
    interrupt_is_success=True,
)
def top(
    target: QueueTarget,
    interval: Annotated[
        float,
        typer.Option("--interval", "-i", metavar="SECONDS", min=0.05, max=3600, help="Seconds between two updates."),
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once, after one interval, and end.")] = False,
    json: Json = False,
) -> None:
    """Watch a queue live: how many jobs of which entrypoint wait, run or are dead, how fast they come and go, which run
    and for how long, who works, who leads, and the last commits. q, Esc or Ctrl-C ends it.

    A bucket is read beside running processes, and never written; brokers are asked. A queue in the document layout
    has no events: it is read again each time, and there are neither commits nor rates by entrypoint. Without a
    terminal it is shown once; with --json there is a line for every look, or one with --once.

    Exit code 0: ended. 1: the queue is damaged. 2: there is none, or it cannot be read.
    """
    from casque.cli.top import live

    console = Out()
    place = target.resolve()
    brokers = Brokers.of(place.url, place.tls)
    if json:
        asyncio.run(watch(live.print_lines(place, interval, once=once), brokers))
    elif once or not console.is_terminal:
        asyncio.run(watch(live.print_once(place, interval, console), brokers))
    else:
        asyncio.run(watch(live.run_screen(place, interval, console), brokers))
