"""Single keys from a terminal, without waiting for Enter; the terminal is afterwards as it was before."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def listening(heard: Callable[[str], object]) -> Iterator[None]:
    """Call `heard` with every key. Where nobody can type, nothing is heard, and that is all."""
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
            heard(key)

    try:
        tty.setcbreak(terminal)
        loop.add_reader(terminal, read)
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
