"""osqueue in Go: `{"broker": "host:7", "jobs": [...]}`. Go writes bytes as base64, and an empty list as null."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from casque.compat.files.foreign import ForeignJob, ForeignStatus

FIELDS = frozenset({"broker", "jobs"})
OLDEST_FIRST = False
ENTRYPOINT = "osqueue"
"""Its jobs have no entrypoint. A casque broker gives its Go clients jobs of this one."""

STATUS = {
    "unclaimed": ForeignStatus.WAITING,
    "in_progress": ForeignStatus.RUNNING,
    "completed": ForeignStatus.FINISHED,
}


Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As Go's encoder writes it."""

    id: str
    data: bytes | None
    status: Literal["unclaimed", "in_progress", "completed"]
    attempts: Annotated[int, msgspec.Meta(ge=0)]
    created_at: Moment
    worker_id: str = ""
    heartbeat_at: Moment | None = None
    completed_at: Moment | None = None


def foreign(job: Job) -> ForeignJob:
    return ForeignJob(
        job.id,
        ENTRYPOINT,
        job.data or b"",
        STATUS[job.status],
        created_at=job.created_at,
        attempts=job.attempts,
        unnamed=True,
    )
