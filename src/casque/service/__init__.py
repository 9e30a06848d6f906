"""What can be asked of a queue, what it answers, and the protocol that every way to reach one speaks."""

from casque.service.answers import (
    ArchivedAttempt,
    ArchivedJob,
    EventKind,
    Known,
    Place,
    QueueEvent,
    Stats,
)
from casque.service.hosts import Host, RingHost, Role, Standing
from casque.service.outcomes import Lease, Outcome, check_outcome, is_silent_ack
from casque.service.queue import QueueService, ScopedService, ShardService
from casque.service.requests import Request, Scope

__all__ = [
    "ArchivedAttempt",
    "ArchivedJob",
    "EventKind",
    "Host",
    "Known",
    "Lease",
    "Outcome",
    "Place",
    "QueueEvent",
    "QueueService",
    "Request",
    "RingHost",
    "Role",
    "Scope",
    "ScopedService",
    "ShardService",
    "Standing",
    "Stats",
    "check_outcome",
    "is_silent_ack",
]
