"""The JSON messages, and their conversion to the values of a `QueueService` and back.

Requests are strict: an unknown field is refused, because a misspelt option that is silently ignored costs an evening.
Answers only ever gain fields.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from casque import checks, cron
from casque.codec.archive import archived_try, unarchived_try
from casque.codec.converter import converter
from casque.errors import InvalidInputError
from casque.fields import ASKED, RECORD, SPEC
from casque.service import ArchivedAttempt
from casque.transport.errors import WireError
from casque.transport.limits import DEFAULT_LIMITS
from casque.transport.settling import Refused
from casque.types import (
    Backoff,
    GainedFields,
    JobRecord,
    JobSpec,
    JobState,
    Missed,
    PeekedZone,
    Progress,
    Schedule,
    ScheduleSpec,
    ZoneLease,
    ZoneRules,
    ZoneStanding,
    from_ms,
    moment_of,
    ms_of,
    to_ms,
)

INT64_MAX = 2**63 - 1
PAGE = 100
PAGE_MAX = 1000
BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

_PRINTABLE = {"format": "printable"}
Name = Annotated[str, Meta(min_length=1, max_length=checks.NAME_MAX, extra_json_schema=_PRINTABLE)]
Names = Annotated[list[Name], Meta(min_length=1, max_length=DEFAULT_LIMITS.entrypoints_per_dequeue)]
Key = Annotated[str, Meta(min_length=1, max_length=checks.KEY_MAX, extra_json_schema=_PRINTABLE)]
Seconds = Annotated[float, Meta(ge=0, le=checks.LONGEST_S)]
Moment = Annotated[datetime, Meta(tz=True, extra_json_schema={"format": "date-time"})]
MomentText = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Natural = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Base64 = Annotated[bytes, Meta(extra_json_schema={"pattern": BASE64})]

# --- What is asked ---


class NewJob(GainedFields, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job to add. Its payload is given in one of three ways, or is empty."""

    entrypoint: Name
    payload: Base64 | UnsetType = UNSET
    """Bytes, as base64."""
    payload_text: str | UnsetType = UNSET
    """A text, stored as UTF-8."""
    payload_json: msgspec.Raw | UnsetType = UNSET
    """Any JSON, stored as compact JSON."""
    id: Name | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)] = 0
    delay: Seconds | None = None
    run_at: Moment | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=INT64_MAX)] | UnsetType | None = UNSET
    """Left out: the broker's own limit. null: no limit."""
    key: Key | None = None
    headers: dict[str, str] | None = None
    zone: Name | None = None
    max_crashes: Annotated[int, Meta(ge=1, le=INT64_MAX)] | None = None
    """The job is dead after this many worker crashes; null: crashes count as attempts."""
    fifo: bool = False
    """Its zone hands out its jobs strictly in enqueue order, one at a time. All jobs of a zone agree about this."""


class ZoneToken(Struct, frozen=True, forbid_unknown_fields=True):
    """Identifies a lease of a zone."""

    zone: Name
    token: Natural


class Claim(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request to claim jobs of these entrypoints, or of any."""

    entrypoints: Annotated[list[Name], Meta(min_length=1, max_length=DEFAULT_LIMITS.entrypoints_per_dequeue)] | None = (
        None
    )
    limit: Annotated[int, Meta(ge=1, le=checks.BATCH_MAX)] = 1
    wait: Seconds = 0.0
    """How long to wait for a first job. A broker may answer earlier, with none."""
    lease: Seconds | None = None
    worker: Name | None = None
    zones: Annotated[list[Name], Meta(min_length=1, max_length=checks.ZONES_MAX)] | None = None
    """Left out: all zones, and jobs without a zone, in turns."""
    zone_lease: ZoneToken | None = None
    """Claim from this leased zone only; leave out `zones` then."""


class AckRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    token: Natural | None = None
    result: Base64 | UnsetType = UNSET
    result_text: str | UnsetType = UNSET
    result_json: msgspec.Raw | UnsetType = UNSET


class BackoffRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Doubles from `base` with every attempt, up to `cap`, minus up to half of it at random."""

    base: Seconds
    cap: Seconds
    spread: Annotated[float, Meta(ge=0, lt=1)] | UnsetType = UNSET
    """Left out: drawn by the broker."""


class NackRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """With neither `delay` nor `backoff`, the broker's settings decide how long the job waits."""

    token: Natural | None = None
    delay: Seconds | None = None
    backoff: BackoffRequest | None = None
    error: str | None = None


class OutcomeOf(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The outcome of a claimed job: done without an error, failed with one. A failed job waits for `delay` or for
    `backoff`; with neither, the broker's settings decide. With `final` it is dead at once.

    `how` names another outcome: `crashed`, the worker process died, and `error` says how; `snoozed`, the job is due
    again after `delay`, and this was no attempt; `cancelled`, the job is no longer needed, and `error` may say why;
    `declined`, the worker does not understand the job, `error` says why, and the job waits for a worker that does.
    """

    job_id: str
    token: Natural
    error: str | UnsetType = UNSET
    result: Base64 | UnsetType = UNSET
    result_text: str | UnsetType = UNSET
    result_json: msgspec.Raw | UnsetType = UNSET
    delay: Seconds | UnsetType = UNSET
    backoff: BackoffRequest | UnsetType = UNSET
    final: bool | UnsetType = UNSET
    how: Literal["crashed", "snoozed", "cancelled", "declined"] | UnsetType = UNSET


class SettleRequest(Struct, frozen=True, forbid_unknown_fields=True):
    outcomes: Annotated[list[OutcomeOf], Meta(max_length=DEFAULT_LIMITS.outcomes_per_settle)]


class HeartbeatRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    token: Natural | None = None


class ProgressOf(Struct, frozen=True, omit_defaults=True):
    """Progress of an attempt, as its handler reports it."""

    done: Annotated[float, Meta(ge=0, le=checks.PROGRESS_MAX)]
    total: Annotated[float, Meta(ge=0, le=checks.PROGRESS_MAX)] | None = None
    note: Annotated[str, Meta(max_length=checks.PROGRESS_NOTE_MAX)] | None = None


class LeaseOf(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    job_id: str
    token: Natural | None = None
    progress: ProgressOf | None = None
    """Progress of the attempt; null: unchanged."""


class HeartbeatsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    leases: Annotated[list[LeaseOf], Meta(max_length=DEFAULT_LIMITS.leases_per_heartbeat)]


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """No body, or an empty object."""


class NewSchedule(GainedFields, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A schedule that adds a job at every tick. Its payload is given in one of three ways, or is empty."""

    name: Annotated[str, Meta(min_length=1, max_length=checks.SCHEDULE_MAX, extra_json_schema=_PRINTABLE)]
    cron: Annotated[str, Meta(min_length=1, max_length=cron.EXPRESSION_MAX)]
    """Five fields, or @hourly and the like."""
    entrypoint: Name
    tz: str = "UTC"
    missed: Missed = Missed.ONE
    """What to do with ticks that were missed, for example while no broker was running."""
    payload: Base64 | UnsetType = UNSET
    payload_text: str | UnsetType = UNSET
    payload_json: msgspec.Raw | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)] = 0
    max_attempts: Annotated[int, Meta(ge=1, le=INT64_MAX)] | UnsetType | None = UNSET
    """Left out: the broker's own limit. null: no limit."""
    key: Key | None = None
    headers: dict[str, str] | None = None
    zone: Name | None = None
    origin: Name | None = None
    """The app or tool that declared it."""
    max_crashes: Annotated[int, Meta(ge=1, le=INT64_MAX)] | None = None
    fifo: bool = False


# --- What is asked in a query. Values are texts there, so that nothing may be null. ---


class JobsQuery(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    state: list[JobState] | UnsetType = UNSET
    entrypoint: Name | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = PAGE
    after: Natural = 0
    """The `next` of the previous page."""


class ZonesQuery(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: list[Name] | UnsetType = UNSET
    """Only these; may be repeated."""
    limit: Annotated[int, Meta(ge=1, le=checks.ZONES_SHOWN_MAX)] = 100


class PeekQuery(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    entrypoint: list[Name] | UnsetType = UNSET
    """Only zones with jobs of these; may be repeated."""
    name: list[Name] | UnsetType = UNSET
    """Only these; may be repeated."""
    limit: Annotated[int, Meta(ge=1, le=checks.ZONES_SHOWN_MAX)] = 100


class EventsQuery(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    from_position: Natural | UnsetType = UNSET
    """Begin after this commit; left out: now. A `Last-Event-ID` takes precedence."""
    follow: bool = True


class ArchiveQuery(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    since: MomentText | UnsetType = UNSET
    until: MomentText | UnsetType = UNSET
    entrypoint: Name | UnsetType = UNSET
    state: list[JobState] | UnsetType = UNSET


# --- What is answered ---


class Job(GainedFields, frozen=True, omit_defaults=True):
    """A job as of the commit of the call."""

    id: str
    entrypoint: str
    payload: Base64
    """Bytes, as base64."""
    state: JobState
    sequence: int
    """Its position in enqueue order."""
    created_at: datetime
    due_at: datetime
    attempts: int = 0
    priority: int = 0
    token: int = 0
    """Lease token: send it with ack, nack, heartbeat and give-back."""
    lease: float | None = None
    """Seconds that the lease lasts without a heartbeat."""
    worker: str | None = None
    claimed_at: datetime | None = None
    heartbeat_at: datetime | None = None
    error: str | None = None
    """Error of the last failed attempt."""
    max_attempts: int | None = None
    run_at: datetime | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    zone: str | None = None
    tries: tuple[ArchivedAttempt, ...] = ()
    """The failed attempts, oldest first, the last 50 at most."""
    crashes: int = 0
    """Number of worker crashes on this job; they do not count as attempts."""
    max_crashes: int | None = None
    progress: ProgressOf | None = None
    """Progress of the current attempt, as the last heartbeat reported it."""
    fifo: bool = False
    declined: int = 0
    """How often a worker gave it back because it did not understand it."""
    payload_json: msgspec.Raw | UnsetType = UNSET
    """The payload too, if it was given as `payload_json`: its header `content-type` is `application/json`."""


class ZoneLeaseOf(Struct, frozen=True, omit_defaults=True):
    """The lease of a zone and its holder."""

    zone: str
    token: int
    """Identifies the lease, together with the zone."""
    lease: float
    """Seconds that it lasts without a heartbeat."""
    leased_at: datetime
    heartbeat_at: datetime
    worker: str | None = None


class PeekedZoneOf(Struct, frozen=True, omit_defaults=True):
    """A zone with work for a worker that leases it."""

    zone: str
    next_at: datetime
    """Vesting time: when the first of its waiting jobs became, or will become, due."""
    due: bool
    """True if that time has come."""
    fifo: bool = False


class PeekedZones(Struct, frozen=True):
    zones: list[PeekedZoneOf]


class ZoneOf(Struct, frozen=True, omit_defaults=True):
    """A zone's counts and settings."""

    zone: str
    ready: int
    delayed: int
    running: int
    dead: int
    next_at: datetime | None = None
    """When the first of its waiting jobs became, or will become, due."""
    fifo: bool = False
    weight: float = 1.0
    running_max: int | None = None
    per_second: float | None = None
    paused: bool = False
    lease: ZoneLeaseOf | None = None
    """Its lease, if it has one."""


class Zones(Struct, frozen=True):
    zones: list[ZoneOf]


class Jobs(Struct, frozen=True):
    jobs: list[Job]


class JobsPage(Struct, frozen=True):
    jobs: list[Job]
    next: int | None = None
    """Pass it as `after` to get the next page; null: there is none."""


class MaybeJob(Struct, frozen=True):
    job: Job | None
    """null if the job is no longer in the queue, which can happen when a request is repeated."""


class Settled(Struct, frozen=True):
    settled: int
    """Number of outcomes carried out: all except those refused below."""
    refused: list[Refused]


class Beat(Struct, frozen=True, omit_defaults=True):
    """The job, or why its lease could not be renewed."""

    job: Job | None = None
    error: WireError | None = None


class Beats(Struct, frozen=True):
    answers: list[Beat]
    """One for each lease, in order."""


class ScheduleOf(GainedFields, frozen=True, omit_defaults=True):
    """A schedule and its state."""

    name: str
    cron: str
    entrypoint: str
    payload: Base64
    next_at: datetime
    """The next tick. For a paused schedule, the tick that would be next."""
    tz: str = "UTC"
    missed: Missed = Missed.ONE
    paused: bool = False
    last_at: datetime | None = None
    """The latest tick that became a job."""
    priority: int = 0
    max_attempts: int | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    zone: str | None = None
    origin: str | None = None
    max_crashes: int | None = None
    fifo: bool = False


class EventLine(Struct, frozen=True):
    """The data of one server-sent event. Later releases may add kinds."""

    position: int
    index: int
    at: datetime
    kind: str
    job_id: str | None
    fields: dict[str, Any]


# --- There and back ---

CONTENT_TYPE, JSON = "content-type", "application/json"
_CHOSEN = tuple(field.name for field in ASKED if field.name not in ("id", "run_at"))


def to_job(record: JobRecord) -> Job:
    return _to_job(record, record.spec)


def headers_of(new: NewJob | NewSchedule) -> dict[str, str] | None:
    """The headers of a new job. One whose payload was given as JSON says so, unless it has a type of its own: it is
    answered as JSON, too."""
    headers = None if new.headers is None else checks.headers(new.headers)
    if new.payload_json is UNSET or any(name.lower() == CONTENT_TYPE for name in headers or ()):
        return headers
    return {**(headers or {}), CONTENT_TYPE: JSON} if len(headers or ()) < checks.HEADERS_MAX else headers


def _json_of(spec: JobSpec) -> msgspec.Raw | UnsetType:
    """The payload as a part of an answer, if its header says that it is JSON, and it is."""
    if spec.headers is None or spec.headers.get(CONTENT_TYPE) != JSON:
        return UNSET
    try:
        msgspec.json.decode(spec.payload)
    except (msgspec.DecodeError, RecursionError):
        return UNSET
    return msgspec.Raw(spec.payload)


def from_progress(message: Progress | None) -> ProgressOf | None:
    return None if message is None else ProgressOf(message.done, message.total, message.note)


def to_progress(message: ProgressOf | None) -> Progress | None:
    return None if message is None else Progress(message.done, message.total, message.note)


def from_job(job: Job) -> JobRecord:
    return _to_record(job, _to_spec(job, job.id, ms_of(job.run_at)))


def from_spec(spec: JobSpec) -> NewJob:
    return NewJob(id=spec.id, run_at=moment_of(spec.run_at_ms), **_chosen(spec))


def _chosen(spec: JobSpec) -> dict[str, Any]:
    """What the producer of a job chose, besides its id and its time."""
    return {name: getattr(spec, name) for name in _CHOSEN}


def to_zone(found: ZoneStanding) -> ZoneOf:
    rules = found.rules
    return ZoneOf(
        found.zone,
        found.ready,
        found.delayed,
        found.running,
        found.dead,
        found.next_at,
        found.fifo,
        rules.weight,
        rules.running_max,
        rules.per_second,
        rules.paused,
        None if found.lease is None else to_zone_lease(found.lease),
    )


def to_zone_lease(found: ZoneLease) -> ZoneLeaseOf:
    return ZoneLeaseOf(
        found.zone,
        found.token,
        found.lease_ms / 1000,
        from_ms(found.leased_ms),
        from_ms(found.beat_ms),
        found.worker,
    )


def from_zone_lease(message: ZoneLeaseOf) -> ZoneLease:
    lease_ms = round(message.lease * 1000)
    return ZoneLease(
        message.zone, message.token, lease_ms, message.worker, to_ms(message.leased_at), to_ms(message.heartbeat_at)
    )


def to_peeked(found: PeekedZone) -> PeekedZoneOf:
    return PeekedZoneOf(found.zone, found.next_at, found.due, found.fifo)


def from_peeked(message: PeekedZoneOf) -> PeekedZone:
    return PeekedZone(message.zone, to_ms(message.next_at), message.due, message.fifo)


def from_zone(message: ZoneOf) -> ZoneStanding:
    rules = ZoneRules(message.weight, message.running_max, message.per_second, message.paused)
    next_ms = ms_of(message.next_at)
    lease = None if message.lease is None else from_zone_lease(message.lease)
    return ZoneStanding(
        message.zone, message.ready, message.delayed, message.running, message.dead, next_ms, message.fifo, rules, lease
    )


def from_schedule_spec(spec: ScheduleSpec) -> NewSchedule:
    return NewSchedule(spec.name, spec.cron, tz=spec.tz, missed=spec.missed, origin=spec.origin, **_chosen(spec.job))


def to_schedule(found: Schedule) -> ScheduleOf:
    spec = found.spec
    return ScheduleOf(
        spec.name,
        spec.cron,
        next_at=from_ms(found.next_ms),
        tz=spec.tz,
        missed=spec.missed,
        paused=found.paused,
        last_at=moment_of(found.last_ms),
        origin=spec.origin,
        **_chosen(spec.job),
    )


def from_schedule(message: ScheduleOf) -> Schedule:
    job = _to_spec(message, "", None)
    spec = ScheduleSpec(message.name, message.cron, job, message.tz, message.missed, message.origin)
    return Schedule(spec, to_ms(message.next_at), message.paused, ms_of(message.last_at))


def to_backoff(asked: BackoffRequest, drawn: float) -> Backoff:
    spread = drawn if asked.spread is UNSET else asked.spread
    return Backoff(checks.span_ms("base", asked.base), checks.span_ms("cap", asked.cap), spread)


def from_backoff(backoff: Backoff) -> BackoffRequest:
    return BackoffRequest(backoff.base_ms / 1000, backoff.cap_ms / 1000, backoff.spread)


def given_bytes(
    what: str, base64: bytes | UnsetType, text: str | UnsetType, json: msgspec.Raw | UnsetType
) -> bytes | None:
    """Bytes from one of three fields; None if none is set."""
    if sum(way is not UNSET for way in (base64, text, json)) > 1:
        raise InvalidInputError(f"give one of {what}, {what}_text and {what}_json, not several")
    if base64 is not UNSET:
        return base64
    if text is not UNSET:
        return text.encode()
    if json is UNSET:
        return None
    try:
        return msgspec.json.format(bytes(json), indent=-1)
    except RecursionError as error:
        raise InvalidInputError(f"{what}_json is nested too deeply; give it as {what}_text") from error


_to_job = converter(
    Job,
    "job, spec",
    {
        **{field.http: f"spec.{field.spec}" for field in SPEC if field.http is not None},
        **{field.http: f"job.{field.record}" for field in RECORD if field.http is not None},
        "created_at": "from_ms(job.created_ms)",
        "due_at": "from_ms(job.due_ms)",
        "run_at": "moment(spec.run_at_ms)",
        "claimed_at": "moment(job.claimed_ms)",
        "heartbeat_at": "moment(job.beat_ms)",
        "lease": "job.lease_ms / 1000 if job.lease_ms else None",
        "tries": "tuple([archived_try(tried) for tried in job.tries]) if job.tries else ()",
        "progress": "from_progress(job.progress)",
        "payload_json": "json_of(spec)",
    },
    from_ms=from_ms,
    json_of=_json_of,
    moment=moment_of,
    archived_try=archived_try,
    from_progress=from_progress,
)
_to_spec = converter(
    JobSpec,
    "job, id, run_at_ms",
    {
        **{field.spec or "": repr(field.default) if field.http is None else f"job.{field.http}" for field in SPEC},
        "id": "id",
        "run_at_ms": "run_at_ms",
    },
)
_to_record = converter(
    JobRecord,
    "job, spec",
    {
        **{field.record or "": f"job.{field.http}" for field in RECORD},
        "spec": "spec",
        "created_ms": "to_ms(job.created_at)",
        "due_ms": "to_ms(job.due_at)",
        "lease_ms": "0 if job.lease is None else round(job.lease * 1000)",
        "claimed_ms": "ms(job.claimed_at)",
        "beat_ms": "ms(job.heartbeat_at)",
        "tries": "tuple([unarchived_try(tried) for tried in job.tries]) if job.tries else ()",
        "progress": "to_progress(job.progress)",
    },
    to_ms=to_ms,
    ms=ms_of,
    unarchived_try=unarchived_try,
    to_progress=to_progress,
)
