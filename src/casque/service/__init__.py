"""The requests of a queue, its answers, and the protocol of every service that offers one."""

from casque.service.answers import (
    ArchivedAttempt,
    ArchivedJob,
    EventKind,
    Known,
    QueueEvent,
    Stats,
    ZoneOrKey,
)
from casque.service.hosts import Host, RingHost, Role, Standing
from casque.service.outcomes import FAILURES, Lease, Outcome, OutcomeKind, check_outcome, is_silent_ack
from casque.service.queue import ArchiveFilter, QueueService, ScopedService, ShardService
from casque.service.requests import Request, Scope

__all__ = [
    "FAILURES",
    "ArchiveFilter",
    "ArchivedAttempt",
    "ArchivedJob",
    "EventKind",
    "Host",
    "Known",
    "Lease",
    "Outcome",
    "OutcomeKind",
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
    "ZoneOrKey",
    "check_outcome",
    "is_silent_ack",
]
