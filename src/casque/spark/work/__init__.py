"""Spark's executors as workers of a queue.

The driver is the only one that talks to the queue: it claims jobs, keeps their leases alive, sends them to executors
and settles what comes back. Executors see jobs and a handler, never a store, a lease or a credential. The queue itself
is the state, so there is no checkpoint: a driver that is killed leaves claims, and they come back by their leases.

`options.py` what can be set; `foreman.py` the loop; `courier.py` one trip to the executors and back; `calling.py` what
runs there, `functions.py` what does if it is an app; `parcels.py` what travels; `keeper.py` the leases; `results.py` a
table of what handlers return; `pace.py` how many at a time; `summary.py` the figures.
"""

from __future__ import annotations

from casque.spark.work.options import Kind, Until
from casque.spark.work.process import process
from casque.spark.work.results import results
from casque.spark.work.summary import Summary

__all__ = ["Kind", "Summary", "Until", "process", "results"]
