"""Verbs with one body and one answer: each entry holds its route, the server's parser and the client's encoder."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

from msgspec import Meta, Struct

from casque import checks, errors
from casque.codec.staged import ADMITTED_PARTS_MAX, KEY_PATTERN, PART_BYTES_MAX, PART_JOBS_MAX
from casque.errors import JobNotFoundError, ScheduleNotFoundError
from casque.service import QueueService, Stats
from casque.service.requests import (
    Admit,
    Cancel,
    DropSchedule,
    GetStats,
    GiveBack,
    HeartbeatZone,
    LeaseZone,
    ListSchedules,
    PauseSchedule,
    Purge,
    ReleaseZone,
    Request,
    RequeueStale,
    Reschedule,
    Retry,
    SetGate,
    SetZone,
)
from casque.transport.http.messages import (
    INT64_MAX,
    MaybeJob,
    Name,
    Natural,
    Nothing,
    ScheduleOf,
    Seconds,
    ZoneLeaseOf,
    ZoneToken,
    from_job,
    from_schedule,
    from_zone_lease,
    to_job,
    to_schedule,
    to_zone_lease,
)
from casque.transport.http.route import LEASE, Route
from casque.types import Admission, Gate, JobRecord, StagedPart, ZoneRules, from_ms


class Call(Struct, frozen=True):
    """One HTTP request, parsed and checked."""

    service: QueueService
    body: Any = None
    query: Any = None
    job_id: str = ""
    """The id in the path, or the name of a schedule."""
    request_id: str | None = None
    last_event_id: str | None = None


class Done(Struct, frozen=True):
    """The answer of a verb without a result. No answer at all is a bug."""


DONE = Done()


class SimpleVerb(Struct, frozen=True, kw_only=True):
    """One verb."""

    route: Route
    kind: type[Request[Any]]
    read: Callable[[Call], Request[Any]]
    """The server's parser: call to request."""
    path_field: str | None = None
    """The field that the path contains."""
    body: Callable[[Any], Any] = lambda _: Nothing()
    """The client's encoder: request to body."""
    encode_answer: Callable[[Any], Any] = lambda _: DONE
    """Result to answer message, on the server."""
    decode_answer: Callable[[Any], Any] = lambda _: None
    """Answer message to result, on the client."""
    applies: Callable[[Any], bool] = lambda _: True
    """Whether this route serves a request, where there are several."""
    patience_s: float = 0.0
    """Extra time that it may take."""

    async def carry_out(self, call: Call) -> Any:
        return self.encode_answer(await call.service.call(self.read(call)))

    def path(self, request: Any) -> str:
        if self.path_field is None:
            return self.route.path
        return self.route.path.replace("{id}", segment(getattr(request, self.path_field), self.route.path))


def segment(name: str, path: str) -> str:
    """A name, escaped for use in a path."""
    if not name:
        raise ScheduleNotFoundError(name) if "/schedules/" in path else JobNotFoundError(name)
    # Escape dots: proxies and clients resolve path segments made of dots alone.
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def maybe_job(record: JobRecord | None) -> MaybeJob:
    return MaybeJob(None if record is None else to_job(record))


def from_maybe_job(answer: MaybeJob) -> JobRecord | None:
    return None if answer.job is None else from_job(answer.job)


def _same(answer: Any) -> Any:
    return answer


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """An object in the broker's bucket that contains jobs."""

    key: Annotated[str, Meta(pattern=f"^{KEY_PATTERN}$")]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    jobs: Annotated[int, Meta(ge=1, le=PART_JOBS_MAX)]
    bytes: Annotated[int, Meta(ge=1, le=PART_BYTES_MAX)]


class AdmitRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Staged jobs to add, once per batch of a source."""

    source: Name
    batch: Natural
    parts: Annotated[list[Part], Meta(min_length=1, max_length=ADMITTED_PARTS_MAX)]
    skip_known: bool = False
    """Skip jobs whose id is in the queue already, instead of refusing all."""


class GiveBackRequest(Struct, frozen=True, forbid_unknown_fields=True):
    token: Natural


class PurgeRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    entrypoint: Name | None = None
    zone: Name | None = None
    """Left out: all jobs, with and without a zone."""


class RequeueRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    older: Seconds
    """Seconds since the last heartbeat, by the broker's clock."""
    entrypoint: Name | None = None
    zone: Name | None = None
    """Left out: all jobs, with and without a zone."""


class GateRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of the whole queue, or of one entrypoint."""

    gate: Gate
    entrypoint: Name | None = None


class ZoneRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A zone's share of the turns, and its limits. Fields left out are unlimited."""

    zone: Name
    weight: Annotated[float, Meta(ge=checks.ZONE_WEIGHTS[0], le=checks.ZONE_WEIGHTS[1])] = 1.0
    """Twice the weight, twice the jobs."""
    running_max: Annotated[int, Meta(ge=1, le=INT64_MAX)] | None = None
    """Maximum number of its jobs that run at a time."""
    per_second: Annotated[float, Meta(ge=checks.ZONE_RATES[0], le=checks.ZONE_RATES[1])] | None = None
    """Maximum number of its jobs that are claimed per second."""
    paused: bool = False
    """None of its jobs are claimed."""


class ZoneLeaseRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Take exclusive hold of a zone."""

    zone: Name
    lease: Seconds | None = None
    """Seconds that it lasts without a heartbeat. Left out: the queue's default."""
    worker: Name | None = None


class MaybeZoneLease(Struct, frozen=True):
    lease: ZoneLeaseOf | None
    """null if the zone is leased already, or has no jobs."""


class Purged(Struct, frozen=True):
    purged: int


class Requeued(Struct, frozen=True):
    requeued: int


class Schedules(Struct, frozen=True):
    schedules: list[ScheduleOf]


class RescheduleRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fields left out stay unchanged."""

    run_at: datetime | None = None
    """A time in the past means now."""
    priority: Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None


SIMPLE_VERBS = (
    SimpleVerb(
        route=Route(
            method="POST",
            path="/v1/admit",
            verb="admit",
            summary="Add the jobs of staged objects in one commit, once for each batch of a source",
            body=AdmitRequest,
            answer=Admission,
            refusals=(errors.QueueDrainingError,),
        ),
        kind=Admit,
        read=lambda c: Admit(
            c.body.source,
            c.body.batch,
            tuple(StagedPart(p.key, p.sha256, p.jobs, p.bytes) for p in c.body.parts),
            c.body.skip_known,
        ),
        body=lambda r: AdmitRequest(
            r.source, r.batch, [Part(p.key, p.sha256, p.jobs, p.bytes) for p in r.parts], r.skip_known
        ),
        encode_answer=_same,
        decode_answer=_same,
        patience_s=60.0,
    ),
    SimpleVerb(
        route=Route(
            method="POST",
            path="/v1/jobs/{id}/give-back",
            verb="give_back",
            summary="Return a claim that was not worked on; it does not count as an attempt",
            body=GiveBackRequest,
            refusals=LEASE,
        ),
        kind=GiveBack,
        read=lambda c: GiveBack(c.job_id, c.body.token),
        path_field="job_id",
        body=lambda r: GiveBackRequest(r.token),
    ),
    SimpleVerb(
        route=Route(
            method="POST",
            path="/v1/jobs/{id}/cancel",
            verb="cancel",
            summary="Take a waiting or running job out of the queue",
            body=Nothing,
            body_optional=True,
            repeatable=True,
            refusals=(errors.JobNotFoundError, errors.JobStateError),
        ),
        kind=Cancel,
        read=lambda c: Cancel(c.job_id, c.request_id),
        path_field="job_id",
    ),
    SimpleVerb(
        route=Route(
            method="POST",
            path="/v1/jobs/{id}/retry",
            verb="retry",
            summary="Give a dead job a fresh set of attempts",
            body=Nothing,
            body_optional=True,
            answer=MaybeJob,
            repeatable=True,
            refusals=(errors.JobNotFoundError, errors.JobStateError, errors.DuplicateKeyError),
        ),
        kind=Retry,
        read=lambda c: Retry(c.job_id, c.request_id),
        path_field="job_id",
        encode_answer=maybe_job,
        decode_answer=from_maybe_job,
    ),
    SimpleVerb(
        route=Route(
            method="POST",
            path="/v1/jobs/{id}/reschedule",
            verb="reschedule",
            summary="Have a waiting job run at another time, with another priority, or both",
            body=RescheduleRequest,
            answer=MaybeJob,
            repeatable=True,
            refusals=(errors.JobNotFoundError, errors.JobStateError),
        ),
        kind=Reschedule,
        read=lambda c: Reschedule(
            c.job_id,
            None if c.body.run_at is None else checks.moment_ms("run_at", c.body.run_at),
            c.body.priority,
            c.request_id,
        ),
        path_field="job_id",
        body=lambda r: RescheduleRequest(None if r.run_at_ms is None else from_ms(r.run_at_ms), r.priority),
        encode_answer=maybe_job,
        decode_answer=from_maybe_job,
    ),
    SimpleVerb(
        route=Route(
            method="POST",
            path="/v1/purge",
            verb="purge",
            summary="Remove dead jobs for good, of one entrypoint or all",
            body=PurgeRequest,
            body_optional=True,
            answer=Purged,
            repeatable=True,
        ),
        kind=Purge,
        read=lambda c: Purge(c.body.entrypoint, c.request_id, c.body.zone),
        body=lambda r: PurgeRequest(r.entrypoint, r.zone),
        encode_answer=Purged,
        decode_answer=lambda m: m.purged,
    ),
    SimpleVerb(
        route=Route(
            method="POST",
            path="/v1/requeue",
            verb="requeue_stale",
            summary="Take back running jobs whose last sign of life is older than this",
            body=RequeueRequest,
            answer=Requeued,
            repeatable=True,
        ),
        kind=RequeueStale,
        read=lambda c: RequeueStale(
            checks.span_ms("older", c.body.older), c.body.entrypoint, c.request_id, c.body.zone
        ),
        body=lambda r: RequeueRequest(r.older_ms / 1000, r.entrypoint, r.zone),
        encode_answer=Requeued,
        decode_answer=lambda m: m.requeued,
    ),
    SimpleVerb(
        route=Route(
            method="POST",
            path="/v1/gate",
            verb="set_gate",
            summary="Pause, drain or open the queue, or one entrypoint",
            body=GateRequest,
            repeatable=True,
        ),
        kind=SetGate,
        read=lambda c: SetGate(c.body.gate, c.body.entrypoint, c.request_id),
        body=lambda r: GateRequest(r.gate, r.entrypoint),
    ),
    SimpleVerb(
        route=Route(
            method="POST",
            path="/v1/zones",
            verb="set_zone",
            summary="Say what share of the turns a zone has, and what holds it back",
            body=ZoneRequest,
            repeatable=True,
        ),
        kind=SetZone,
        read=lambda c: SetZone(
            c.body.zone, ZoneRules(c.body.weight, c.body.running_max, c.body.per_second, c.body.paused), c.request_id
        ),
        body=lambda r: ZoneRequest(r.zone, r.rules.weight, r.rules.running_max, r.rules.per_second, r.rules.paused),
    ),
    SimpleVerb(
        route=Route(
            method="POST",
            path="/v1/zones/lease",
            verb="lease_zone",
            summary="Lease a zone: until the lease ends, only claims that show it get the zone's jobs",
            body=ZoneLeaseRequest,
            answer=MaybeZoneLease,
            repeatable=True,
        ),
        kind=LeaseZone,
        read=lambda c: LeaseZone(
            c.body.zone,
            None if c.body.lease is None else max(1, checks.span_ms("lease", c.body.lease)),
            c.body.worker,
            c.request_id,
        ),
        body=lambda r: ZoneLeaseRequest(r.zone, None if r.lease_ms is None else r.lease_ms / 1000, r.worker),
        encode_answer=lambda lease: MaybeZoneLease(None if lease is None else to_zone_lease(lease)),
        decode_answer=lambda m: None if m.lease is None else from_zone_lease(m.lease),
    ),
    SimpleVerb(
        route=Route(
            method="POST",
            path="/v1/zones/heartbeat",
            verb="heartbeat_zone",
            summary="Let the lease of a zone start again at full length",
            body=ZoneToken,
            answer=ZoneLeaseOf,
            refusals=(errors.ZoneLeaseLostError,),
        ),
        kind=HeartbeatZone,
        read=lambda c: HeartbeatZone(c.body.zone, c.body.token),
        body=lambda r: ZoneToken(r.zone, r.token),
        encode_answer=to_zone_lease,
        decode_answer=from_zone_lease,
    ),
    SimpleVerb(
        route=Route(
            method="POST",
            path="/v1/zones/release",
            verb="release_zone",
            summary="Let others have the zone; a lease that is over already is left alone",
            body=ZoneToken,
        ),
        kind=ReleaseZone,
        read=lambda c: ReleaseZone(c.body.zone, c.body.token),
        body=lambda r: ZoneToken(r.zone, r.token),
    ),
    SimpleVerb(
        route=Route(
            method="GET",
            path="/v1/stats",
            verb="stats",
            summary="Jobs by state, gates, and the position of the last commit",
            answer=Stats,
        ),
        kind=GetStats,
        read=lambda _: GetStats(),
        encode_answer=_same,
        decode_answer=_same,
    ),
    SimpleVerb(
        route=Route(
            method="GET",
            path="/v1/schedules",
            verb="schedules",
            summary="The schedules of the queue",
            answer=Schedules,
        ),
        kind=ListSchedules,
        read=lambda _: ListSchedules(),
        encode_answer=lambda found: Schedules([to_schedule(one) for one in found]),
        decode_answer=lambda m: [from_schedule(one) for one in m.schedules],
    ),
    SimpleVerb(
        route=Route(
            method="POST",
            path="/v1/schedules/{id}/pause",
            verb="pause_schedule",
            summary="No more ticks; what passes meanwhile is not made up for",
            body=Nothing,
            body_optional=True,
            answer=ScheduleOf,
            refusals=(errors.ScheduleNotFoundError,),
        ),
        kind=PauseSchedule,
        read=lambda c: PauseSchedule(c.job_id, paused=True),
        path_field="name",
        encode_answer=to_schedule,
        decode_answer=from_schedule,
        applies=lambda r: r.paused,
    ),
    SimpleVerb(
        route=Route(
            method="POST",
            path="/v1/schedules/{id}/resume",
            verb="resume_schedule",
            summary="Ticks again, from now on",
            body=Nothing,
            body_optional=True,
            answer=ScheduleOf,
            refusals=(errors.ScheduleNotFoundError,),
        ),
        kind=PauseSchedule,
        read=lambda c: PauseSchedule(c.job_id, paused=False),
        path_field="name",
        encode_answer=to_schedule,
        decode_answer=from_schedule,
        applies=lambda r: not r.paused,
    ),
    SimpleVerb(
        route=Route(
            method="POST",
            path="/v1/schedules/{id}/drop",
            verb="drop_schedule",
            summary="Forget a schedule; the jobs that it has become stay",
            body=Nothing,
            body_optional=True,
            refusals=(errors.ScheduleNotFoundError,),
        ),
        kind=DropSchedule,
        read=lambda c: DropSchedule(c.job_id),
        path_field="name",
    ),
)


def simple_verb_for(request: Request[Any]) -> SimpleVerb | None:
    """The entry for a request; None if the request is not one of these verbs."""
    return next((one for one in _BY_KIND.get(type(request), ()) if one.applies(request)), None)


BY_VERB = {one.route.verb: one for one in SIMPLE_VERBS}
_BY_KIND: dict[type[Request[Any]], list[SimpleVerb]] = {}
for _one in SIMPLE_VERBS:
    _BY_KIND.setdefault(_one.kind, []).append(_one)
