"""Set-up of a Python process that Spark has started."""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle_in() -> None:
    """Run once per process. Spark collects garbage after every task. With Arrow, pandas and Spark loaded that takes 30
    ms, longer than many tasks, and finds nothing. So freeze all objects loaded by now: the collector skips them.
    """
    gc.freeze()
