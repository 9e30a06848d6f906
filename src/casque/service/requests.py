"""All requests to a queue, one value for each verb.

A client makes a request, a wire carries it, the border checks it, the meter counts it, a ring routes it, a remote
client repeats it under its id, and the queue carries it out. Code that treats all requests alike never lists the verbs.

A request with a `request_id` is remembered with its answer: repeated, it gets the same answer and acts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, get_args

import msgspec

from casque import checks
from casque.errors import CasqueError, InvalidInputError, JobNotFoundError, LeaseLostError, ScheduleNotFoundError
from casque.service.answers import Known, Stats, ZoneOrKey
from casque.service.outcomes import Lease, Outcome, OutcomeKind
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
    """What a token allows. `admin` includes all of them except `peer`."""

    PRODUCE = "produce"
    WORK = "work"
    READ = "read"
    ADMIN = "admin"
    PEER = "peer"
    """For calls between the brokers of a ring, and for nothing else."""


class Request(msgspec.Struct, Generic[A_co], frozen=True, gc=False, array_like=True):
    """A request to a queue, which answers with an `A_co`. Its tag is its name on the wire; new fields are added at the
    end,
    with defaults."""

    scope: ClassVar[Scope]
    """What its caller must be allowed to do."""
    naming: ClassVar[bool] = False
    """True if it names jobs or schedules, which its caller may not reach."""
    audited: ClassVar[bool] = False
    """True if every call is written to the audit log."""
    done_if_gone: ClassVar[tuple[type[CasqueError], ...]] = ()
    """A second attempt that meets one of these shows that the first one was carried out."""

    def check(self) -> None:
        """Check that its values are within bounds, beyond their types.

        Raises:
            InvalidInputError: one is not.
        """

    def asked(self) -> object:
        """What identifies the request besides its id: the same id with other contents is another request. Leaves out
        fields that a broker adds, or computes again when a request is repeated."""
        return tuple([getattr(self, name) for name in self.__struct_fields__ if name != "request_id"])


@cache
def verb_of(kind: type[Request[Any]]) -> str:
    return str(kind.__struct_config__.tag)


@cache
def answer_of(kind: type[Request[Any]]) -> Any:
    """The type of its answer; None for a request without a result."""
    answer = get_args(kind.__orig_bases__[0])[0]  # type: ignore[attr-defined]
    return None if answer is type(None) else answer


@cache
def is_named(kind: type[Request[Any]]) -> bool:
    """True if it carries a request id, so that it may be repeated."""
    return "request_id" in kind.__struct_fields__


# --- Producing ---


class Enqueue(Request[Sequence[JobRecord]], frozen=True, tag="enqueue"):
    """Add jobs, all or none. A spec whose unique key is held by an unfinished job returns that job instead."""

    scope = Scope.PRODUCE

    specs: tuple[JobSpec, ...]
    request_id: str | None = None
    generation: int = 0
    """Generation of the ring that the caller knows. Set only by brokers of a ring, in calls to a shard."""

    def asked(self) -> object:
        return [(s.entrypoint, s.payload, s.priority, s.key, s.zone, s.fifo, s.blob_bytes) for s in self.specs]


class Admit(Request[Admission], frozen=True, tag="admit"):
    """Add the jobs of staged objects in one commit, all or none; repeating the same or an older batch of a source does
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
    """None for the queue's setting."""
    worker: str | None = None
    request_id: str | None = None
    zones: tuple[str, ...] | None = None
    """Only jobs of these zones. None: of all zones, and those without one, in turns."""
    zone_lease: tuple[str, int] | None = None
    """Zone and token: only jobs of this zone, which go only to callers with its lease."""
    wait_s: float = 0.0
    first: bool = False
    """This `request_id` was never used before, so there is no earlier answer to look for."""

    def asked(self) -> object:
        return self.entrypoints, self.zone_lease


class Ack(Request[None], frozen=True, tag="ack"):
    """Mark a job as done; `result` goes to the archive with it. Without a token, whichever worker holds it."""

    scope = Scope.WORK
    naming = True

    job_id: str
    token: int | None = None
    request_id: str | None = None
    result: bytes | None = None

    def asked(self) -> object:
        return self.job_id, self.token


class Nack(Request[JobRecord | None], frozen=True, tag="nack"):
    """Mark an attempt as failed: the job runs again after a delay, or is dead if this was its last attempt. `delay_ms`
    takes precedence over `backoff`; with neither it is due again at once, behind jobs that are due already."""

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


_FLAGS: dict[OutcomeKind | None, tuple[bool, bool, bool, bool]] = {
    how: (
        how is OutcomeKind.CRASHED,
        how is OutcomeKind.SNOOZED,
        how is OutcomeKind.CANCELLED,
        how is OutcomeKind.DECLINED,
    )
    for how in (None, *OutcomeKind)
}
"""An outcome's kind as fingerprints have it, which are stored: a flag each."""


class Settle(Request[list[CasqueError | None]], frozen=True, tag="settle"):
    """Ack and nack many jobs in one commit. One answer per outcome: None if it was carried out, or the error of its ack
    or nack, which does not affect the others."""

    scope = Scope.WORK
    naming = True

    outcomes: tuple[Outcome, ...]
    request_id: str | None = None

    def asked(self) -> object:
        # Without tokens: a border replaces those of other callers' jobs, as long as it can see the jobs.
        return [(o.job_id, o.error is None, *_FLAGS[o.how]) for o in self.outcomes]


class Heartbeat(Request[JobRecord], frozen=True, tag="heartbeat"):
    """Renew the lease of a job to its full length, and optionally report progress."""

    scope = Scope.WORK
    naming = True

    job_id: str
    token: int | None = None
    progress: Progress | None = None


class Heartbeats(Request[list[JobRecord | CasqueError]], frozen=True, tag="heartbeats"):
    """Renew many leases at once. One answer per lease: a lost one does not affect the others."""

    scope = Scope.WORK
    naming = True

    leases: tuple[Lease, ...]


class GiveBack(Request[None], frozen=True, tag="give_back"):
    """Return a claimed job that was not processed, without counting an attempt."""

    scope = Scope.WORK
    naming = True
    done_if_gone = (JobNotFoundError, LeaseLostError)

    job_id: str
    token: int


class PeekZones(Request[list[PeekedZone]], frozen=True, tag="peek_zones"):
    """The top-level queue: unleased zones with work that no limit holds back, by vesting time. Zones that are not due
    yet
    follow, in order."""

    scope = Scope.WORK

    entrypoints: tuple[str, ...] | None = None
    names: frozenset[str] | None = None
    limit: int = 100


class LeaseZone(Request[ZoneLease | None], frozen=True, tag="lease_zone"):
    """Lease a whole zone: until it is released, or until `lease_ms` has passed without a heartbeat, only callers with
    the
    lease get its jobs. None if it is leased, or has no jobs."""

    scope = Scope.WORK

    zone: str
    lease_ms: int | None = None
    worker: str | None = None
    request_id: str | None = None

    def asked(self) -> object:
        return self.zone


class HeartbeatZone(Request[ZoneLease], frozen=True, tag="heartbeat_zone"):
    """Renew the lease of a zone to its full length."""

    scope = Scope.WORK

    zone: str
    token: int


class ReleaseZone(Request[None], frozen=True, tag="release_zone"):
    """Release a zone to others, as of the moment its next job is due. Does nothing if the lease has ended already."""

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
    """Change when a waiting job runs, its priority, or both. None: unchanged."""

    scope = Scope.ADMIN
    naming = True
    audited = True

    job_id: str
    run_at_ms: int | None = None
    """A time in the past means now."""
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
        """Whether it applies to a job with this spec, if the job is dead."""
        return self.entrypoint in (None, spec.entrypoint) and self.zone in (None, spec.zone)


class RequeueStale(Request[int], frozen=True, tag="requeue_stale"):
    """Take back running jobs whose last claim or heartbeat was written at least this long ago; returns their number.
    Written times are compared with the clock of the process that carries it out, because an operator asks for it."""

    scope = Scope.ADMIN
    audited = True

    older_ms: int
    entrypoint: str | None = None
    request_id: str | None = None
    zone: str | None = None

    def asked(self) -> object:
        return self.entrypoint, self.zone


class SetGate(Request[None], frozen=True, tag="set_gate"):
    """Pause, drain or open the whole queue, or one entrypoint. Does nothing if it is in that state already."""

    scope = Scope.ADMIN
    audited = True

    gate: Gate
    entrypoint: str | None = None
    request_id: str | None = None


class SetZone(Request[None], frozen=True, tag="set_zone"):
    """Set a zone's share of the turns, and its limits. Does nothing if they are set already."""

    scope = Scope.ADMIN
    audited = True

    zone: str
    rules: ZoneRules
    request_id: str | None = None


class SetSchedule(Request[Schedule], frozen=True, tag="set_schedule"):
    """Add a job at every tick. An identical schedule stays unchanged, including its next tick and a pause."""

    scope = Scope.PRODUCE
    naming = True
    audited = True

    spec: ScheduleSpec


class PauseSchedule(Request[Schedule], frozen=True, tag="pause_schedule"):
    """Pause a schedule, or resume it from now on: ticks missed during the pause are skipped."""

    scope = Scope.ADMIN
    naming = True
    audited = True

    name: str
    paused: bool


class DropSchedule(Request[None], frozen=True, tag="drop_schedule"):
    """Remove a schedule. Jobs that it added stay."""

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
    """The queue's counts after its last commit."""

    scope = Scope.READ


class ListZones(Request[list[ZoneStanding]], frozen=True, tag="zones"):
    """Zones that have jobs or rules, those whose jobs have been due longest first; only these names, if given."""

    scope = Scope.READ

    names: frozenset[str] | None = None
    limit: int = 100


class ListSchedules(Request[list[Schedule]], frozen=True, tag="schedules"):
    """All schedules, in the order in which they were first set."""

    scope = Scope.READ


# --- Requests of a ring's brokers to a shard ---


class Adopt(Request[int], frozen=True, tag="adopt"):
    """Announce a ring to a shard; returns the generation that it knows then, which may be a newer one."""

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
    places: tuple[ZoneOrKey, ...] = ()
    admission: tuple[str, int] | None = None


class CopyGate(Request[None], frozen=True, tag="copy_gate"):
    """Set a gate to what another shard has, unless it was set here after the position `since`."""

    scope = Scope.PEER
    audited = True

    gate: Gate
    entrypoint: str | None
    since: int


class CopyZone(Request[None], frozen=True, tag="copy_zone"):
    """The same for the rules of a zone."""

    scope = Scope.PEER
    audited = True

    zone: str
    rules: ZoneRules
    since: int


class HasDue(Request[bool], frozen=True, tag="has_due"):
    """True if a dequeue would get a job just now. A hint: others may be faster."""

    scope = Scope.PEER

    entrypoints: tuple[str, ...] | None
    zones: tuple[str, ...] | None


EVERY: tuple[type[Request[Any]], ...] = tuple(Request.__subclasses__())

_ABOUT = {Enqueue: "specs", Settle: "outcomes", Heartbeats: "leases", ListZones: "names", PeekZones: "names"}


def is_empty(request: Request[Any]) -> bool:
    """True if it names nothing, so that its answer is empty and the call can be skipped. On some wires, an empty list
    of
    names would mean all of them."""
    name = _ABOUT.get(type(request))
    if name is None:
        return False
    about = getattr(request, name)
    return about is not None and not about
