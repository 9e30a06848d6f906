"""Spark's executors as workers of a queue.

Only the driver talks to the queue: it claims jobs, renews their leases, sends them to executors and settles their
outcomes. Executors see jobs and a handler, never a store, a lease or a credential. The queue itself is the state, so
there is no checkpoint: the claims of a killed driver come back when their leases expire.

`options.py`: settings; `foreman.py`: the loop; `batch.py`: one batch of it; `courier.py`: one trip to the executors and
back; `calling.py`: the code that runs there, `functions.py` for an app, `shift.py` until the deadline; `reports.py`:
outcomes before the end of the trip; `parcels.py`: the data format; `keeper.py`: the leases; `results.py`: a table of
results; `pace.py`: the batch size; `summary.py`: the figures.
"""

from __future__ import annotations

from casque.spark.work.options import Kind, Until
from casque.spark.work.process import process
from casque.spark.work.results import results
from casque.spark.work.summary import Summary

__all__ = ["Kind", "Summary", "Until", "process", "results"]
