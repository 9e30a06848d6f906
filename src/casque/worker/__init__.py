"""Runs the jobs of a queue with a program's own functions.

`handlers` defines what a worker needs to know about a function; `casque.App` makes handlers from plain functions.
Nothing in here knows arguments, types or results: a handler takes bytes and returns bytes. `Worker` joins the parts,
each with its own loop: it claims jobs ahead of need, `runner` calls handlers, `settler` reports outcomes to the queue,
`keeper` renews leases, and `guard` renews them from a separate process while this one is too busy. `consumer` instead
claims zone by zone and leases each zone.
"""

from __future__ import annotations

from casque.worker.consumer import ConsumerOptions, Selection
from casque.worker.handlers import Cancel, Handler, Handlers, JobContext, Retry, Snooze
from casque.worker.hooks import JobEvent
from casque.worker.summary import Summary
from casque.worker.worker import Worker

__all__ = [
    "Cancel",
    "ConsumerOptions",
    "Handler",
    "Handlers",
    "JobContext",
    "JobEvent",
    "Retry",
    "Selection",
    "Snooze",
    "Summary",
    "Worker",
]
