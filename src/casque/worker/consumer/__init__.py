"""Claims zone by zone instead of job by job: a scanner, managers and workers, as in QuiCK.

The scanner reads the top-level queue and selects some of the zones that have work. A manager leases one of them, takes
at most `dequeue_max` of its jobs, hands them to its worker, and releases the zone. From then on the worker handles the
jobs (handlers, heartbeats, outcomes, stopping) as if it had claimed them itself. Correctness does not depend on this
package: a zone's lease, like a job's, expires when its holder dies.
"""

from __future__ import annotations

from casque.worker.consumer.consumer import Consumer
from casque.worker.consumer.options import ConsumerOptions, Selection

__all__ = ["Consumer", "ConsumerOptions", "Selection"]
