"""A record of calls, and a checker that knows nothing of the code that answered them.

Processes write one line when a call starts and one when it ends (`recorder.py`). Afterwards the record alone is held
against what a queue promises: every job's calls fit one order (`linear.py`), and no two jobs, leases or keys overlap
where only one may hold (`rules.py`). Nothing here imports the queue, so a mistake cannot hide by being made twice.

Times are those of the machine's monotonic clock, which all its processes share; wall clocks play no part.
"""

from __future__ import annotations

from simulation.history.call import Call, Outcome
from simulation.history.check import Verdict, check
from simulation.history.recorder import Recorder, read_records

__all__ = ["Call", "Outcome", "Recorder", "Verdict", "check", "read_records"]
