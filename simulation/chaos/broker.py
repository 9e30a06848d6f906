"""`python -m simulation.chaos.broker serve URL ...`: the real command, with more upkeep than a broker has in peace.

Snapshots and collection happen all the time, so that kills hit them too.
"""

from __future__ import annotations

import runpy

from simulation.chaos.actor import die_with_parent, keep_busy
from simulation.chaos.shifted_clock import shift_clock

if __name__ == "__main__":
    die_with_parent()
    keep_busy()
    shift_clock()
    runpy.run_module("casque.cli", run_name="__main__", alter_sys=True)
