"""Single keys from a terminal, without Enter. The terminal's mode is restored afterwards."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_key(call: Callable[[str], object]) -> Iterator[None]:
    """Call this with every key. Does nothing if standard input is not a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    loop = asyncio.get_running_loop()

    def read() -> None:
        typed = os.read(terminal, 64)
        if not typed:
            loop.remove_reader(terminal)
        for key in typed.decode(errors="ignore"):
            call(key)

    try:
        tty.setcbreak(terminal)
        loop.add_reader(terminal, read)
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
