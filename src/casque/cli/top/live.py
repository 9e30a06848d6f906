"""The loops of `casque top`: lines of JSON, one picture, or a screen that is redrawn."""

from __future__ import annotations

import asyncio
import signal
from collections import deque

from rich.console import Console
from rich.live import Live

from casque.cli.output import print_json
from casque.cli.top.keys import on_key
from casque.cli.top.source import Watch, open_source
from casque.cli.top.view import draw
from casque.client.config import QueueConfig
from casque.clock import SystemClock

HISTORY = 300
"""Samples in the chart of the depth."""
QUITS = frozenset("qQ\x1b")


async def print_lines(place: QueueConfig, interval: float, *, once: bool) -> None:
    clock = SystemClock()
    async with Watch(await open_source(place), place.url, retry_s=interval) as watch:
        while True:
            await clock.sleep(interval)
            print_json(await watch.look())
            if once:
                return


async def print_once(place: QueueConfig, interval: float, console: Console) -> None:
    async with Watch(await open_source(place), place.url, retry_s=interval) as watch:
        await SystemClock().sleep(interval)  # rates take two looks
        picture = await watch.look()
    console.print(draw(picture, width=console.width), soft_wrap=False)


async def run_screen(place: QueueConfig, interval: float, console: Console) -> None:
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
