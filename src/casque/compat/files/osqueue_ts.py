"""osqueue in TypeScript: `{"broker": "host:80", "brokerHeartbeat": 1706000000000, "jobs": [...]}`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from casque.compat.files.foreign import ForeignJob, ForeignStatus
from casque.types import from_ms

FIELDS = frozenset({"broker", "brokerHeartbeat", "jobs"})
MAY_HAVE = frozenset({"completedTotal"})
OLDEST_FIRST = False
ENTRYPOINT = "osqueue"
"""For jobs without a type."""
ATTEMPTS = 3
"""The limit for a job that sets none, as in osqueue."""

LAST_MS = 253_402_300_799_999
"""The end of the year 9999, after which Python has no time."""

STATUS = {"unclaimed": ForeignStatus.WAITING, "in_progress": ForeignStatus.RUNNING}

Moment = Annotated[int, msgspec.Meta(ge=0, le=LAST_MS)] | Annotated[float, msgspec.Meta(ge=0, le=LAST_MS)]


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As JSON.stringify writes it: what is undefined is not there."""

    id: str
    status: Literal["unclaimed", "in_progress"]
    createdAt: Moment  # noqa: N815 (its name in the file)
    attempts: Annotated[int, msgspec.Meta(ge=0)]
    payload: msgspec.Raw = msgspec.Raw(b"null")
    type: str | None = None
    maxAttempts: Annotated[int, msgspec.Meta(ge=0)] | None = None  # noqa: N815
    heartbeat: Moment | None = None
    workerId: str | None = None  # noqa: N815


def foreign(job: Job) -> ForeignJob:
    limit = ATTEMPTS if job.maxAttempts is None else job.maxAttempts
    return ForeignJob(
        job.id,
        job.type or ENTRYPOINT,
        # Without the spaces of the file, and with every number as it is written there.
        msgspec.json.format(bytes(job.payload), indent=-1),
        STATUS[job.status],
        created_at=from_ms(int(job.createdAt)),
        attempts=job.attempts,
        # osqueue drops a job without attempts left once its worker is silent. Here its last worker may try once more.
        max_attempts=max(1, limit - job.attempts),
        unnamed=not job.type,
    )
