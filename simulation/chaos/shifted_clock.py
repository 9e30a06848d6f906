"""A wall clock that is wrong, for one process of a run.

`CASQUE_CHAOS_CLOCK` is how many seconds it is ahead when the process starts. SIGUSR1 steps it by up to twenty minutes
in either direction. SIGUSR2 sets it to the far end of that range, where every delay of the run has passed.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

from casque.clock import SystemClock, system_random

VARIABLE = "CASQUE_CHAOS_CLOCK"
RANGE_S = 1_200


def shift_clock() -> None:
    """From now on, in this process. Without the variable nothing is shifted."""
    if VARIABLE not in os.environ:
        return
    ahead_ms = int(os.environ[VARIABLE]) * 1000
    true_ms = SystemClock.wall_ms

    def step(_number: int, _frame: FrameType | None) -> None:
        nonlocal ahead_ms
        ahead_ms = system_random().randint(-RANGE_S, RANGE_S) * 1000

    def settle(_number: int, _frame: FrameType | None) -> None:
        nonlocal ahead_ms
        ahead_ms = RANGE_S * 1000

    SystemClock.wall_ms = lambda self: true_ms(self) + ahead_ms  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, step)
    signal.signal(signal.SIGUSR2, settle)
