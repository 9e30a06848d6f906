"""The app of the worker tests: started by `casque worker`, it says in files of a directory what it does.

A function says `<name>.started`, and some go on when the test has made `<name>.go`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from casque.clock import SystemClock
from casque.worker import Handler, JobContext, Retry

CLOCK = SystemClock()
PLACE = Path(os.environ.get("WORKER_APP_PLACE", "."))


def say(name: str, word: str) -> None:
    with (PLACE / f"{name}.{word}").open("a") as file:
        file.write(f"{os.getpid()}\n")


async def write(payload: bytes, context: JobContext) -> None:
    say(payload.decode(), "done")


async def wait(payload: bytes, context: JobContext) -> None:
    name = payload.decode()
    say(name, "started")
    try:
        while not (PLACE / f"{name}.go").exists():
            await CLOCK.sleep(0.01)
    except asyncio.CancelledError:
        say(name, "cancelled")
        raise
    say(name, "done")


def block(payload: bytes, context: JobContext) -> None:
    """Lets nothing else in on the loop, until it is told to."""
    name = payload.decode()
    say(name, "started")
    while not (PLACE / f"{name}.go").exists():
        threading.Event().wait(0.01)
    say(name, "done")


def hold(payload: bytes, context: JobContext) -> None:
    """Native code that does not let go of the interpreter, until somebody writes to the pipe `<name>.go`."""
    name = payload.decode()
    pipe = os.open(PLACE / f"{name}.go", os.O_RDONLY)
    say(name, "started")
    ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)
    os.close(pipe)
    say(name, "done")


def deaf(payload: bytes, context: JobContext) -> None:
    """Says every few milliseconds that it still runs, whatever it is asked."""
    name = payload.decode()
    while True:
        say(name, "started")
        threading.Event().wait(0.01)


async def stubborn(payload: bytes, context: JobContext) -> None:
    """The same as a coroutine."""
    name = payload.decode()
    while True:
        say(name, "started")
        with suppress(asyncio.CancelledError):
            await CLOCK.sleep(0.01)


class App:
    def __init__(self) -> None:
        self.url = f"file://{PLACE}/queue"
        self.opening: Mapping[str, Any] = {}
        self.handlers = {
            "write": Handler("write", write),
            "wait": Handler("wait", wait, retry=Retry(delays_s=(0,))),
            "block": Handler("block", block, is_async=False),
            "hold": Handler("hold", hold, is_async=False, executor="thread"),
            "deaf": Handler("deaf", deaf, is_async=False, executor="thread"),
            "stubborn": Handler("stubborn", stubborn),
        }
        if (PLACE / "apart").exists():
            self.handlers["apart"] = Handler("apart", deaf, is_async=False, executor="process")


app = App()
