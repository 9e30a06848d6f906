"""Makes the driver's threads take shorter turns while it works.

A trip to Spark makes about a hundred short calls to the JVM, one after the other. After each call its thread needs the
interpreter again, and the thread that claims and settles would hold it for 5 ms at a time: half a second per trip.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TURN_S = 0.0002

_guard = threading.Lock()
_under_way = 0
_before_s = 0.0


@contextmanager
def short_turns() -> Iterator[None]:
    """The interpreter has one setting for all threads: the last user restores the value that the first one found."""
    global _under_way, _before_s  # noqa: PLW0603
    with _guard:
        if not _under_way:
            _before_s = sys.getswitchinterval()
            _hand_over_after(min(_before_s, TURN_S))
        _under_way += 1
    try:
        yield
    finally:
        with _guard:
            _under_way -= 1
            if not _under_way:
                _hand_over_after(_before_s)


def _hand_over_after(seconds: float) -> None:
    if seconds != sys.getswitchinterval():  # which rounds the value it is given
        sys.setswitchinterval(seconds)
