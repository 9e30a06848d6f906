"""`casque top`: watch a queue live."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from casque.cli.command import command
from casque.cli.options import Json
from casque.cli.output import Out, print_json
from casque.cli.target import QueueTarget
from casque.cli.top.keys import on_key
from casque.cli.top.source import Watch, open_source
from casque.cli.top.view import draw
from casque.client.place import Place
from casque.clock import SystemClock

HISTORY = 300
"""Samples in the chart of the depth."""
QUITS = frozenset("qQ\x1b")


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
        float, typer.Option("--interval", "-i", metavar="SECONDS", min=0.05, max=3600, help="How often to look.")
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
    console = Out()
    place = target.resolve()
    if json:
        asyncio.run(_lines(place, interval, once=once))
    elif once or not console.is_terminal:
        asyncio.run(_once(place, interval, console))
    else:
        asyncio.run(_live(place, interval, console))


async def _lines(place: Place, interval: float, *, once: bool) -> None:
    clock = SystemClock()
    async with Watch(await open_source(place), place.url, retry_s=interval) as watch:
        while True:
            await clock.sleep(interval)
            print_json(await watch.look())
            if once:
                return


async def _once(place: Place, interval: float, console: Console) -> None:
    async with Watch(await open_source(place), place.url, retry_s=interval) as watch:
        await SystemClock().sleep(interval)  # rates take two looks
        picture = await watch.look()
    console.print(draw(picture, width=console.width), soft_wrap=False)


async def _live(place: Place, interval: float, console: Console) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    depths: deque[int] = deque(maxlen=HISTORY)
    with console.status(f"reading {place.url}"):
        watch = await Watch(await open_source(place), place.url, retry_s=interval).__aenter__()
    try:
        with (
            on_key(lambda key: ended.set() if key in QUITS else None),
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            while not ended.is_set():
                picture = await watch.look()
                depths.append(picture.totals.ready)
                live.update(draw(picture, list(depths), width=console.width, height=console.height - 1), refresh=True)
                await _wait(ended, interval)
    finally:
        await watch.__aexit__(None, None, None)


async def _wait(ended: asyncio.Event, seconds: float) -> None:
    """Wait until it is ended, at most this long."""
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
    except TimeoutError:
        pass
