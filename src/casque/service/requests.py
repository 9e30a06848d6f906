"""Everything that can be asked of a queue, one value for each verb.

A client makes a request, a wire carries it, the border checks it, the meter counts it, a ring routes it, a remote
client repeats it under its id, and the queue carries it out. What treats all requests alike never lists the verbs.

A request with a `request_id` is remembered with its answer: asked again, it gives the same answer and acts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, get_args

import msgspec

from casque import checks
from casque.errors import CasqueError, InvalidInputError, JobNotFoundError, LeaseLostError, ScheduleNotFoundError
from casque.service.answers import Known, Place, Stats
from casque.service.outcomes import Lease, Outcome
from casque.types import (
    Admission,
    Backoff,
    Gate,
    JobRecord,
    JobSpec,
    JobState,
    PeekedZone,
    Progress,
    Schedule,
    ScheduleSpec,
    StagedPart,
    ZoneLease,
    ZoneRules,
    ZoneStanding,
)

A_co = TypeVar("A_co", covariant=True)


class Scope(StrEnum):
    """What a token is for. `admin` is all of them but `peer`."""

    PRODUCE = "produce"
    WORK = "work"
    READ = "read"
    ADMIN = "admin"
    PEER = "peer"
    """For the brokers of a ring among themselves, and for nothing else."""


class Request(msgspec.Struct, Generic[A_co], frozen=True, gc=False, array_like=True):
    """Something asked of a queue, which answers with an `A_co`. Its tag is its name on the wire; fields only ever come
    at the end, with defaults."""

    scope: ClassVar[Scope]
    """What its caller must be allowed to do."""
    naming: ClassVar[bool] = False
    """Whether it names jobs or schedules, which its caller may not reach."""
    audited: ClassVar[bool] = False
    """Whether every one is written to the audit log."""
    done_if_gone: ClassVar[tuple[type[CasqueError], ...]] = ()
    """A second attempt that meets one of these says that the first one was carried out."""

    def check(self) -> None:
        """That its values are within bounds, beyond what their types say.

        Raises:
            InvalidInputError: one is not.
        """

    def asked(self) -> object:
        """What its caller asks for: the same request id with something else is another request. What a broker adds,
        or works out anew when a request is repeated, is left out."""
        return tuple([getattr(self, name) for name in self.__struct_fields__ if name != "request_id"])


@cache
def verb_of(kind: type[Request[Any]]) -> str:
    return str(kind.__struct_config__.tag)


@cache
def answer_of(kind: type[Request[Any]]) -> Any:
    """The type of its answer; None for one that has only been carried out."""
    answer = get_args(kind.__orig_bases__[0])[0]  # type: ignore[attr-defined]
    return None if answer is type(None) else answer


@cache
def is_named(kind: type[Request[Any]]) -> bool:
    """Whether it carries a request id, so that it may be asked again."""
    return "request_id" in kind.__struct_fields__


# --- Producing ---


class Enqueue(Request[Sequence[JobRecord]], frozen=True, tag="enqueue"):
    """Add jobs, all or none. A spec whose unique key is held by an unfinished job gives that job instead."""

    scope = Scope.PRODUCE

    specs: tuple[JobSpec, ...]
    request_id: str | None = None
    generation: int = 0
    """Of the ring that the caller knows. Only brokers of a ring say this, to a shard."""

    def asked(self) -> object:
        return [(s.entrypoint, s.payload, s.priority, s.key, s.zone, s.fifo, s.blob_bytes) for s in self.specs]


class Admit(Request[Admission], frozen=True, tag="admit"):
    """Add the jobs of staged objects in one commit, all or none; the same or an older batch of a source again does
    nothing. A job whose id is in the queue refuses all of them, unless such jobs are to be skipped. To a shard without
    parts: nothing of this batch will ever come."""

    scope = Scope.PRODUCE

    source: str
    batch: int
    parts: tuple[StagedPart, ...]
    skip_known: bool = False
    generation: int = 0
    """As with `Enqueue`."""


# --- Working ---


class Dequeue(Request[list[JobRecord]], frozen=True, tag="dequeue"):
    """Claim up to `limit` jobs; with `wait_s`, wait that long for a first one."""

    scope = Scope.WORK

    entrypoints: tuple[str, ...] | None
    """None for any."""
    limit: int
    lease_ms: int | None = None
    """None for what the queue's settings say."""
    worker: str | None = None
    request_id: str | None = None
    zones: tuple[str, ...] | None = None
    """Jobs of these alone. None: of all zones, and of those that have none, which take turns."""
    zone_lease: tuple[str, int] | None = None
    """Zone and token: jobs of this zone alone, which is given to callers who show its lease and to no others."""
    wait_s: float = 0.0
    first: bool = False
    """This `request_id` was never asked with before, so that no earlier answer need be looked for."""

    def asked(self) -> object:
        return self.entrypoints, self.zone_lease


class Ack(Request[None], frozen=True, tag="ack"):
    """The job is done; `result` goes to the archive with it. Without a token it is done whichever worker holds it."""

    scope = Scope.WORK
    naming = True

    job_id: str
    token: int | None = None
    request_id: str | None = None
    result: bytes | None = None

    def asked(self) -> object:
        return self.job_id, self.token


class Nack(Request[JobRecord | None], frozen=True, tag="nack"):
    """The job failed: back with a delay, or dead if this was its last attempt. `delay_ms` wins over `backoff`; with
    neither it is due again at once, behind what is due already."""

    scope = Scope.WORK
    naming = True

    job_id: str
    token: int | None = None
    delay_ms: int | None = None
    backoff: Backoff | None = None
    error: str | None = None
    request_id: str | None = None

    def asked(self) -> object:
        return self.job_id, self.token


class Settle(Request[list[CasqueError | None]], frozen=True, tag="settle"):
    """Ack and nack many jobs in one commit. Each has an answer of its own: None if it was carried out, or the error
    that its ack or nack would have been refused with, which does not harm the others."""

    scope = Scope.WORK
    naming = True

    outcomes: tuple[Outcome, ...]
    request_id: str | None = None

    def asked(self) -> object:
        # Without tokens: a border gives those that are not its caller's another one, while they are there to be seen.
        return [(o.job_id, o.error is None, o.crashed, o.snoozed, o.cancelled, o.declined) for o in self.outcomes]


class Heartbeat(Request[JobRecord], frozen=True, tag="heartbeat"):
    """The worker is alive: the lease of its job starts again at full length. It may say how far it has come."""

    scope = Scope.WORK
    naming = True

    job_id: str
    token: int | None = None
    progress: Progress | None = None


class Heartbeats(Request[list[JobRecord | CasqueError]], frozen=True, tag="heartbeats"):
    """Renew many leases at once. Each has an answer of its own: one that is lost does not harm the others."""

    scope = Scope.WORK
    naming = True

    leases: tuple[Lease, ...]


class GiveBack(Request[None], frozen=True, tag="give_back"):
    """Return a claim that was not worked on; it does not count as an attempt."""

    scope = Scope.WORK
    naming = True
    done_if_gone = (JobNotFoundError, LeaseLostError)

    job_id: str
    token: int


class PeekZones(Request[list[PeekedZone]], frozen=True, tag="peek_zones"):
    """Zones with work that no worker has leased and nothing holds back, by vesting time: the top-level queue. Those
    whose time has not come yet follow, as far as they are among the next."""

    scope = Scope.WORK

    entrypoints: tuple[str, ...] | None = None
    names: frozenset[str] | None = None
    limit: int = 100


class LeaseZone(Request[ZoneLease | None], frozen=True, tag="lease_zone"):
    """Have a zone for oneself: until it is released, or `lease_ms` after the last sign of life, its jobs are given only
    to callers who show the lease. None if it is leased, or if it has no jobs."""

    scope = Scope.WORK

    zone: str
    lease_ms: int | None = None
    worker: str | None = None
    request_id: str | None = None

    def asked(self) -> object:
        return self.zone


class HeartbeatZone(Request[ZoneLease], frozen=True, tag="heartbeat_zone"):
    """The lease of a zone starts again at full length."""

    scope = Scope.WORK

    zone: str
    token: int


class ReleaseZone(Request[None], frozen=True, tag="release_zone"):
    """Let others have the zone, as of the moment its next job is due. A lease that is over is left alone."""

    scope = Scope.WORK
    audited = True

    zone: str
    token: int


# --- Managing ---


class Cancel(Request[None], frozen=True, tag="cancel"):
    """Take a waiting or running job out of the queue."""

    scope = Scope.ADMIN
    naming = True
    audited = True

    job_id: str
    request_id: str | None = None

    def asked(self) -> object:
        return self.job_id


class Retry(Request[JobRecord | None], frozen=True, tag="retry"):
    """Give a dead job a fresh set of attempts."""

    scope = Scope.ADMIN
    naming = True
    audited = True

    job_id: str
    request_id: str | None = None

    def asked(self) -> object:
        return self.job_id


class Reschedule(Request[JobRecord | None], frozen=True, tag="reschedule"):
    """Have a waiting job run at another time, with another priority, or both. None: as it is."""

    scope = Scope.ADMIN
    naming = True
    audited = True

    job_id: str
    run_at_ms: int | None = None
    """In the past: now."""
    priority: int | None = None
    request_id: str | None = None

    def check(self) -> None:
        if self.run_at_ms is None and self.priority is None:
            raise InvalidInputError("say what to change: run_at, priority, or both")
        if self.run_at_ms is not None:
            checks.whole("run_at_ms", self.run_at_ms, *checks.MOMENTS_MS)
        if self.priority is not None:
            checks.priority(self.priority)


class Purge(Request[int], frozen=True, tag="purge"):
    """Remove dead jobs for good: all, or only those of an entrypoint, of a zone, or of both."""

    scope = Scope.ADMIN
    audited = True

    entrypoint: str | None = None
    request_id: str | None = None
    zone: str | None = None

    def takes(self, spec: JobSpec) -> bool:
        """If it is dead."""
        return self.entrypoint in (None, spec.entrypoint) and self.zone in (None, spec.zone)


class RequeueStale(Request[int], frozen=True, tag="requeue_stale"):
    """Take back running jobs whose last sign of life was written at least so long ago; answers how many. Written times
    are compared with the clock of the process that carries it out, because an operator asks for it."""

    scope = Scope.ADMIN
    audited = True

    older_ms: int
    entrypoint: str | None = None
    request_id: str | None = None
    zone: str | None = None

    def asked(self) -> object:
        return self.entrypoint, self.zone


class SetGate(Request[None], frozen=True, tag="set_gate"):
    """Pause, drain or open the whole queue, or one entrypoint. One that stands so already is left alone."""

    scope = Scope.ADMIN
    audited = True

    gate: Gate
    entrypoint: str | None = None
    request_id: str | None = None


class SetZone(Request[None], frozen=True, tag="set_zone"):
    """Say what share of the turns a zone has, and what holds it back. One that stands so already is left alone."""

    scope = Scope.ADMIN
    audited = True

    zone: str
    rules: ZoneRules
    request_id: str | None = None


class SetSchedule(Request[Schedule], frozen=True, tag="set_schedule"):
    """Have a job added at every tick. One that is there already and says the same stays as it is, its next tick and a
    pause included."""

    scope = Scope.PRODUCE
    naming = True
    audited = True

    spec: ScheduleSpec


class PauseSchedule(Request[Schedule], frozen=True, tag="pause_schedule"):
    """No more ticks, or from now on again: those that pass in a pause are not made up for."""

    scope = Scope.ADMIN
    naming = True
    audited = True

    name: str
    paused: bool


class DropSchedule(Request[None], frozen=True, tag="drop_schedule"):
    """Forget a schedule. The jobs that it has become stay."""

    scope = Scope.ADMIN
    naming = True
    audited = True
    done_if_gone = (ScheduleNotFoundError,)

    name: str


# --- Looking ---


class Find(Request[JobRecord | None], frozen=True, tag="find"):
    """One job, if it is unfinished or dead."""

    scope = Scope.READ
    naming = True

    job_id: str


class ListJobs(Request[list[JobRecord]], frozen=True, tag="jobs"):
    """Unfinished and dead jobs in enqueue order, those whose `sequence` is greater than `after`."""

    scope = Scope.READ

    states: frozenset[JobState] | None = None
    entrypoint: str | None = None
    limit: int | None = None
    after: int = 0


class GetStats(Request[Stats], frozen=True, tag="stats"):
    """How the queue stands after its last commit."""

    scope = Scope.READ


class ListZones(Request[list[ZoneStanding]], frozen=True, tag="zones"):
    """The zones that have jobs or rules, those whose jobs have been due longest first; of these names alone, if any are
    given."""

    scope = Scope.READ

    names: frozenset[str] | None = None
    limit: int = 100


class ListSchedules(Request[list[Schedule]], frozen=True, tag="schedules"):
    """All of them, in the order in which they were set first."""

    scope = Scope.READ


# --- What the brokers of a ring ask a shard besides ---


class Adopt(Request[int], frozen=True, tag="adopt"):
    """Tell a shard of a ring; it answers the generation that it knows then, which may be a newer one."""

    scope = Scope.PEER
    audited = True

    generation: int
    size: int


class AskKnown(Request[Known], frozen=True, tag="known"):
    """Which of these jobs, zones and keys a shard has, and whether it remembers the request, and the batch of a
    source."""

    scope = Scope.PEER

    job_ids: tuple[str, ...] = ()
    of_request: str | None = None
    places: tuple[Place, ...] = ()
    admission: tuple[str, int] | None = None


class CopyGate(Request[None], frozen=True, tag="copy_gate"):
    """Set a gate to what another shard has, unless it was set since it was `expected`."""

    scope = Scope.PEER
    audited = True

    gate: Gate
    entrypoint: str | None
    expected: Gate


class CopyZone(Request[None], frozen=True, tag="copy_zone"):
    """The same with the rules of a zone."""

    scope = Scope.PEER
    audited = True

    zone: str
    rules: ZoneRules
    expected: ZoneRules


class HasDue(Request[bool], frozen=True, tag="has_due"):
    """Whether a dequeue would get anything just now. A hint: others may be faster."""

    scope = Scope.PEER

    entrypoints: tuple[str, ...] | None
    zones: tuple[str, ...] | None


EVERY: tuple[type[Request[Any]], ...] = tuple(Request.__subclasses__())

_ABOUT = {Enqueue: "specs", Settle: "outcomes", Heartbeats: "leases", ListZones: "names", PeekZones: "names"}


def is_empty(request: Request[Any]) -> bool:
    """Whether it is about nothing at all, so that its answer is empty and need not be asked for. On some wires, an
    empty list of names would be all of them."""
    name = _ABOUT.get(type(request))
    if name is None:
        return False
    about = getattr(request, name)
    return about is not None and not about
