"""The one protocol that every way to reach a queue speaks: embedded today, over a wire later.

Values that cross it are frozen. Every refusal is one of `casque.errors`. A call that carries a `request_id` may be
repeated with the same id: it gets the same answer and acts once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from casque import checks
from casque.errors import CasqueError, InvalidInputError
from casque.types import (
    ALL_OPEN,
    Admission,
    Backoff,
    Ending,
    Gate,
    Gates,
    JobRecord,
    JobSpec,
    JobState,
    PeekedZone,
    Progress,
    Reach,
    Schedule,
    ScheduleSpec,
    StagedPart,
    Totals,
    ZoneLease,
    ZoneRules,
    ZoneStanding,
)


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right to work on a job, as its holder knows it. Without a token: whoever holds it. With a heartbeat, how far
    the work has come may be told; None for no more than was told before."""

    job_id: str
    token: int | None = None
    progress: Progress | None = None


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What became of a claimed job: without an error it is done, with one it failed.

    Of a job that failed, `delay_ms` says how long it waits and wins over `backoff`; with neither it is due again at
    once. With `final` it is dead, however many attempts it has left: trying again will not help. `result` is for the
    archive, and only of a job that is done.

    `crashed`: the process that worked on it died. A job with `max_crashes` counts that apart from its attempts; of any
    other it is a failure like others. `snoozed`: its time had not come; it is due again after `delay_ms`, and this
    was no attempt. `cancelled`: it need not be done any more; `error` may say why. `declined`: its worker does not
    understand it, because another version of the program enqueued it, and `error` says what; it waits for a worker that
    does, this was no attempt, and after too many of these it is dead.
    """

    job_id: str
    token: int
    error: str | None = None
    result: bytes | None = None
    delay_ms: int | None = None
    backoff: Backoff | None = None
    final: bool = False
    crashed: bool = False
    snoozed: bool = False
    cancelled: bool = False
    declined: bool = False

    @property
    def plain(self) -> bool:
        """Whether it is nothing but done, or failed."""
        return not (self.crashed or self.snoozed or self.cancelled or self.declined)


def is_silent_ack(outcome: Outcome) -> bool:
    """Done, and nothing else is said: what most outcomes are, so that one look is enough for them."""
    return (
        outcome.error is None
        and outcome.result is None
        and outcome.delay_ms is None
        and outcome.backoff is None
        and outcome.final is False
        and outcome.crashed is False
        and outcome.snoozed is False
        and outcome.cancelled is False
        and outcome.declined is False
    )


def check_outcome(outcome: Outcome) -> None:
    """That what it says fits together; its numbers and texts are checked elsewhere.

    Raises:
        InvalidInputError: names what does not belong together.
    """
    for flag in ("final", "crashed", "snoozed", "cancelled", "declined"):
        checks.flag(flag, getattr(outcome, flag))
    if outcome.crashed + outcome.snoozed + outcome.cancelled + outcome.declined > 1:
        raise InvalidInputError("a claimed job crashed, was snoozed, cancelled or declined, and not several of these")
    waits = outcome.delay_ms is not None
    retries = outcome.backoff is not None or outcome.final
    if outcome.snoozed:
        if outcome.error is not None or outcome.result is not None or retries:
            raise InvalidInputError("a snoozed job has a delay_ms, and no error, result, backoff or final")
    elif outcome.declined:
        if outcome.error is None or outcome.result is not None or retries:
            raise InvalidInputError("a declined job has an error that says why, and no result, backoff or final")
    elif outcome.cancelled:
        if outcome.result is not None or waits or retries:
            raise InvalidInputError("a cancelled job may have an error that says why, and nothing else")
    elif outcome.error is None:
        if waits or retries or outcome.crashed:
            raise InvalidInputError(
                "delay_ms, backoff, final and crashed are for a job that failed: give its error as well"
            )
    elif outcome.result is not None:
        raise InvalidInputError("a job that failed has no result: give an error or a result, not both")


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


class QueueService(Protocol):
    """A queue's verbs. No call returns before what it did is durable."""

    async def enqueue(self, specs: Sequence[JobSpec], *, request_id: str | None = None) -> Sequence[JobRecord]:
        """Add jobs, all or none."""
        ...

    async def admit(
        self, source: str, batch: int, parts: Sequence[StagedPart], *, skip_known: bool = False
    ) -> Admission:
        """Add the jobs of staged objects in one commit, all or none; the same or an older batch of a source again does
        nothing. A job whose id is in the queue refuses all of them, unless such jobs are to be skipped.

        Raises:
            InvalidInputError: a part is missing, changed, too old, or holds what no enqueue would take.
        """
        ...

    async def dequeue(
        self,
        *,
        entrypoints: tuple[str, ...] | None,
        limit: int,
        first: bool = False,
        lease_ms: int | None = None,
        worker: str | None = None,
        wait_s: float = 0.0,
        request_id: str | None = None,
        zones: tuple[str, ...] | None = None,
        zone_lease: ZoneLease | None = None,
    ) -> list[JobRecord]:
        """Claim up to `limit` jobs; with `wait_s`, wait that long for a first one. `first`: nobody has asked with this
        `request_id` before, so that no earlier answer need be looked for. `zones`: of these alone; None: of all zones,
        and of those that have none, which take turns. `zone_lease`: of the zone that is leased, instead.

        Raises:
            ZoneLeaseLostError: somebody else may have the zone by now; nothing was claimed.
        """
        ...

    async def ack(
        self, job_id: str, *, token: int | None = None, result: bytes | None = None, request_id: str | None = None
    ) -> None:
        """The job is done; `result` goes to the archive with it."""
        ...

    async def nack(
        self,
        job_id: str,
        *,
        token: int | None = None,
        delay_ms: int | None = None,
        backoff: Backoff | None = None,
        error: str | None = None,
        request_id: str | None = None,
    ) -> JobRecord | None: ...

    async def settle(self, outcomes: Sequence[Outcome], *, request_id: str | None = None) -> list[CasqueError | None]:
        """Ack and nack many jobs in one commit. Each has an answer of its own: None if it was carried out, or the error
        that its ack or nack would have been refused with, which does not harm the others."""
        ...

    async def heartbeat(self, job_id: str, *, token: int | None = None) -> JobRecord: ...

    async def heartbeats(self, leases: Sequence[Lease]) -> list[JobRecord | CasqueError]:
        """Renew many leases at once. Each has an answer of its own: one that is lost does not harm the others."""
        ...

    async def give_back(self, job_id: str, *, token: int) -> None:
        """Return a claim that was not worked on; it does not count as an attempt."""
        ...

    async def cancel(self, job_id: str, *, request_id: str | None = None) -> None: ...

    async def retry(self, job_id: str, *, request_id: str | None = None) -> JobRecord | None: ...

    async def purge(
        self, *, entrypoint: str | None = None, request_id: str | None = None, zone: str | None = None
    ) -> int:
        """Remove dead jobs for good: all, or only those of an entrypoint, of a zone, or of both."""
        ...

    async def requeue_stale(
        self,
        older_ms: int,
        *,
        entrypoint: str | None = None,
        request_id: str | None = None,
        zone: str | None = None,
    ) -> int:
        """Take back running jobs whose last sign of life was written at least so long ago; answers how many. Written
        times are compared with the clock of the process that carries it out, because an operator asks for it."""
        ...

    async def set_gate(self, gate: Gate, *, entrypoint: str | None = None, request_id: str | None = None) -> None:
        """Pause, drain or open the whole queue, or one entrypoint. One that stands so already is left alone."""
        ...

    async def set_zone(self, zone: str, rules: ZoneRules, *, request_id: str | None = None) -> None:
        """Say what share of the turns a zone has, and what holds it back. One that stands so already is left alone."""
        ...

    async def zones(self, *, names: frozenset[str] | None = None, limit: int = 100) -> list[ZoneStanding]:
        """The zones that have jobs or rules, those whose jobs have been due longest first; of these names alone, if
        any are given."""
        ...

    async def peek_zones(
        self,
        *,
        entrypoints: tuple[str, ...] | None = None,
        names: frozenset[str] | None = None,
        limit: int = 100,
    ) -> list[PeekedZone]:
        """Zones with work that nobody has leased and nothing holds back, by vesting time: the top-level queue. Those
        whose time has not come yet follow, as far as they are among the next."""
        ...

    async def lease_zone(
        self, zone: str, *, lease_ms: int | None = None, worker: str | None = None, request_id: str | None = None
    ) -> ZoneLease | None:
        """Have a zone for oneself: until it is released, or `lease_ms` after the last sign of life, its jobs are given
        to whoever shows the lease and to nobody else. None if somebody has it, or if it has no jobs."""
        ...

    async def heartbeat_zone(self, zone: str, *, token: int) -> ZoneLease:
        """The lease starts again at full length.

        Raises:
            ZoneLeaseLostError: it ran out, or was released.
        """
        ...

    async def release_zone(self, zone: str, *, token: int) -> None:
        """Let others have the zone, as of the moment its next job is due. A lease that is over is left alone."""
        ...

    async def find(self, job_id: str) -> JobRecord | None: ...

    async def jobs(
        self,
        *,
        states: frozenset[JobState] | None = None,
        entrypoint: str | None = None,
        limit: int | None = None,
        after: int = 0,
    ) -> list[JobRecord]:
        """Unfinished and dead jobs in enqueue order, those whose `sequence` is greater than `after`."""
        ...

    async def stats(self) -> Stats: ...

    async def set_schedule(self, spec: ScheduleSpec) -> Schedule:
        """Have a job added at every tick. One that is there already and says the same stays as it is, its next tick and
        a pause included."""
        ...

    async def schedules(self) -> list[Schedule]: ...

    async def pause_schedule(self, name: str, *, paused: bool) -> Schedule:
        """No more ticks, or from now on again: those that pass in a pause are not made up for.

        Raises:
            ScheduleNotFoundError: there is none of this name.
        """
        ...

    async def drop_schedule(self, name: str) -> None:
        """
        Raises:
            ScheduleNotFoundError: there is none of this name.
        """
        ...

    def events(self, *, from_position: int | None = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        """What happens to the queue after a position, or from now on; without `follow` up to the end of the log."""
        ...

    def archive(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        entrypoint: str | None = None,
        states: frozenset[JobState] | None = None,
    ) -> AsyncGenerator[ArchivedJob]:
        """Finished jobs, hour by hour; `since` and `until` (exclusive) are about when they finished."""
        ...


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


class ScopedService(QueueService, Protocol):
    """A queue that can be asked on behalf of a caller who may not name every job."""

    def within(self, reach: Reach) -> QueueService:
        """The same queue for such a caller: what names a job or a schedule beyond its reach finds none. That is judged
        where the call is carried out, so that a name cannot change its owner in between."""
        ...


class ShardService(QueueService, Protocol):
    """One shard of a ring: a queue, and what the ring asks it besides. Its numbers and tokens are its own."""

    async def enqueue(
        self, specs: Sequence[JobSpec], *, request_id: str | None = None, generation: int = 0
    ) -> Sequence[JobRecord]:
        """Add jobs, all or none. `generation`: of the ring that the caller knows.

        Raises:
            ZoneMovedError: they belong elsewhere, or the caller's ring is an old one; nothing was done.
        """
        ...

    def within(self, reach: Reach) -> ShardService:
        """As `ScopedService`."""
        ...

    async def adopt(self, generation: int, size: int) -> int:
        """Tell it of a ring; it answers the generation that it knows then, which may be a newer one."""
        ...

    async def admit(
        self,
        source: str,
        batch: int,
        parts: Sequence[StagedPart],
        *,
        skip_known: bool = False,
        generation: int = 0,
    ) -> Admission:
        """Add staged jobs, all or none. Without parts it is said that nothing of this batch will ever come.

        Raises:
            ZoneMovedError: they belong elsewhere, or the caller's ring is an old one; nothing was done.
        """
        ...

    async def known(
        self,
        job_ids: Sequence[str] = (),
        *,
        request_id: str | None = None,
        places: Sequence[Place] = (),
        admission: tuple[str, int] | None = None,
    ) -> Known:
        """Which of these jobs, zones and keys it has, and whether it remembers the request, and the batch of a
        source."""
        ...

    async def copy_gate(self, gate: Gate, *, entrypoint: str | None, expected: Gate) -> None:
        """Set it to what another shard has, unless somebody has set it since it was `expected`."""
        ...

    async def copy_zone(self, zone: str, rules: ZoneRules, *, expected: ZoneRules) -> None:
        """The same with the rules of a zone."""
        ...

    async def has_due(self, entrypoints: tuple[str, ...] | None, zones: tuple[str, ...] | None) -> bool:
        """Whether a dequeue would get anything just now. A hint: somebody may be faster."""
        ...


class Role(StrEnum):
    """What a broker is just now."""

    STARTING = "starting"
    STANDBY = "standby"
    LEADER = "leader"
    STOPPING = "stopping"


class Standing(msgspec.Struct, frozen=True):
    """How a broker stands: for health checks, metrics and people."""

    role: Role
    epoch: int = 0
    leader: str | None = None
    """Where the leader can be reached, as far as this broker knows."""
    position: int = 0
    problem: str | None = None
    """What keeps it from doing its work, if anything does."""
    shards: int = 0
    """Of a ring: how many there are. 0 for a queue without shards."""
    led: int = 0
    """How many of them this broker leads."""
    members: int = 0
    """How many brokers share them, this one included, as far as it knows."""


class Host(Protocol):
    """What a server stands in front of: a queue that is led here, or elsewhere."""

    def service(self) -> QueueService:
        """The queue.

        Raises:
            QueueLedError: it is led by the broker at `address`; nothing was done.
            NoLeaderError: nobody leads it just now; nothing was done.
        """
        ...

    def standing(self) -> Standing: ...


@runtime_checkable
class RingHost(Host, Protocol):
    """A host of a ring: other brokers come to it for the shards that it leads."""

    def shard(self, token: int) -> ShardService:
        """
        Raises:
            QueueLedError: another broker leads it; nothing was done.
            NoLeaderError: nobody leads it just now; nothing was done.
            InvalidInputError: this is no ring, or it has no such shard.
        """
        ...

    async def led_stats(self) -> Stats:
        """How the shards stand that this broker leads: the sums of several brokers are those of the ring."""
        ...
