"""The table of what can be asked: what the server serves and what the OpenAPI document describes."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import msgspec
from msgspec import UnsetType

from casque import errors
from casque.errors import CasqueError
from casque.service import ArchivedJob, Stats
from casque.transport.http.messages import (
    AckRequest,
    AdmitRequest,
    ArchiveQuery,
    Beats,
    Claim,
    EventLine,
    EventsQuery,
    GateRequest,
    GiveBackRequest,
    HeartbeatRequest,
    HeartbeatsRequest,
    Job,
    Jobs,
    JobsPage,
    JobsQuery,
    MaybeJob,
    MaybeZoneLease,
    NackRequest,
    NewJob,
    NewSchedule,
    Nothing,
    PeekedZones,
    PeekQuery,
    Purged,
    PurgeRequest,
    Requeued,
    RequeueRequest,
    ScheduleOf,
    Schedules,
    Settled,
    SettleRequest,
    ZoneLeaseOf,
    ZoneLeaseRequest,
    ZoneRequest,
    Zones,
    ZonesQuery,
    ZoneToken,
)
from casque.types import Admission

JSON = "application/json"
EVENTS = "text/event-stream"
LINES = "application/jsonl"

LEASE = (errors.JobNotFoundError, errors.LeaseLostError)
HISTORY = (errors.NoHistoryError, errors.HistoryGoneError)


def _is_list(kind: Any) -> bool:
    return any(get_origin(one) is list for one in (get_args(kind) or (kind,)) if one is not UnsetType)


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be asked."""

    method: str
    path: str
    verb: str
    summary: str
    answer: Any = None
    """The type of the answer; None: nothing but a status."""
    media: str = JSON
    body: Any = None
    body_optional: bool = False
    body_max: int | None = 4 * 1024 * 1024
    """Bytes that are read of it; None: as many as the server reads of any. Only payloads and results need so many."""
    query: Any = None
    repeatable: bool = False
    """Whether an `Idempotency-Key` makes it safe to repeat."""
    resumable: bool = False
    """Whether a `Last-Event-ID` says where to go on."""
    refusals: tuple[type[CasqueError], ...] = ()
    """Errors beyond those that every call may meet."""
    decoder: msgspec.json.Decoder[Any] | None = None
    query_lists: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.body is not None:
            msgspec.structs.force_setattr(self, "decoder", msgspec.json.Decoder(self.body))
        if self.query is not None:
            lists = [field.name for field in msgspec.structs.fields(self.query) if _is_list(field.type)]
            msgspec.structs.force_setattr(self, "query_lists", frozenset(lists))


ROUTES = (
    Route(
        method="POST",
        path="/v1/jobs",
        verb="enqueue",
        summary="Add one job, or an array of jobs: all of them or none",
        body=NewJob | list[NewJob],
        body_max=None,
        answer=Jobs,
        repeatable=True,
        refusals=(errors.DuplicateKeyError, errors.JobStateError, errors.QueueDrainingError),
    ),
    Route(
        method="POST",
        path="/v1/admit",
        verb="admit",
        summary="Add the jobs of staged objects in one commit, once for each batch of a source",
        body=AdmitRequest,
        answer=Admission,
        refusals=(errors.QueueDrainingError,),
    ),
    Route(
        method="GET",
        path="/v1/jobs",
        verb="jobs",
        summary="List unfinished and dead jobs in enqueue order, a page at a time",
        query=JobsQuery,
        answer=JobsPage,
    ),
    Route(
        method="POST",
        path="/v1/jobs/claim",
        verb="claim",
        summary="Claim due jobs, or wait for a first one",
        body=Claim,
        body_optional=True,
        answer=Jobs,
        repeatable=True,
        refusals=(errors.ZoneLeaseLostError,),
    ),
    Route(
        method="GET",
        path="/v1/jobs/{id}",
        verb="find",
        summary="A job that is in the queue: waiting, running or dead",
        answer=Job,
        refusals=(errors.JobNotFoundError,),
    ),
    Route(
        method="POST",
        path="/v1/jobs/{id}/ack",
        verb="ack",
        summary="The job is done",
        body=AckRequest,
        body_optional=True,
        repeatable=True,
        refusals=(*LEASE, errors.JobStateError),
    ),
    Route(
        method="POST",
        path="/v1/jobs/{id}/nack",
        verb="nack",
        summary="The job failed: again later, or dead if this was its last attempt",
        body=NackRequest,
        body_optional=True,
        answer=MaybeJob,
        repeatable=True,
        refusals=(*LEASE, errors.JobStateError),
    ),
    Route(
        method="POST",
        path="/v1/jobs/{id}/heartbeat",
        verb="heartbeat",
        summary="Still at it: the lease starts again at full length",
        body=HeartbeatRequest,
        body_optional=True,
        answer=Job,
        refusals=LEASE,
    ),
    Route(
        method="POST",
        path="/v1/jobs/{id}/give-back",
        verb="give_back",
        summary="Return a claim that was not worked on; it does not count as an attempt",
        body=GiveBackRequest,
        refusals=LEASE,
    ),
    Route(
        method="POST",
        path="/v1/jobs/{id}/cancel",
        verb="cancel",
        summary="Take a waiting or running job out of the queue",
        body=Nothing,
        body_optional=True,
        repeatable=True,
        refusals=(errors.JobNotFoundError, errors.JobStateError),
    ),
    Route(
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
    Route(
        method="POST",
        path="/v1/settle",
        verb="settle",
        summary="Ack and nack many jobs in one commit; one that is refused does not harm the others",
        body=SettleRequest,
        body_max=None,
        answer=Settled,
        repeatable=True,
    ),
    Route(
        method="POST",
        path="/v1/heartbeats",
        verb="heartbeats",
        summary="Renew many leases at once; each has an answer of its own",
        body=HeartbeatsRequest,
        body_max=16 * 1024 * 1024,
        answer=Beats,
    ),
    Route(
        method="POST",
        path="/v1/purge",
        verb="purge",
        summary="Remove dead jobs for good, of one entrypoint or all",
        body=PurgeRequest,
        body_optional=True,
        answer=Purged,
        repeatable=True,
    ),
    Route(
        method="POST",
        path="/v1/requeue",
        verb="requeue_stale",
        summary="Take back running jobs whose last sign of life is older than this",
        body=RequeueRequest,
        answer=Requeued,
        repeatable=True,
    ),
    Route(
        method="POST",
        path="/v1/gate",
        verb="set_gate",
        summary="Pause, drain or open the queue, or one entrypoint",
        body=GateRequest,
        repeatable=True,
    ),
    Route(
        method="POST",
        path="/v1/zones",
        verb="set_zone",
        summary="Say what share of the turns a zone has, and what holds it back",
        body=ZoneRequest,
        repeatable=True,
    ),
    Route(
        method="GET",
        path="/v1/zones",
        verb="zones",
        summary="The zones that have jobs or rules, those whose jobs have been due longest first",
        query=ZonesQuery,
        answer=Zones,
    ),
    Route(
        method="GET",
        path="/v1/zones/peek",
        verb="peek_zones",
        summary="Zones with work that nobody has leased and nothing holds back, by vesting time",
        query=PeekQuery,
        answer=PeekedZones,
    ),
    Route(
        method="POST",
        path="/v1/zones/lease",
        verb="lease_zone",
        summary="Have a zone for oneself: only whoever shows the lease is given its jobs",
        body=ZoneLeaseRequest,
        answer=MaybeZoneLease,
        repeatable=True,
    ),
    Route(
        method="POST",
        path="/v1/zones/heartbeat",
        verb="heartbeat_zone",
        summary="Let the lease of a zone start again at full length",
        body=ZoneToken,
        answer=ZoneLeaseOf,
        refusals=(errors.ZoneLeaseLostError,),
    ),
    Route(
        method="POST",
        path="/v1/zones/release",
        verb="release_zone",
        summary="Let others have the zone; a lease that is over already is left alone",
        body=ZoneToken,
    ),
    Route(
        method="GET",
        path="/v1/stats",
        verb="stats",
        summary="Jobs by state, gates, and the position of the last commit",
        answer=Stats,
    ),
    Route(
        method="POST",
        path="/v1/schedules",
        verb="set_schedule",
        summary="Have a job added at every tick of a cron expression; the same once more changes nothing",
        body=NewSchedule,
        answer=ScheduleOf,
    ),
    Route(
        method="GET",
        path="/v1/schedules",
        verb="schedules",
        summary="The schedules of the queue",
        answer=Schedules,
    ),
    Route(
        method="POST",
        path="/v1/schedules/{id}/pause",
        verb="pause_schedule",
        summary="No more ticks; what passes meanwhile is not made up for",
        body=Nothing,
        body_optional=True,
        answer=ScheduleOf,
        refusals=(errors.ScheduleNotFoundError,),
    ),
    Route(
        method="POST",
        path="/v1/schedules/{id}/resume",
        verb="resume_schedule",
        summary="Ticks again, from now on",
        body=Nothing,
        body_optional=True,
        answer=ScheduleOf,
        refusals=(errors.ScheduleNotFoundError,),
    ),
    Route(
        method="POST",
        path="/v1/schedules/{id}/drop",
        verb="drop_schedule",
        summary="Forget a schedule; the jobs that it has become stay",
        body=Nothing,
        body_optional=True,
        refusals=(errors.ScheduleNotFoundError,),
    ),
    Route(
        method="GET",
        path="/v1/events",
        verb="events",
        summary="What happens to the queue, as server-sent events",
        query=EventsQuery,
        answer=EventLine,
        media=EVENTS,
        resumable=True,
        refusals=HISTORY,
    ),
    Route(
        method="GET",
        path="/v1/archive",
        verb="archive",
        summary="Finished jobs, one line of JSON each",
        query=ArchiveQuery,
        answer=ArchivedJob,
        media=LINES,
        refusals=HISTORY,
    ),
)

COMMON: tuple[type[CasqueError], ...] = (
    errors.InvalidInputError,
    errors.NotAuthenticatedError,
    errors.NotAllowedError,
    errors.ReadOnlyError,
    errors.QueueLedError,
    errors.LimitReachedError,
    errors.NoLeaderError,
    errors.QueueClosedError,
    errors.CASConflictError,
    errors.StorageError,
    errors.StoreAccessError,
    errors.UnknownOutcomeError,
    errors.LeadershipLostError,
    errors.QueueReplacedError,
    errors.CorruptQueueError,
)
"""What any call may meet."""
