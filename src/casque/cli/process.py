"""What commands that run for long do to their process: signals, the event loop, the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from casque.cli.exits import EXIT_FAILED

GARBAGE_THRESHOLD = 20_000


def on_stop_signal(stop: Callable[[signal.Signals], object]) -> Callable[[signal.Signals], None]:
    """Call `stop` at the first SIGTERM or Ctrl-C, and exit at once at the second. Returns the handler."""
    received: list[signal.Signals] = []

    def handle(number: signal.Signals) -> None:
        if received:
            os._exit(EXIT_FAILED)
        received.append(number)
        stop(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, handle, number)
    return handle


def add_current_directory() -> str:
    """Make modules in the current directory importable, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return here


def collect_rarely() -> None:
    """Tune the garbage collector for many small objects: it never visits again what is loaded by now, and runs after
    thousands of new objects instead of hundreds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
