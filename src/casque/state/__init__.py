"""The rules of the queue, and nothing else.

Commands go in together with the time; events and answers come out. Nothing here reads a clock, draws a random
number, waits, or touches bytes: whoever calls decides all of that, so the same commands give the same state
everywhere. A refused command changes nothing. A batch that lost its race is undone with `rollback`.

Events are what gets written and replayed. Applying one makes no choices, so an old history replays under new rules.
"""

from __future__ import annotations

from casque.state.commands import (
    Ack,
    Admit,
    Cancel,
    Command,
    Dequeue,
    Enqueue,
    Expire,
    GiveBack,
    Heartbeat,
    Nack,
    Observed,
    Purge,
    Retry,
    Settle,
)
from casque.state.events import (
    Acked,
    Added,
    Admitted,
    Beaten,
    Cancelled,
    Claimed,
    Crashed,
    Died,
    Event,
    Expired,
    Nacked,
    Purged,
    Quarantined,
    Remembered,
    Returned,
    Revived,
    Snoozed,
    Withdrawn,
)
from casque.state.machine import Counters, Limits, State

__all__ = [
    "Ack",
    "Acked",
    "Added",
    "Admit",
    "Admitted",
    "Beaten",
    "Cancel",
    "Cancelled",
    "Claimed",
    "Command",
    "Counters",
    "Crashed",
    "Dequeue",
    "Died",
    "Enqueue",
    "Event",
    "Expire",
    "Expired",
    "GiveBack",
    "Heartbeat",
    "Limits",
    "Nack",
    "Nacked",
    "Observed",
    "Purge",
    "Purged",
    "Quarantined",
    "Remembered",
    "Retry",
    "Returned",
    "Revived",
    "Settle",
    "Snoozed",
    "State",
    "Withdrawn",
]
