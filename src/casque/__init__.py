"""casque: a durable job queue whose only infrastructure is a bucket.

`Queue` is where to start, or `App` for jobs that are functions. `BrokerQueue` and `DirectQueue` are the small API on a
single object, `SyncQueue` is for code without asyncio, and everything that can go wrong is a `CasqueError`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from casque.client.connecting import ClientTlsFiles
from casque.client.heartbeat import HeartbeatManager
from casque.client.job import Job, JobStatus, QueueState
from casque.client.new_jobs import NewJob
from casque.client.queue import Queue
from casque.client.small import BrokerQueue, DirectQueue
from casque.client.sync import SyncJob, SyncQueue
from casque.errors import (
    BrokerUnreachableError,
    CASConflictError,
    CasqueError,
    CheckpointError,
    CorruptQueueError,
    DuplicateKeyError,
    HistoryGoneError,
    InvalidInputError,
    InvalidPayloadError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    LeadershipLostError,
    LeaseLostError,
    LimitReachedError,
    NoHistoryError,
    NoLeaderError,
    NoResultError,
    NotAllowedError,
    NotAuthenticatedError,
    NotInstalledError,
    NotUnderstoodError,
    QueueClosedError,
    QueueCopiedError,
    QueueDrainingError,
    QueueLedError,
    QueueReplacedError,
    ReadOnlyError,
    RingError,
    ScheduleNotFoundError,
    StorageError,
    StoreAccessError,
    UnknownOutcomeError,
    UnsafeStoreError,
    WorkFailedError,
    ZoneLeaseLostError,
    ZoneMovedError,
)
from casque.service import ArchivedAttempt, ArchivedJob, EventKind, Outcome, OutcomeKind, QueueEvent
from casque.settings import QueueSettings
from casque.storage.cloud_single import GCSStorage, S3Storage
from casque.storage.single import InMemoryStorage, LocalFileSystemStorage, ObjectStoragePort
from casque.types import (
    Attempt,
    Ending,
    Gate,
    JobState,
    Missed,
    PeekedZone,
    Progress,
    Schedule,
    ZoneLease,
    ZoneRules,
    ZoneStanding,
)

__version__ = "0.1.0"

if TYPE_CHECKING:
    from casque.client.copying import backup_queue, clone_queue, restore_queue
    from casque.functions.app import App
    from casque.functions.handle import Handle, SyncHandle
    from casque.journal.copying import Copied
    from casque.worker.handlers import Cancel, JobContext, Snooze
    from casque.worker.hooks import JobEvent

__all__ = [
    "App",
    "ArchivedAttempt",
    "ArchivedJob",
    "Attempt",
    "BrokerQueue",
    "BrokerUnreachableError",
    "CASConflictError",
    "Cancel",
    "CasqueError",
    "CheckpointError",
    "ClientTlsFiles",
    "Copied",
    "CorruptQueueError",
    "DirectQueue",
    "DuplicateKeyError",
    "Ending",
    "EventKind",
    "GCSStorage",
    "Gate",
    "Handle",
    "HeartbeatManager",
    "HistoryGoneError",
    "InMemoryStorage",
    "InvalidInputError",
    "InvalidPayloadError",
    "Job",
    "JobContext",
    "JobEvent",
    "JobFailedError",
    "JobNotFoundError",
    "JobState",
    "JobStateError",
    "JobStatus",
    "LeadershipLostError",
    "LeaseLostError",
    "LimitReachedError",
    "LocalFileSystemStorage",
    "Missed",
    "NewJob",
    "NoHistoryError",
    "NoLeaderError",
    "NoResultError",
    "NotAllowedError",
    "NotAuthenticatedError",
    "NotInstalledError",
    "NotUnderstoodError",
    "ObjectStoragePort",
    "Outcome",
    "OutcomeKind",
    "PeekedZone",
    "Progress",
    "Queue",
    "QueueClosedError",
    "QueueCopiedError",
    "QueueDrainingError",
    "QueueEvent",
    "QueueLedError",
    "QueueReplacedError",
    "QueueSettings",
    "QueueState",
    "ReadOnlyError",
    "RingError",
    "S3Storage",
    "Schedule",
    "ScheduleNotFoundError",
    "Snooze",
    "StorageError",
    "StoreAccessError",
    "SyncHandle",
    "SyncJob",
    "SyncQueue",
    "UnknownOutcomeError",
    "UnsafeStoreError",
    "WorkFailedError",
    "ZoneLease",
    "ZoneLeaseLostError",
    "ZoneMovedError",
    "ZoneRules",
    "ZoneStanding",
    "backup_queue",
    "clone_queue",
    "restore_queue",
]

_HOMES = {
    "App": "casque.functions.app",
    "Cancel": "casque.worker.handlers",
    "Copied": "casque.journal.copying",
    "Handle": "casque.functions.handle",
    "JobContext": "casque.worker.handlers",
    "JobEvent": "casque.worker.hooks",
    "Snooze": "casque.worker.handlers",
    "SyncHandle": "casque.functions.handle",
    "backup_queue": "casque.client.copying",
    "clone_queue": "casque.client.copying",
    "restore_queue": "casque.client.copying",
}
"""Imported on first use: programs that only enqueue bytes do without."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found
