"""The values that every layer shares: a job as requested, a job as it stands, and its states.

They are frozen, so a record can be passed to another thread, kept for an undo or compared by identity without a copy.
Times are whole milliseconds since the epoch by the writer's clock; they order jobs and are shown to people, and are
never compared with another clock to decide about a lease.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Annotated

import msgspec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999: the range of datetime."""


@lru_cache(maxsize=1024)  # jobs of one commit share their times
def from_ms(ms: int) -> datetime:
    """A stored time as a datetime. A time outside the calendar becomes the nearest one within."""
    return _EPOCH + timedelta(milliseconds=min(max(ms, _FIRST_MS), _LAST_MS))


def to_ms(moment: datetime) -> int:
    """A datetime as a stored time; without a time zone it is in UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    span = moment - _EPOCH
    return (span.days * 86_400 + span.seconds) * 1000 + span.microseconds // 1000


def moment_of(ms: int | None) -> datetime | None:
    """As `from_ms`; None stays None."""
    return None if ms is None else from_ms(ms)


def ms_of(moment: datetime | None) -> int | None:
    """As `to_ms`; None stays None."""
    return None if moment is None else to_ms(moment)


class JobState(StrEnum):
    """The state of a job. `ready` and `delayed` wait, `running` is leased, the others are final."""

    READY = "ready"
    DELAYED = "delayed"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


class JobSpec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A job as its producer requested it. Never changes after the job was added."""

    id: str
    entrypoint: str
    payload: bytes
    priority: int = 0
    run_at_ms: int | None = None
    max_attempts: int | None = msgspec.field(default=None, name="attempts_max")
    """Stored and sent under its first name, which every release reads."""
    key: str | None = None
    headers: dict[str, str] | None = None
    zone: str | None = None
    blob: str | None = None
    """The object that holds the payload, if it was too large for a commit; `payload` is empty then."""
    blob_bytes: int = 0
    max_crashes: int | None = None
    """The job is dead after this many worker crashes. If set, a crash does not count as an attempt."""
    fifo: bool = False
    """Its zone hands out its jobs strictly in enqueue order, one at a time."""
    tags: tuple[str, ...] = ()
    expires_ms: int | None = None
    """Cancelled if it waits this long after it was enqueued, by the clock of the process that decides."""

    @property
    def attempts_max(self) -> int | None:
        """The first name of `max_attempts`."""
        return self.max_attempts


EXPIRES_MS_MAX = 1000 * 365 * 24 * 3600 * 1000
"""A thousand years, as for all spans."""
NOT_CLAIMED_IN_TIME = "expired: no worker claimed it in time"
"""The error of a job that was cancelled because it had expired."""
_TAGS = {
    "maxItems": 16,
    "uniqueItems": True,
    "items": {"type": "string", "minLength": 1, "maxLength": 64, "format": "printable"},
}


class GainedFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields that `JobSpec` gained last, for all other forms of a job. A form that inherits them has them at its
    end, under the same names. See `fields.py`."""

    tags: Annotated[tuple[str, ...], msgspec.Meta(extra_json_schema=_TAGS)] = ()
    """Short texts to find jobs by."""
    expires_ms: Annotated[int, msgspec.Meta(ge=1, le=EXPIRES_MS_MAX)] | None = None
    """Milliseconds from its enqueue after which it is not handed out any more, but cancelled."""


class GainedColumns(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The same as columns of staged jobs: a list with a value for each row, or None. Stored by position: new ones come
    at the end."""

    tags: list[tuple[str, ...]] | None = None
    expires_ms: list[int | None] | None = None


class Reach(msgspec.Struct, frozen=True):
    """Which jobs a caller may name. All others do not exist for it.

    >>> reach = Reach(entrypoints=("mail.*", "fax"))
    >>> reach.covers("mail.welcome", None), reach.covers("mailing", None), reach.covers("fax", "acme")
    (True, False, True)
    """

    entrypoints: tuple[str, ...] | None = None
    """Names, or `prefix.*` for all that begin with `prefix.`. None: all."""
    zones: frozenset[str] | None = None
    """None: all zones, and jobs without a zone, which are not within any zones."""
    schedules_max: int | None = None
    """Maximum number of schedules for such jobs."""

    def has(self, job: JobSpec) -> bool:
        return self.covers(job.entrypoint, job.zone)

    def covers(self, entrypoint: str, zone: str | None) -> bool:
        return self.covers_zone(zone) and self.covers_entrypoint(entrypoint)

    def covers_zone(self, zone: str | None) -> bool:
        return self.zones is None or zone in self.zones

    def covers_entrypoint(self, entrypoint: str) -> bool:
        if self.entrypoints is None or entrypoint in self.entrypoints:
            return True
        return any(own.endswith(".*") and entrypoint.startswith(own[:-1]) for own in self.entrypoints)


TRIES_MAX = 50
"""Maximum number of failed attempts kept with a job, the latest ones."""


class Ending(StrEnum):
    """How an attempt failed."""

    FAILED = "failed"
    """Its worker reported a failure."""
    EXPIRED = "expired"
    """Its worker fell silent, and the lease ran out."""
    CRASHED = "crashed"
    """The same, or its worker reported that the process died, for a job that counts crashes apart from attempts."""


class Attempt(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One failed attempt. Stored as an array: new fields are added at the end, with defaults."""

    claimed_ms: int | None
    """None for a claim by jqueue, which does not record it."""
    ended_ms: int
    how: Ending
    worker: str | None = None
    token: int = 0
    """Token of its lease. Unique within a queue, so it identifies the attempt."""
    error: str | None = None


class Progress(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Progress of an attempt, as its handler reports it. Stored as an array, like an attempt.

    >>> str(Progress(40, 100, "pages")), str(Progress(7)), Progress(40, 100).share
    ('40/100 pages', '7', 0.4)
    """

    done: float
    total: float | None = None
    note: str | None = None

    @property
    def share(self) -> float | None:
        """From 0 to 1, if the total is known."""
        return min(max(self.done / self.total, 0.0), 1.0) if self.total else None

    def __str__(self) -> str:
        counted = f"{self.done:g}" if self.total is None else f"{self.done:g}/{self.total:g}"
        return f"{counted} {self.note}" if self.note else counted


class JobRecord(msgspec.Struct, frozen=True, gc=False):
    """A job as of some commit. A change makes a new record."""

    spec: JobSpec
    sequence: int
    """Enqueue order within the queue: unique, rising."""
    created_ms: int
    state: JobState
    due_ms: int
    """When it became, or will become, due. Second in the order after the priority."""
    token: int = 0
    """Rises with every claim of any job; 0 before the first."""
    attempts: int = 0
    worker: str | None = None
    lease_ms: int = 0
    claimed_ms: int | None = None
    beat_ms: int | None = None
    error: str | None = None
    tries: tuple[Attempt, ...] = ()
    """The failed attempts, oldest first, at most `TRIES_MAX`; for a dead job including the last one. The fields above
    describe the current attempt."""
    crashes: int = 0
    """Number of worker crashes on it, if the job counts them; they do not count as attempts."""
    progress: Progress | None = None
    """Progress of the current attempt, as the last heartbeat reported it."""
    declined: int = 0
    """How often a worker gave it back because it did not understand it, as `error` says.
    Does not count as an attempt."""

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def expires_at_ms(self) -> int | None:
        """When it is not wanted any more; None if it never expires."""
        expires_ms = self.spec.expires_ms
        return None if expires_ms is None else self.created_ms + expires_ms

    @property
    def tries_bytes(self) -> int:
        """Estimated size of its failed attempts in bytes. Most jobs have none."""
        return sum([128 + len(tried.error or "") for tried in self.tries])


class Finished(msgspec.Struct, frozen=True, gc=False):
    """A finished job, as it stood just before: the archive is made of these."""

    position: int
    """The commit that finished it."""
    at_ms: int
    """The time of that commit."""
    job: JobRecord
    state: JobState
    """`done`, `dead` or `cancelled`."""
    error: str | None = None
    """Error of the last failed attempt."""
    result: bytes | None = None


class Backoff(msgspec.Struct, frozen=True):
    """How long a failed job waits: doubling from `base_ms` up to `cap_ms`, minus a random share.

    The caller draws `spread`, in [0, 1), so that the rule itself stays deterministic.
    """

    base_ms: int
    cap_ms: int
    spread: float = 0.0

    def delay_ms(self, attempts: int) -> int:
        # 2**62 ms is far beyond any cap; the bound keeps a huge count from building a huge integer.
        full = min(self.cap_ms, self.base_ms << min(max(attempts - 1, 0), 40))
        return int(full * (1.0 - self.spread / 2))


class Totals(msgspec.Struct, frozen=True):
    """Jobs by state. `enqueued` is the sum of all the others, at every position."""

    enqueued: int
    ready: int
    delayed: int
    running: int
    done: int
    dead: int
    """Dead now. A job that is retried or purged is dead no longer."""
    cancelled: int
    purged: int = 0
    """Dead jobs that were removed."""


class Missed(StrEnum):
    """How to treat ticks of a schedule that were missed, because no process handled them in time."""

    SKIP = "skip"
    """No job."""
    ONE = "one"
    """One job for all of them."""
    ALL = "all"
    """A job for each."""


class ScheduleSpec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A job that is added again and again, as requested. Stored: new fields are added at the end."""

    name: str
    cron: str
    job: JobSpec
    """Without an id: each added job has its own."""
    tz: str = "UTC"
    missed: Missed = Missed.ONE
    origin: str | None = None
    """The module of the function that it was declared on; None if it was set by hand."""


class Schedule(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A schedule as of some commit. Stored: new fields are added at the end."""

    spec: ScheduleSpec
    next_ms: int
    """The next tick. For a paused schedule, the tick that would be next."""
    paused: bool = False
    last_ms: int | None = None
    """The latest tick that became a job."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def next_at(self) -> datetime:
        """The next tick, in UTC."""
        return from_ms(self.next_ms)

    @property
    def last_at(self) -> datetime | None:
        """The latest tick that became a job, in UTC."""
        return None if self.last_ms is None else from_ms(self.last_ms)


class Gate(StrEnum):
    """What a queue, or one entrypoint of it, lets through."""

    OPEN = "open"
    PAUSED = "paused"
    """Nothing is claimed. Jobs may be added."""
    DRAINING = "draining"
    """Nothing is added. Jobs are claimed until none is left."""


class Gates(msgspec.Struct, frozen=True):
    """The gate of the whole queue, and those of entrypoints that are not open. A job passes if both let it."""

    queue: Gate = Gate.OPEN
    entrypoints: dict[str, Gate] = {}

    def __bool__(self) -> bool:
        """True if anything is not open."""
        return self.queue is not Gate.OPEN or bool(self.entrypoints)

    def of(self, entrypoint: str | None) -> Gate:
        """The gate of an entrypoint; None for the whole queue."""
        return self.queue if entrypoint is None else self.entrypoints.get(entrypoint, Gate.OPEN)

    def pauses(self, entrypoint: str) -> bool:
        """True if its jobs are not claimed."""
        return self.queue is Gate.PAUSED or self.entrypoints.get(entrypoint) is Gate.PAUSED

    def drains(self, entrypoint: str) -> bool:
        """True if no jobs can be added to it."""
        return self.queue is Gate.DRAINING or self.entrypoints.get(entrypoint) is Gate.DRAINING

    def with_gate(self, entrypoint: str | None, gate: Gate) -> Gates:
        if entrypoint is None:
            return Gates(gate, self.entrypoints)
        others = {name: other for name, other in self.entrypoints.items() if name != entrypoint}
        return Gates(self.queue, others if gate is Gate.OPEN else {**others, entrypoint: gate})


ALL_OPEN = Gates()


class ZoneRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rules of one zone. Stored: new fields are added at the end, with defaults."""

    weight: float = 1.0
    """Its share of the turns among the zones that have jobs waiting: twice the weight, twice the jobs."""
    running_max: int | None = None
    """Maximum number of its jobs that run at a time."""
    per_second: float | None = None
    """Maximum number of its jobs that are claimed per second."""
    paused: bool = False
    """None of its jobs are claimed."""


PLAIN_RULES = ZoneRules()
"""The rules of a zone without settings."""


class ZoneLease(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The exclusive right to take jobs of a zone. Zone and token together are its id. Stored: new fields are added at
    the
    end, with defaults."""

    zone: str
    token: int
    """From the same count as the tokens of jobs: unique within a queue, and rising."""
    lease_ms: int
    worker: str | None = None
    """Its holder, for people."""
    leased_ms: int = 0
    beat_ms: int = 0
    """When it was renewed last, by the writer's clock. Every renewal differs from the one before."""


class Vigil(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What short-lived processes have seen of one lease, one after the other, since it was last renewed.

    Stored: new fields are added at the end, with defaults.
    """

    subject: str
    """The id of the job, or the name of the zone."""
    token: int
    """Token of the lease. Unique within a queue, across leases of jobs and of zones."""
    beat_ms: int | None
    """Last heartbeat of the lease as they saw it. A renewed lease counts as another one."""
    visits: int = 0
    watched_ms: int = 0
    """How long they watched it, by their own monotonic clocks. No moment is counted twice."""
    dated_ms: int = 0
    """The credited part of the time between visits, which is known only from written times."""
    until_ms: int = 0
    """The latest time that any of them has written."""
    is_zone: bool = False


class PeekedZone(msgspec.Struct, frozen=True, omit_defaults=True):
    """A zone with work for a worker that leases it."""

    zone: str
    next_ms: int
    """Vesting time: when the first of its waiting jobs became, or will become, due."""
    due: bool = True
    """True if that time has come, by the clock of the process that runs the queue."""
    fifo: bool = False

    @property
    def next_at(self) -> datetime:
        """Its vesting time, in UTC."""
        return from_ms(self.next_ms)


class ZoneStanding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A zone's counts and settings after the last commit."""

    zone: str
    ready: int = 0
    delayed: int = 0
    running: int = 0
    dead: int = 0
    next_ms: int | None = None
    """When the first of its waiting jobs became, or will become, due: its vesting time. None if none waits."""
    fifo: bool = False
    rules: ZoneRules = PLAIN_RULES
    lease: ZoneLease | None = None
    """Its lease, if it has one."""

    @property
    def next_at(self) -> datetime | None:
        """Its vesting time, in UTC."""
        return None if self.next_ms is None else from_ms(self.next_ms)


class Admission(msgspec.Struct, frozen=True):
    """The result of an admission."""

    jobs: int
    """Number of added jobs."""
    skipped: int = 0
    """Number of skipped jobs: their unique key is held by an unfinished job, or they were
    known and were to be skipped."""
    repeated: bool = False
    """True if this batch of the source, or a later one, had been admitted before: then nothing was added now."""
    position: int = 0
    """The commit that admitted the batch, or the last one of its source."""


class LastBatch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The latest batch of a source, as the queue remembers it. Stored: new fields are added at the end."""

    batch: int
    position: int
    jobs: int = 0
    skipped: int = 0


class StagedPart(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Jobs in a separate object that wait to be admitted. The object is immutable.

    Stored in the log with every admission: new fields are added at the end, with defaults.
    """

    key: str
    sha256: str
    jobs: int
    bytes: int
