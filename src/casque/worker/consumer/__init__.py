"""Zone after zone instead of job after job: a scanner, managers and workers, as in QuiCK.

The scanner looks at the top-level queue and selects some of the zones that have work. A manager leases one of them,
takes at most `dequeue_max` of its jobs, hands them to the worker that it belongs to, and releases the zone. Whatever
happens to jobs from then on (handlers, heartbeats, outcomes, stopping) is the worker's, as if it had claimed them
itself. Nothing in here is needed for correctness: a zone's lease, like a job's, is lost with whoever held it.
"""

from __future__ import annotations

from casque.worker.consumer.consumer import Consumer
from casque.worker.consumer.options import ConsumerOptions, Selection

__all__ = ["Consumer", "ConsumerOptions", "Selection"]
