"""What code of ours does first in a Python process that Spark has started."""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle_in() -> None:
    """Once in a process: Spark collects garbage there after every task. With Arrow, pandas and Spark itself loaded that
    takes longer than many tasks do, 30 ms, and finds nothing. What is loaded by now stays, and need not be looked at.
    """
    gc.freeze()
