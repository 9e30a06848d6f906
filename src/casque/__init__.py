"""casque: a durable job queue whose only infrastructure is a bucket.

`Queue` is where to start. `BrokerQueue` and `DirectQueue` are the small API on a single object, `SyncQueue` is for
code without asyncio, and everything that can go wrong is a `CasqueError`.
"""

from __future__ import annotations

from casque.client.heartbeat import HeartbeatManager
from casque.client.job import Job, JobStatus, QueueState
from casque.client.queue import NewJob, Queue
from casque.client.reaching import ClientTlsFiles
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
    JobNotFoundError,
    JobStateError,
    LeadershipLostError,
    LeaseLostError,
    NoHistoryError,
    NoLeaderError,
    NotAllowedError,
    NotAuthenticatedError,
    NotInstalledError,
    QueueClosedError,
    QueueLedError,
    QueueReplacedError,
    ReadOnlyError,
    StorageError,
    StoreAccessError,
    UnknownOutcomeError,
    UnsafeStoreError,
    WorkFailedError,
)
from casque.service import ArchivedAttempt, ArchivedJob, EventKind, Outcome, QueueEvent
from casque.settings import QueueSettings
from casque.storage.cloud_single import GCSStorage, S3Storage
from casque.storage.single import InMemoryStorage, LocalFileSystemStorage, ObjectStoragePort
from casque.types import Attempt, Ending, JobState

__version__ = "0.1.0"

__all__ = [
    "ArchivedAttempt",
    "ArchivedJob",
    "Attempt",
    "BrokerQueue",
    "BrokerUnreachableError",
    "CASConflictError",
    "CasqueError",
    "CheckpointError",
    "ClientTlsFiles",
    "CorruptQueueError",
    "DirectQueue",
    "DuplicateKeyError",
    "Ending",
    "EventKind",
    "GCSStorage",
    "HeartbeatManager",
    "HistoryGoneError",
    "InMemoryStorage",
    "InvalidInputError",
    "InvalidPayloadError",
    "Job",
    "JobNotFoundError",
    "JobState",
    "JobStateError",
    "JobStatus",
    "LeadershipLostError",
    "LeaseLostError",
    "LocalFileSystemStorage",
    "NewJob",
    "NoHistoryError",
    "NoLeaderError",
    "NotAllowedError",
    "NotAuthenticatedError",
    "NotInstalledError",
    "ObjectStoragePort",
    "Outcome",
    "Queue",
    "QueueClosedError",
    "QueueEvent",
    "QueueLedError",
    "QueueReplacedError",
    "QueueSettings",
    "QueueState",
    "ReadOnlyError",
    "S3Storage",
    "StorageError",
    "StoreAccessError",
    "SyncJob",
    "SyncQueue",
    "UnknownOutcomeError",
    "UnsafeStoreError",
    "WorkFailedError",
]
