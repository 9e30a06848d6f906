"""`python -m casque.testing.chaos.broker serve URL ...`: the real command, with more upkeep than a broker has in peace.

Snapshots and collection happen all the time, so that kills hit them too.
"""

from __future__ import annotations

import runpy

from casque.journal.log import pace
from casque.testing.chaos.actor import die_with_parent

SNAPSHOT_SEGMENTS = 48

if __name__ == "__main__":
    die_with_parent()
    pace.SNAPSHOT_SEGMENTS = SNAPSHOT_SEGMENTS
    runpy.run_module("casque.cli", run_name="__main__", alter_sys=True)
