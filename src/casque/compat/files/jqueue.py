"""jqueue 1.0: `{"version": 3, "jobs": [...]}`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from casque.compat.files.foreign import ForeignJob, ForeignStatus

FIELDS = frozenset({"version", "jobs"})
OLDEST_FIRST = True
"""Whether jobs are handed out by their age and not by their place in the file."""

Moment = Annotated[datetime, msgspec.Meta(tz=True)]

STATUS = {
    "queued": ForeignStatus.WAITING,
    "in_progress": ForeignStatus.RUNNING,
    "dead": ForeignStatus.DEAD,
}


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As jqueue writes it; msgspec reads base64 as bytes."""

    id: str
    entrypoint: str
    payload: bytes
    status: Literal["queued", "in_progress", "dead"]
    priority: int
    created_at: Moment
    heartbeat_at: Moment | None = None


def foreign(job: Job) -> ForeignJob:
    return ForeignJob(
        job.id, job.entrypoint, job.payload, STATUS[job.status], created_at=job.created_at, priority=job.priority
    )
