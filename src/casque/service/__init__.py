"""The requests of a queue, its answers, and the protocol of every service that offers one."""

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
