"""The answers of a queue, besides jobs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from casque.types import ALL_OPEN, Admission, Ending, GainedFields, Gates, JobState, Totals


class EventKind(StrEnum):
    """Kinds of events. Later releases may add kinds; programs should skip those they do not know."""

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
    LAPSED = "lapsed"
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
    """One event of a queue. `position` and `index` together are unique, and in order.

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
    """The commit. All of its events take effect at once."""
    index: int
    """The index of the event in its commit, from 0."""
    at: datetime
    """The time of the commit by its writer's clock, in UTC. For people: the order is that of the positions."""
    kind: EventKind
    job_id: str | None
    """None for `remembered`, which is about a request, for `admitted`, which is about a batch of jobs, and for events
    about
    a schedule, a gate, a zone or a ring."""
    fields: Mapping[str, Any]
    """All other fields of the event, by name: see the log format in the reference."""
    shard: int = 0
    """The shard of a ring that it happened in: positions are the shard's own."""


class ArchivedAttempt(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A failed attempt, as the archive keeps it."""

    ended_at: datetime
    how: Ending
    """`failed`, `expired` or `crashed`."""
    claimed_at: datetime | None = None
    worker: str | None = None
    token: int = 0
    """Token of its lease. Unique within a queue, so it identifies the attempt."""
    error: str | None = None


class ArchivedJob(GainedFields, frozen=True, omit_defaults=True, gc=False):
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
    """The worker of the last claim."""
    error: str | None = None
    """Error of the last failed attempt."""
    result: bytes | None = None
    """The result that its worker reported."""
    priority: int = 0
    max_attempts: int | None = None
    token: int = 0
    key: str | None = None
    headers: dict[str, str] | None = None
    zone: str | None = None
    run_at: datetime | None = None
    blob_bytes: int | None = None
    """The size of a payload that was in `blobs/`, and was deleted with its job; `payload` is empty then."""
    tries: tuple[ArchivedAttempt, ...] = ()
    """The failed attempts, oldest first, the last 50 at most. The attempt that ended the job is not included:
    `claimed_at`, `worker`, `token`, `finished_at` and `error` describe that one."""
    waiting: bool = False
    """No worker held it when it ended, so no attempt ended it: `claimed_at` and `token` are of an earlier claim, if
    there
    was one."""
    crashes: int = 0
    """Number of worker crashes on it; those claims are not counted in `attempts`."""
    max_crashes: int | None = None
    fifo: bool = False
    """Its zone handed out its jobs strictly in enqueue order."""


class Stats(msgspec.Struct, frozen=True):
    """A queue's counts after its last commit."""

    position: int
    totals: Totals
    gates: Gates = ALL_OPEN
    """What is paused or draining."""


ZoneOrKey: TypeAlias = tuple[bool, str]
"""A zone, or a unique key without a zone: what belongs to one shard."""


class Known(msgspec.Struct, frozen=True, array_like=True):
    """A shard's answer to `AskKnown`."""

    jobs: frozenset[str] = frozenset()
    """The jobs that it has."""
    request: bool = False
    """True if it remembers the request."""
    places: frozenset[ZoneOrKey] = frozenset()
    """The zones and keys that it has."""
    fifos: frozenset[str] = frozenset()
    """The FIFO zones among them."""
    admission: Admission | None = None
    """The result of a source's batch, if that or a later one was admitted."""
