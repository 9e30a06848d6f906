"""Works off a queue with a program's own functions.

`handlers` is what a worker needs to know about a function; `casque.App` makes it from plain ones. Nothing in here knows
arguments, types or results: a handler takes bytes and gives bytes. `Worker` joins the parts, each a loop of its own:
claims are made ahead of need, `runner` calls handlers, `settler` tells the queue what became of them, `keeper` renews
leases, and `guard` does that from a process of its own while this one is too busy to. With `consumer` claims are made
zone after zone instead, each of them leased.
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
