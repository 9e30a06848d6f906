"""What a queue answers, besides jobs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from casque.types import ALL_OPEN, Admission, Ending, Gates, JobState, Totals


class EventKind(StrEnum):
    """What can happen. Later releases may add kinds; programs pass over those they do not know."""

    ADDED = "added"
    ADMITTED = "admitted"
    CLAIMED = "claimed"
    BEATEN = "beaten"
    ADVANCED = "advanced"
    ACKED = "acked"
    NACKED = "nacked"
    RETURNED = "returned"
    SNOOZED = "snoozed"
    DECLINED = "declined"
    EXPIRED = "expired"
    CRASHED = "crashed"
    DIED = "died"
    QUARANTINED = "quarantined"
    CANCELLED = "cancelled"
    WITHDRAWN = "withdrawn"
    REVIVED = "revived"
    RESCHEDULED = "rescheduled"
    PURGED = "purged"
    GATED = "gated"
    ZONED = "zoned"
    ZONE_LEASED = "zone_leased"
    ZONE_BEATEN = "zone_beaten"
    ZONE_RELEASED = "zone_released"
    ZONE_EXPIRED = "zone_expired"
    WATCHED = "watched"
    RINGED = "ringed"
    REMEMBERED = "remembered"
    SCHEDULED = "scheduled"
    UNSCHEDULED = "unscheduled"
    TICKED = "ticked"


class QueueEvent(msgspec.Struct, frozen=True):
    """One thing that happened to a queue. `position` and `index` together are unique, and in order.

    >>> import asyncio
    >>> from casque import Queue
    >>> async def main():
    ...     async with Queue.open("memory://feed-example") as q:
    ...         await q.enqueue("send", b"hello")
    ...         for job in await q.dequeue("send"):
    ...             await job.ack()
    ...         async for event in q.events(from_position=0, follow=False):
    ...             print(event.position, event.kind.value)
    >>> asyncio.run(main())
    1 added
    2 claimed
    3 acked
    """

    position: int
    """The commit. All of its events become true at once."""
    index: int
    """Its place among the events of the commit, from 0."""
    at: datetime
    """The time of the commit by its writer's clock, in UTC. It is for people: the order is that of the positions."""
    kind: EventKind
    job_id: str | None
    """None for `remembered`, which is about a request, for `admitted`, which is about a batch of jobs, and for what is
    about a schedule, a gate, a zone or a ring."""
    fields: Mapping[str, Any]
    """Everything else that the event says, by name: see the log format in the reference."""
    shard: int = 0
    """Of a ring, which of its shards it happened in: positions are the shard's own."""


class ArchivedAttempt(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An attempt that came to nothing, as the archive keeps it."""

    ended_at: datetime
    how: Ending
    """`failed`, `expired` or `crashed`."""
    claimed_at: datetime | None = None
    worker: str | None = None
    token: int = 0
    """Of its lease. Unique within a queue, and so names the attempt."""
    error: str | None = None


class ArchivedJob(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A finished job, as the archive keeps it: one line of JSON. `id` and `position` together are unique, because a
    dead job that is given fresh attempts may finish again."""

    id: str
    entrypoint: str
    payload: bytes
    state: JobState
    """`done`, `dead` or `cancelled`."""
    attempts: int
    created_at: datetime
    due_at: datetime
    finished_at: datetime
    position: int
    """The commit that finished it."""
    sequence: int
    claimed_at: datetime | None = None
    """When it was claimed last."""
    worker: str | None = None
    """Who had claimed it last."""
    error: str | None = None
    """Of the last attempt that failed."""
    result: bytes | None = None
    """What its worker had to say when it was done."""
    priority: int = 0
    max_attempts: int | None = None
    token: int = 0
    key: str | None = None
    headers: dict[str, str] | None = None
    zone: str | None = None
    run_at: datetime | None = None
    blob_bytes: int | None = None
    """The size of a payload that lay in `blobs/`, and was deleted with its job; `payload` is empty then."""
    tries: tuple[ArchivedAttempt, ...] = ()
    """The attempts that came to nothing, oldest first, the last 50 at most. The attempt that ended the job is none of
    them: `claimed_at`, `worker`, `token`, `finished_at` and `error` tell that one."""
    waiting: bool = False
    """Nobody was at work on it when it ended, so that no attempt ended it: `claimed_at` and `token` are of an earlier
    claim, if there was one."""
    crashes: int = 0
    """How often its worker died of it; those claims are not among the `attempts`."""
    max_crashes: int | None = None


class Stats(msgspec.Struct, frozen=True):
    """How a queue stands after its last commit."""

    position: int
    totals: Totals
    gates: Gates = ALL_OPEN
    """What is paused or being drained."""


Place: TypeAlias = tuple[bool, str]
"""A zone, or a unique key outside all zones: what a shard may be the home of."""


class Known(msgspec.Struct, frozen=True, array_like=True):
    """What a shard of a ring knows of those who were asked for."""

    jobs: frozenset[str] = frozenset()
    """The jobs that are there."""
    request: bool = False
    """Whether it remembers the request."""
    places: frozenset[Place] = frozenset()
    """The zones and keys that are there."""
    fifos: frozenset[str] = frozenset()
    """Those of the zones that are FIFO."""
    admission: Admission | None = None
    """What the batch of a source came to, if it was admitted, or a later one."""
