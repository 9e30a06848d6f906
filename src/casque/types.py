"""The values that every layer shares: a job as it was asked for, a job as it stands, and its states.

They are frozen, so a record can be handed to another thread, kept for an undo or compared by identity without
a copy. Times are whole milliseconds since the epoch by the clock of whoever wrote them; they order jobs and are
shown to people, and nobody compares them with a clock of their own to decide about a lease.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache

import msgspec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999: all that a datetime can say."""


@lru_cache(maxsize=1024)  # jobs of one commit share their times
def from_ms(ms: int) -> datetime:
    """A stored time, for people. One that no calendar has is shown as the nearest that one does."""
    return _EPOCH + timedelta(milliseconds=min(max(ms, _FIRST_MS), _LAST_MS))


class JobState(StrEnum):
    """Where a job stands. `ready` and `delayed` wait, `running` is leased, the rest is over."""

    READY = "ready"
    DELAYED = "delayed"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


class JobSpec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a producer asked for. Never changes after the job was added."""

    id: str
    entrypoint: str
    payload: bytes
    priority: int = 0
    run_at_ms: int | None = None
    attempts_max: int | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    zone: str | None = None
    blob: str | None = None
    """The object that holds the payload, which is empty then: it was too large for a commit."""
    blob_bytes: int = 0
    max_crashes: int | None = None
    """Dead after its workers died of it so often. With this, a crash does not count as an attempt."""
    fifo: bool = False
    """Its zone hands out its jobs strictly in enqueue order, one at a time."""


class Reach(msgspec.Struct, frozen=True):
    """Which jobs a caller may name. For one who may not, a job is not there.

    >>> reach = Reach(entrypoints=("mail.*", "fax"))
    >>> reach.covers("mail.welcome", None), reach.covers("mailing", None), reach.covers("fax", "acme")
    (True, False, True)
    """

    entrypoints: tuple[str, ...] | None = None
    """Names, or `prefix.*` for all that begin with `prefix.`. None: all."""
    zones: frozenset[str] | None = None
    """None: all, and jobs without a zone too, which are not within any zones."""
    schedules_max: int | None = None
    """How many schedules may have such jobs."""

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
"""So many attempts that came to nothing are kept with a job, the latest ones."""


class Ending(StrEnum):
    """How an attempt came to nothing."""

    FAILED = "failed"
    """Its worker said so."""
    EXPIRED = "expired"
    """Its worker fell silent, and the lease ran out."""
    CRASHED = "crashed"
    """The same, or its worker said that the process died: of a job that counts crashes apart from attempts."""


class Attempt(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One attempt that came to nothing. Stored as an array, so that fields only ever grow, at the end and with
    defaults."""

    claimed_ms: int | None
    """None for a claim that jqueue made: it does not write that down."""
    ended_ms: int
    how: Ending
    worker: str | None = None
    token: int = 0
    """Of its lease. Unique within a queue, and so names the attempt."""
    error: str | None = None


class Progress(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How far an attempt has come, as its handler says. Stored as an array, like an attempt.

    >>> str(Progress(40, 100, "pages")), str(Progress(7)), Progress(40, 100).share
    ('40/100 pages', '7', 0.4)
    """

    done: float
    total: float | None = None
    note: str | None = None

    @property
    def share(self) -> float | None:
        """From 0 to 1, if it is known of how much."""
        return min(max(self.done / self.total, 0.0), 1.0) if self.total else None

    def __str__(self) -> str:
        counted = f"{self.done:g}" if self.total is None else f"{self.done:g}/{self.total:g}"
        return f"{counted} {self.note}" if self.note else counted


class JobRecord(msgspec.Struct, frozen=True, gc=False):
    """A job as it stands after some commit. A change makes a new record."""

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
    """The attempts that came to nothing, oldest first, at most `TRIES_MAX`; of a dead job also the one that killed it.
    One that is under way is told by the fields above."""
    crashes: int = 0
    """How often its worker died of it, if the job counts that; such a claim is no attempt."""
    progress: Progress | None = None
    """Of the attempt that is under way, as its worker last said with a heartbeat."""
    declined: int = 0
    """How often a worker gave it back because it did not understand it, as `error` says. Such a claim is no attempt."""

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def tries_bytes(self) -> int:
        """About how many bytes its tries take, wherever they go. Most jobs have none and need not be asked."""
        return sum([128 + len(tried.error or "") for tried in self.tries])


class Finished(msgspec.Struct, frozen=True, gc=False):
    """A job that is over, as it stood just before: what the archive is made of."""

    position: int
    """The commit that finished it."""
    at_ms: int
    """The time of that commit."""
    job: JobRecord
    state: JobState
    """`done`, `dead` or `cancelled`."""
    error: str | None = None
    """Of the last attempt that failed."""
    result: bytes | None = None


class Backoff(msgspec.Struct, frozen=True):
    """How long a failed job waits: doubling from `base_ms` up to `cap_ms`, less a share of jitter.

    `spread` in [0, 1) is drawn by the caller, so that the rule itself stays deterministic.
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
    cancelled: int


class Missed(StrEnum):
    """What becomes of the ticks of a schedule that passed while nobody was there to notice."""

    SKIP = "skip"
    """Nothing."""
    ONE = "one"
    """One job for all of them."""
    ALL = "all"
    """A job for each."""


class ScheduleSpec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A job that is added again and again, as somebody asked for it. Stored: fields only ever come at the end."""

    name: str
    cron: str
    job: JobSpec
    """Without an id: each job that it becomes has its own."""
    tz: str = "UTC"
    missed: Missed = Missed.ONE
    origin: str | None = None
    """The module of the function that it was declared on; None if it was set by hand."""


class Schedule(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A schedule as it stands after some commit. Stored: fields only ever come at the end."""

    spec: ScheduleSpec
    next_ms: int
    """The tick that is next. Of a paused one, that would have been."""
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
        """Whether anything is not open."""
        return self.queue is not Gate.OPEN or bool(self.entrypoints)

    def of(self, entrypoint: str | None) -> Gate:
        """The gate that was set there; None is the whole queue."""
        return self.queue if entrypoint is None else self.entrypoints.get(entrypoint, Gate.OPEN)

    def pauses(self, entrypoint: str) -> bool:
        """Whether its jobs are not claimed."""
        return self.queue is Gate.PAUSED or self.entrypoints.get(entrypoint) is Gate.PAUSED

    def drains(self, entrypoint: str) -> bool:
        """Whether no jobs of it are added."""
        return self.queue is Gate.DRAINING or self.entrypoints.get(entrypoint) is Gate.DRAINING

    def with_gate(self, entrypoint: str | None, gate: Gate) -> Gates:
        if entrypoint is None:
            return Gates(gate, self.entrypoints)
        others = {name: other for name, other in self.entrypoints.items() if name != entrypoint}
        return Gates(self.queue, others if gate is Gate.OPEN else {**others, entrypoint: gate})


ALL_OPEN = Gates()


class ZoneRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was set for one zone. Stored: fields only ever come at the end, with defaults."""

    weight: float = 1.0
    """Its share of the turns among the zones that have jobs waiting: twice the weight, twice the jobs."""
    running_max: int | None = None
    """So many of its jobs run at a time."""
    per_second: float | None = None
    """So many of its jobs are claimed in a second."""
    paused: bool = False
    """None of its jobs are claimed."""


PLAIN_RULES = ZoneRules()
"""Those of a zone for which nothing was set."""


class ZoneLease(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The right to take jobs of a zone, which nobody else is given meanwhile. Zone and token together are its id.
    Stored: fields only ever come at the end, with defaults."""

    zone: str
    token: int
    """From the same count as the tokens of jobs: unique within a queue, and rising."""
    lease_ms: int
    worker: str | None = None
    """Who has it, for people."""
    leased_ms: int = 0
    beat_ms: int = 0
    """When it was renewed last, by the writer's clock. Every renewal differs from the one before."""


class Vigil(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What processes that come and go have seen of one lease, one after the other, since it was last renewed.

    Stored: fields only ever come at the end, with defaults."""

    subject: str
    """The id of the job, or the name of the zone."""
    token: int
    """Of the lease. Unique within a queue, whatever it is a lease of."""
    beat_ms: int | None
    """Of the lease as they saw it. One that was renewed is another lease to them."""
    visits: int = 0
    watched_ms: int = 0
    """How long they watched it, by their own monotonic clocks. No moment is counted twice."""
    dated_ms: int = 0
    """What is believed of the time between visits, which only written times tell of."""
    until_ms: int = 0
    """The latest time that any of them has written."""
    is_zone: bool = False


class PeekedZone(msgspec.Struct, frozen=True, omit_defaults=True):
    """A zone that has work for whoever leases it."""

    zone: str
    next_ms: int
    """Its vesting time: when the first of its waiting jobs became, or will become, due."""
    due: bool = True
    """Whether that moment has come, by the clock of whoever keeps the queue."""
    fifo: bool = False

    @property
    def next_at(self) -> datetime:
        """Its vesting time, in UTC."""
        return from_ms(self.next_ms)


class ZoneStanding(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a zone stands after the last commit."""

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
    """Who has leased it, if anybody has."""

    @property
    def next_at(self) -> datetime | None:
        """Its vesting time, in UTC."""
        return None if self.next_ms is None else from_ms(self.next_ms)


class Admission(msgspec.Struct, frozen=True):
    """What came of an admission."""

    jobs: int
    """So many were added."""
    skipped: int = 0
    """So many were not: their unique key is held by an unfinished job, or they were known and were to be skipped."""
    repeated: bool = False
    """Whether this batch of the source, or a later one, had been admitted before: then nothing happened now."""
    position: int = 0
    """The commit that admitted the batch, or the last one of its source."""


class LastBatch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The latest batch of a source, as the queue remembers it. Stored: fields only ever come at the end."""

    batch: int
    position: int
    jobs: int = 0
    skipped: int = 0


class StagedPart(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Jobs that lie in an object of their own and wait to be admitted. The object is immutable: these are its bytes.

    Stored in the log with every admission, so its fields only ever grow, at the end and with defaults.
    """

    key: str
    sha256: str
    jobs: int
    bytes: int
