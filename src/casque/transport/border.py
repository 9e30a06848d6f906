"""The border of a broker: everything that comes from a wire is checked here before it reaches the queue.

Two checks, in this order: may this caller do this, and is every argument valid. The queue behind trusts its callers, as
a library does; one value of the wrong type would end its commit loop for all callers. A refused call raises one of
`casque.errors` and has changed nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from casque import checks, cron
from casque.codec.staged import checked_parts
from casque.errors import (
    CasqueError,
    InvalidInputError,
    LimitReachedError,
    NotAllowedError,
    NotAuthenticatedError,
    ScheduleNotFoundError,
)
from casque.fields import SPEC, SetBy
from casque.service import (
    ArchivedJob,
    EventKind,
    Lease,
    Outcome,
    QueueEvent,
    QueueService,
    ScopedService,
    Stats,
    check_outcome,
    requests,
)
from casque.service.requests import (
    Ack,
    Adopt,
    AskKnown,
    CopyGate,
    CopyZone,
    Dequeue,
    DropSchedule,
    Enqueue,
    GetStats,
    GiveBack,
    HasDue,
    Heartbeat,
    Heartbeats,
    HeartbeatZone,
    LeaseZone,
    ListJobs,
    ListSchedules,
    ListZones,
    Nack,
    PauseSchedule,
    PeekZones,
    Purge,
    ReleaseZone,
    Request,
    RequeueStale,
    SetGate,
    SetSchedule,
    Settle,
    SetZone,
    is_named,
    verb_of,
)
from casque.state.request_ids import scoped_id
from casque.transport import audit
from casque.transport.access import TokenBook
from casque.transport.scopes import ANYBODY, Principal, Scope
from casque.transport.tenants import Naming
from casque.types import (
    Admission,
    Gates,
    JobRecord,
    JobSpec,
    JobState,
    Missed,
    PeekedZone,
    Progress,
    Schedule,
    ScheduleSpec,
    Totals,
    ZoneLease,
    ZoneStanding,
)

A = TypeVar("A")

Wrapper: TypeAlias = Callable[[QueueService], QueueService]
Admit: TypeAlias = Callable[[str | None], Wrapper]

_SPAN_MS_MAX = checks.LONGEST_S * 1000
_PRIORITY = 2**63
_PAGE = 1_000
_NO_FLAGS = (False, False, False, False, False)
_OTHERS = tuple(field for field in SPEC if field.gained or field.set_by is not SetBy.PRODUCER)
_others = attrgetter(*(field.spec or "" for field in _OTHERS))
_NO_OTHERS = tuple(field.default for field in _OTHERS)
"""Fields that few jobs have, and those that the queue itself adds to a job, such as the location of a payload."""
_ENDS = frozenset({EventKind.ACKED, EventKind.CANCELLED, EventKind.WITHDRAWN, EventKind.PURGED})


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a single call."""

    payload_bytes: int = 64 * 1024 * 1024
    """Size of a job's payload. Payloads too large for a commit go to `blobs/` long before this limit."""
    result_bytes: int = 256 * 1024
    """Size of a job's result, which is stored in the log and in the archive."""
    jobs_per_enqueue: int = 10_000
    jobs_per_dequeue: int = checks.BATCH_MAX
    outcomes_per_settle: int = checks.BATCH_MAX
    leases_per_heartbeat: int = 10_000
    entrypoints_per_dequeue: int = 1_000
    schedules_per_tenant: int = 100
    """Per token limited to zones or entrypoints. A queue holds at most 1,000 schedules in all."""
    wait_s: float = 300.0
    """How long a dequeue may wait for a first job. A caller that wants to wait longer calls again."""
    waits: int = 20_000
    """Dequeues of one principal that wait at the same time, on all wires together."""
    followers: int = 1_000
    """Readers of one principal that follow the events at the same time, on all wires together."""


DEFAULT_LIMITS = Limits()


def admit(book: TokenBook | None, limits: Limits = DEFAULT_LIMITS) -> Admit:
    """The hook that servers take: maps the value of an `Authorization` header to a wrapper for the queue.

    Without a book, every caller may do everything. Raises NotAuthenticatedError for a header without a valid token.
    """
    if book is None:
        anybody = _Admitted(ANYBODY, limits, None)
        return lambda _authorization: anybody
    return _Admission(book, limits)


def principal_of(wrapper: Wrapper) -> str | None:
    """The id of the token that a wrapper was made for; None without authentication."""
    key: str | None = getattr(wrapper, "principal_key", None)
    return key


class _Admission:
    def __init__(self, book: TokenBook, limits: Limits) -> None:
        self._book = book
        self._limits = limits
        self._admitted: dict[str | None, _Admitted] = {}
        """By token id; holds the tokens used since the broker started."""

    def __call__(self, authorization: str | None) -> Wrapper:
        principal = self._book.principal_for(authorization)
        admitted = self._admitted.get(principal.token)
        if admitted is None:
            admitted = self._admitted[principal.token] = _Admitted(principal, self._limits, self._book)
        return admitted


class _Admitted:
    """Puts the border of one caller around a queue, for every call of a session. The token is checked on each call,
    because a session may outlive it; the border is made once per leadership, not per call."""

    def __init__(self, principal: Principal, limits: Limits, book: TokenBook | None) -> None:
        self._principal = principal
        self._limits = limits
        self._book = book
        self._border: Border | None = None
        self._under_way = UnderWay()

    @property
    def principal_key(self) -> str | None:
        return self._principal.token

    def __call__(self, service: QueueService) -> QueueService:
        if self._book is not None:
            self._principal = self._book.current(self._principal)
        audit.calls_as(self._principal)
        border = self._border
        if border is None or border.service is not service or border.principal is not self._principal:
            border = self._border = Border(service, self._principal, self._limits, self._book, self._under_way)
        return border


class UnderWay:
    """Counts what one principal has under way, over all wires and connections."""

    __slots__ = ("followers", "waits")

    def __init__(self) -> None:
        self.waits = 0
        self.followers = 0


class Border(QueueService):
    """Satisfies `QueueService` in front of another one, for one caller.

    A long answer (`events`, `archive`) checks the token in `book` as it goes, and ends when the token does.
    """

    def __init__(
        self,
        service: QueueService,
        principal: Principal = ANYBODY,
        limits: Limits = DEFAULT_LIMITS,
        book: TokenBook | None = None,
        under_way: UnderWay | None = None,
    ) -> None:
        self.service = service
        self.principal = principal
        self._under_way = under_way or UnderWay()
        self._limits = limits
        self._book = book
        self._limited = principal.limited
        self._scope = None if principal == ANYBODY else principal.name
        self._naming = Naming(principal.reach) if self._limited else None
        """Puts the names that a limited caller chooses into its zones or entrypoints; see `tenants`."""
        self._scoped: QueueService | None = None if self._limited else service
        self._scopes = frozenset(scope for scope in Scope if principal.may(scope))

    @property
    def _own(self) -> QueueService:
        """The queue, restricted to the jobs and schedules that the caller may name; all others appear not to exist. The
        check happens where the call is carried out, because a name could change its owner after an earlier check."""
        if self._scoped is None:
            reach = msgspec.structs.replace(self.principal.reach, schedules_max=self._limits.schedules_per_tenant)
            self._scoped = cast(ScopedService, self.service).within(reach)
        return self._scoped

    def call(self, request: Request[A]) -> Awaitable[A]:
        kind = type(request)
        if kind.scope not in self._scopes:
            raise NotAllowedError(kind.scope.value, verb_of(kind))
        if is_named(kind) and request.request_id is not None:  # type: ignore[attr-defined]
            request = self._with_own_id(request)
        return cast("Awaitable[A]", getattr(self, _METHODS.get(kind, "_on_job"))(request))

    def _with_own_id(self, request: Any) -> Any:
        """Scope the request id to its caller: the same id from another caller is another request."""
        checks.name("request_id", request.request_id, checks.NAME_MAX)
        if self._scope is None:
            return request
        return msgspec.structs.replace(request, request_id=scoped_id(self._scope, request.request_id))

    # --- produce ---

    async def _enqueue(self, request: Enqueue) -> Sequence[JobRecord]:
        specs = request.specs
        if request.generation:
            raise InvalidInputError("generation is for the brokers of a ring among themselves: leave it out")
        self._check_specs(specs)
        if self._naming is None:
            return await self.service.call(request)
        for spec in specs:
            if not self.principal.reaches_entrypoint(spec.entrypoint):
                raise _beyond(request, f"the entrypoint {spec.entrypoint!r}")
            if not self.principal.reaches_zone(spec.zone):
                raise _beyond(request, "jobs without a zone" if spec.zone is None else f"the zone {spec.zone!r}")
        specs = tuple([self._naming.scoped_spec(spec) for spec in specs])
        added = await self.service.call(msgspec.structs.replace(request, specs=specs))
        return [self._own_or_as_asked(job, spec) for job, spec in zip(added, specs, strict=True)]

    def _admit(self, request: requests.Admit) -> Awaitable[Admission]:
        """Checks the request only; the queue checks the contents of the parts when it reads them."""
        if request.generation:
            raise InvalidInputError("generation is for the brokers of a ring among themselves: leave it out")
        checks.source(request.source)
        checks.batch(request.batch)
        checked = checked_parts(request.parts)
        checks.flag("skip_known", request.skip_known)
        if self._limited:
            # Callers that can write staged objects bypass this border: they write to the bucket directly.
            raise _beyond(request, "every entrypoint and every zone")
        return self.service.call(msgspec.structs.replace(request, parts=checked))

    def _check_specs(self, specs: Any) -> None:
        """Accept all specs or none. A plain job costs no function call in this loop, to keep a bulk of 10,000 cheap."""
        if not isinstance(specs, list | tuple):
            raise InvalidInputError(f"specs must be a list of jobs, not {type(specs).__name__}")
        if len(specs) > self._limits.jobs_per_enqueue:
            raise InvalidInputError(
                f"specs must be at most {self._limits.jobs_per_enqueue:,} jobs in one enqueue, not {len(specs):,}; "
                "enqueue them in several calls"
            )
        payload_max = self._limits.payload_bytes
        # Most jobs of a bulk share these values, so each distinct one is checked once. The list is a start value that
        # equals none of them.
        checked: object = specs
        attempts: object = specs
        crashes: object = specs
        for spec in specs:
            if type(spec) is not JobSpec:
                raise InvalidInputError(f"specs must be jobs, not {type(spec).__name__}")
            job_id, payload, priority = spec.id, spec.payload, spec.priority
            if type(job_id) is not str or not 0 < len(job_id) <= checks.NAME_MAX or not job_id.isprintable():
                checks.name("id", job_id, checks.NAME_MAX)
            if spec.entrypoint is not checked:
                checked = checks.entrypoint(spec.entrypoint)
            if type(payload) is not bytes or len(payload) > payload_max:
                checks.blob("payload", payload, payload_max)
            if type(priority) is not int or not -_PRIORITY <= priority < _PRIORITY:
                checks.whole("priority", priority, -_PRIORITY)
            if spec.run_at_ms is not None:
                checks.whole("run_at_ms", spec.run_at_ms, *checks.MOMENTS_MS)
            if spec.max_attempts is not None and spec.max_attempts is not attempts:
                attempts = checks.whole("max_attempts", spec.max_attempts, 1)
            if spec.max_crashes is not None and spec.max_crashes is not crashes:
                crashes = checks.max_crashes(spec.max_crashes)
            if spec.key is not None:
                checks.name("key", spec.key, checks.KEY_MAX)
            if spec.headers is not None:
                if type(spec.headers) is not dict:
                    raise InvalidInputError(f"headers must map str to str, not be a {type(spec.headers).__name__}")
                checks.few_headers(spec.headers)
            if spec.zone is not None:
                checks.zone(spec.zone)
            if spec.fifo is not False:
                checks.flag("fifo", spec.fifo)
            if _others(spec) != _NO_OTHERS:
                _check_others(spec)

    def _own_or_as_asked(self, job: JobRecord, spec: JobSpec) -> JobRecord:
        """A caller that names the key or request id of a job outside its reach gets the job's id, as deduplication
        requires, but not its contents."""
        if self._reaches(job):
            return self._shown(job)
        return JobRecord(msgspec.structs.replace(spec, id=job.spec.id), 0, job.created_ms, JobState.READY, job.due_ms)

    # --- work ---

    async def _dequeue(self, request: Dequeue) -> list[JobRecord]:
        limits, entrypoints, zones = self._limits, request.entrypoints, request.zones
        if entrypoints is not None:
            self._check_entrypoints(entrypoints)
        checks.whole("limit", request.limit, 1, limits.jobs_per_dequeue)
        if request.first is not False:
            checks.flag("first", request.first)
        if request.lease_ms is not None:
            checks.whole("lease_ms", request.lease_ms, 1, _SPAN_MS_MAX)
        if request.worker is not None:
            checks.name("worker", request.worker, checks.NAME_MAX)
        checks.number("wait_s", request.wait_s, 0, limits.wait_s)
        if zones is not None:
            self._check_zones(zones)
        if request.zone_lease is not None:
            checks.shown_zone_lease(request.zone_lease, zones)
        if self._limited:
            entrypoints = self._own_entrypoints(request, entrypoints)
            if request.zone_lease is None:
                zones = self._own_zones(request, zones)
            else:
                self._own_zones(request, request.zone_lease[:1])
            request = msgspec.structs.replace(request, entrypoints=entrypoints, zones=zones)
        waits = request.wait_s > 0
        if waits:
            if self._under_way.waits >= limits.waits:
                raise LimitReachedError("dequeues that wait, of one token", limits.waits)
            self._under_way.waits += 1
        try:
            claimed = await self.service.call(request)
        finally:
            if waits:
                self._under_way.waits -= 1
        if claimed and waits and self._book is not None:
            await self._take_back_if_revoked(self._book, claimed)
        # The token may have been limited after it claimed these.
        return [self._shown(job) for job in claimed if self._reaches(job)] if self._limited else claimed

    async def _take_back_if_revoked(self, book: TokenBook, claimed: list[JobRecord]) -> None:
        """Give claimed jobs back if the token was revoked while its worker waited."""
        try:
            book.current(self.principal)
        except NotAuthenticatedError:
            for job in claimed:
                with suppress(CasqueError):  # the lease runs out instead
                    await self.service.call(GiveBack(job.spec.id, job.token))
            raise

    def _check_entrypoints(self, entrypoints: Any) -> None:
        if not isinstance(entrypoints, tuple) or not 1 <= len(entrypoints) <= self._limits.entrypoints_per_dequeue:
            raise InvalidInputError(
                f"entrypoints must be a tuple of 1 to {self._limits.entrypoints_per_dequeue} names, or None for any"
            )
        for entrypoint in entrypoints:
            checks.entrypoint(entrypoint)

    @staticmethod
    def _check_zones(zones: Any) -> None:
        if not isinstance(zones, tuple) or not 1 <= len(zones) <= checks.ZONES_MAX:
            raise InvalidInputError(f"zones must be a tuple of 1 to {checks.ZONES_MAX} names, or None for all")
        for zone in zones:
            checks.zone(zone)

    def _own_entrypoints(self, request: Request[Any], asked: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """The requested entrypoints that a limited worker may claim; no request means all of its own."""
        principal = self.principal
        if asked is None:
            if principal.entrypoints is None:
                return None
            exact = principal.exact()
            if exact is None:
                raise _beyond(request, "every entrypoint, or the names of those that it wants")
            return exact
        for entrypoint in asked:
            if not principal.reaches_entrypoint(entrypoint):
                raise _beyond(request, f"the entrypoint {entrypoint!r}")
        return asked

    def _own_zones(self, request: Request[Any], asked: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """The same for zones."""
        own = self.principal.zones
        if own is None or asked is None:
            return asked if own is None else tuple(sorted(own))
        for zone in asked:
            if zone not in own:
                raise _beyond(request, f"the zone {zone!r}")
        return asked

    def _ack(self, request: Ack) -> Awaitable[None]:
        _check_lease(request.job_id, request.token)
        if request.result is not None:
            checks.blob("result", request.result, self._limits.result_bytes)
        return self._own.call(request)

    async def _nack(self, request: Nack) -> JobRecord | None:
        _check_lease(request.job_id, request.token)
        if request.delay_ms is not None:
            checks.whole("delay_ms", request.delay_ms, 0, _SPAN_MS_MAX)
        if request.backoff is not None:
            checks.backoff(request.backoff)
        if request.error is not None:
            if type(request.error) is not str:
                raise InvalidInputError(f"error must be a str, not {type(request.error).__name__}")
            request = msgspec.structs.replace(request, error=checks.error_text(request.error))
        return self._own_or_none(await self._own.call(request))

    async def _settle(self, request: Settle) -> list[CasqueError | None]:
        outcomes = self._checked_outcomes(request.outcomes)
        return await self._own.call(Settle(tuple(outcomes), request.request_id)) if outcomes else []

    def _checked_outcomes(self, outcomes: Any) -> list[Outcome]:
        """A plain ack costs no function call in this loop, to keep a hundred thousand of them cheap."""
        most, result_max = self._limits.outcomes_per_settle, self._limits.result_bytes
        if not isinstance(outcomes, list | tuple) or len(outcomes) > most:
            raise InvalidInputError(f"outcomes must be a list of at most {most:,}; settle the rest in another call")
        checked: list[Outcome] = []
        for outcome in outcomes:
            if type(outcome) is not Outcome:
                raise InvalidInputError(f"outcomes must be outcomes, not {type(outcome).__name__}")
            job_id, token = outcome.job_id, outcome.token
            if type(job_id) is not str or not job_id.isascii() or len(job_id) > checks.KEY_MAX:
                _check_job_id(job_id)
            if type(token) is not int or not 0 <= token < _PRIORITY:
                checks.whole("token", token, 0)
            if outcome.result is not None:
                checks.blob("result", outcome.result, result_max)
            failed = outcome.error is not None or outcome.delay_ms is not None or outcome.backoff is not None
            flags = outcome.final, outcome.crashed, outcome.snoozed, outcome.cancelled, outcome.declined
            if failed or flags != _NO_FLAGS:
                outcome = _checked_outcome(outcome)  # noqa: PLW2901
            checked.append(outcome)
        return checked

    async def _heartbeat(self, request: Heartbeat) -> JobRecord:
        _check_lease(request.job_id, request.token)
        _check_progress(request.progress)
        return self._shown(await self._own.call(request))

    async def _heartbeats(self, request: Heartbeats) -> list[JobRecord | CasqueError]:
        most = self._limits.leases_per_heartbeat
        leases: Any = request.leases
        if not isinstance(leases, list | tuple) or len(leases) > most:
            raise InvalidInputError(f"leases must be a list of at most {most:,} leases")
        for lease in leases:
            if type(lease) is not Lease:
                raise InvalidInputError(f"leases must be leases, not {type(lease).__name__}")
            _check_lease(lease.job_id, lease.token)
            _check_progress(lease.progress)
        if not leases:
            return []
        beaten = await self._own.call(request)
        if self._naming is None:
            return beaten
        return [self._shown(one) if isinstance(one, JobRecord) else one for one in beaten]

    def _give_back(self, request: GiveBack) -> Awaitable[None]:
        _check_job_id(request.job_id)
        checks.whole("token", request.token, 0)
        return self._own.call(request)

    def _peek_zones(self, request: PeekZones) -> Awaitable[list[PeekedZone]]:
        entrypoints, names = request.entrypoints, request.names
        checks.whole("limit", request.limit, 1, checks.ZONES_SHOWN_MAX)
        if entrypoints is not None:
            self._check_entrypoints(entrypoints)
        if names is not None:
            names = self._checked_zones(names)
        if self._limited:
            entrypoints = self._own_entrypoints(request, entrypoints)
            if (own := self.principal.zones) is not None:
                names = own if names is None else names & own
        return self.service.call(PeekZones(entrypoints, names, request.limit))

    def _lease_zone(self, request: LeaseZone) -> Awaitable[ZoneLease | None]:
        self._check_whole_zone(request, request.zone)
        if request.lease_ms is not None:
            checks.whole("lease_ms", request.lease_ms, 1, _SPAN_MS_MAX)
        if request.worker is not None:
            checks.name("worker", request.worker, checks.NAME_MAX)
        return self.service.call(request)

    def _with_zone_lease(self, request: Any) -> Awaitable[Any]:
        self._check_whole_zone(request, request.zone)
        checks.whole("token", request.token, 0)
        return self.service.call(request)

    def _check_whole_zone(self, request: Request[Any], zone: str) -> None:
        """Require reach over the whole zone: its holder keeps all of the zone's jobs from other workers."""
        checks.zone(zone)
        if self._limited:
            if self.principal.entrypoints is not None:
                raise _beyond(request, "every entrypoint")
            self._own_zones(request, (zone,))

    # --- admin ---

    async def _on_job(self, request: Any) -> JobRecord | None:
        """Handle a request that names one job and no lease."""
        _check_job_id(request.job_id)
        request.check()
        return self._own_or_none(await self._own.call(request))

    def _purge(self, request: Purge) -> Awaitable[int]:
        self._check_managed_all(request, request.entrypoint, request.zone)
        return self.service.call(request)

    def _requeue_stale(self, request: RequeueStale) -> Awaitable[int]:
        checks.whole("older_ms", request.older_ms, 0, checks.LONGEST_S * 1000)
        self._check_managed_all(request, request.entrypoint, request.zone)
        return self.service.call(request)

    def _set_gate(self, request: SetGate) -> Awaitable[None]:
        gate = checks.gate(request.gate)
        self._check_managed_all(request, request.entrypoint, None)
        return self.service.call(SetGate(gate, request.entrypoint, request.request_id))

    def _set_zone(self, request: SetZone) -> Awaitable[None]:
        """Only for callers that manage all zones: a caller limited to one zone could give it the whole queue."""
        checks.zone(request.zone)
        checks.zone_rules(request.rules)
        if self._limited:
            raise _beyond(request, "every entrypoint and every zone")
        return self.service.call(request)

    def _check_managed_all(self, request: Request[Any], entrypoint: str | None, zone: str | None) -> None:
        """Require that the caller may do this to all jobs of the entrypoint, of the zone, or of the queue."""
        if zone is not None:
            checks.zone(zone)
        if entrypoint is not None:
            checks.entrypoint(entrypoint)
        if self._limited:
            if (own := self.principal.zones) is not None and zone not in own:
                raise _beyond(request, "every zone" if zone is None else f"the zone {zone!r}")
            if entrypoint is None:
                if self.principal.entrypoints is not None:
                    raise _beyond(request, "every entrypoint, or the name of one")
            elif not self.principal.reaches_entrypoint(entrypoint):
                raise _beyond(request, f"the entrypoint {entrypoint!r}")

    # --- schedules: to set one is to produce, to end one is for those who manage ---

    async def _set_schedule(self, request: SetSchedule) -> Schedule:
        spec = request.spec
        if type(spec) is not ScheduleSpec or type(spec.job) is not JobSpec or type(spec.missed) is not Missed:
            raise InvalidInputError(f"spec must be a schedule, not {type(spec).__name__}")
        checks.schedule(spec.name)
        cron.parse(checks.text("cron", spec.cron, cron.EXPRESSION_MAX), cron.zone(spec.tz))
        if spec.origin is not None:
            checks.name("origin", spec.origin, checks.NAME_MAX)
        job = spec.job
        if job.id != "" or job.run_at_ms is not None:
            raise InvalidInputError("the job of a schedule has no id and no time of its own: each tick gives it both")
        checks.blob("payload", job.payload, checks.SCHEDULED_BYTES_MAX)
        self._check_specs([msgspec.structs.replace(job, id="-")])
        if self._naming is not None:
            if not self._reaches_spec(job):
                raise _beyond(request, f"the entrypoint {job.entrypoint!r} and its zone")
            spec = self._naming.scoped_schedule(spec, await self._stored_name(spec.name))
        return self._shown_schedule(await self._own.call(SetSchedule(spec)))

    async def _stored_name(self, name: str) -> str | None:
        """The stored name of the schedule that this caller knows as `name`."""
        assert self._naming is not None
        for schedule in await self.service.call(ListSchedules()):
            if self._reaches_spec(schedule.spec.job) and self._naming.is_called(schedule, name):
                return schedule.name
        return None

    async def _list_schedules(self, request: ListSchedules) -> list[Schedule]:
        found = await self.service.call(request)
        if not self._limited:
            return found
        return [self._shown_schedule(one) for one in found if self._reaches_spec(one.spec.job)]

    async def _pause_schedule(self, request: PauseSchedule) -> Schedule:
        name, paused = await self._checked_name(request.name), checks.flag("paused", request.paused)
        return self._shown_schedule(await self._own.call(PauseSchedule(name, paused)))

    async def _drop_schedule(self, request: DropSchedule) -> None:
        await self._own.call(DropSchedule(await self._checked_name(request.name)))

    async def _checked_name(self, name: str) -> str:
        """The checked form of `_stored_name`."""
        checks.text("name", name, checks.KEY_MAX)
        if self._naming is None:
            return name
        stored = await self._stored_name(name)
        if stored is None:
            raise ScheduleNotFoundError(name)
        return stored

    def _shown_schedule(self, schedule: Schedule) -> Schedule:
        return schedule if self._naming is None else self._naming.shown_schedule(schedule)

    def _reaches_spec(self, spec: JobSpec) -> bool:
        return self.principal.reaches(spec.entrypoint, spec.zone)

    # --- read ---

    def _list_zones(self, request: ListZones) -> Awaitable[list[ZoneStanding]]:
        checks.whole("limit", request.limit, 1, checks.ZONES_SHOWN_MAX)
        names = None if request.names is None else self._checked_zones(request.names)
        if self.principal.entrypoints is not None:
            raise _beyond(request, "every entrypoint")
        if (own := self.principal.zones) is not None:
            names = own if names is None else names & own
        return self.service.call(ListZones(names, request.limit))

    @staticmethod
    def _checked_zones(names: Any) -> frozenset[str]:
        if not isinstance(names, frozenset) or len(names) > checks.ZONES_MAX:
            raise InvalidInputError(f"names must be a frozenset of at most {checks.ZONES_MAX} zones, or None")
        return frozenset(checks.zone(name) for name in names)

    async def _list_jobs(self, request: ListJobs) -> list[JobRecord]:
        states, entrypoint = checks.states(request.states), request.entrypoint
        self._check_shown(verb_of(ListJobs), entrypoint)
        if request.limit is not None:
            checks.whole("limit", request.limit, 1)
        checks.whole("after", request.after, 0)
        request = msgspec.structs.replace(request, states=states)
        if not self._limited:
            return await self.service.call(request)
        if entrypoint is None:
            exact = self.principal.exact()
            entrypoint = exact[0] if exact is not None and len(exact) == 1 else None
            request = msgspec.structs.replace(request, entrypoint=entrypoint)
        if request.limit is None:
            return [self._shown(job) for job in await self.service.call(request) if self._reaches(job)]
        return await self._own_page(request, request.limit)

    async def _own_page(self, request: ListJobs, limit: int) -> list[JobRecord]:
        """The queue cannot skip jobs outside the caller's reach, so ask for more pages until there are enough jobs."""
        found: list[JobRecord] = []
        size, after = max(limit, _PAGE), request.after
        while True:
            page = await self.service.call(msgspec.structs.replace(request, limit=size, after=after))
            found += [self._shown(job) for job in page if self._reaches(job)]
            if len(page) < size or len(found) >= limit:
                return found[:limit]
            after = page[-1].sequence

    async def _stats(self, request: GetStats) -> Stats:
        """Count a limited caller's own jobs that are in the queue; the activity of others stays hidden. Finished jobs
        are not counted by entrypoint anywhere, so they are left out."""
        if not self._limited:
            return await self.service.call(request)
        everything = await self.jobs()
        # Only the queue knows its own time, which decides which delayed jobs are ready.
        ready = {job.spec.id for job in await self.jobs(states=frozenset({JobState.READY}))}
        counts = dict.fromkeys(JobState, 0)
        for job in everything:
            waits = job.state in (JobState.READY, JobState.DELAYED)
            counts[JobState.READY if waits and job.spec.id in ready else job.state] += 1
        totals = Totals(
            enqueued=len(everything),
            ready=counts[JobState.READY],
            delayed=counts[JobState.DELAYED],
            running=counts[JobState.RUNNING],
            done=0,
            dead=counts[JobState.DEAD],
            cancelled=0,
        )
        found = await self.service.call(request)
        reached = {
            name: gate for name, gate in found.gates.entrypoints.items() if self.principal.reaches_entrypoint(name)
        }
        return Stats(found.position, totals, Gates(found.gates.queue, reached))

    def events(self, *, from_position: int | None = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        if Scope.READ not in self._scopes:
            raise NotAllowedError(Scope.READ.value, "events")
        if from_position is not None:
            checks.whole("from_position", from_position, 0)
        checks.flag("follow", follow)
        if self._limited:
            events = self._own_events(from_position, follow=follow)
        else:
            events = self.service.events(from_position=from_position, follow=follow)
            if self._book is not None:
                events = self._while_valid(events)
        return self._counted(events) if follow else events

    async def _counted(self, events: AsyncGenerator[QueueEvent]) -> AsyncGenerator[QueueEvent]:
        """Count a following reader from its first request until it ends."""
        async with aclosing(events):
            if self._under_way.followers >= self._limits.followers:
                raise LimitReachedError("readers that follow the events, of one token", self._limits.followers)
            self._under_way.followers += 1
            try:
                async for event in events:
                    yield event
            finally:
                self._under_way.followers -= 1

    async def _own_events(self, from_position: int | None, *, follow: bool) -> AsyncGenerator[QueueEvent]:
        """Most events name only a job, so track which jobs are the caller's own: those that exist now, and those added
        after the start position. Events of a job that existed at `from_position` and is gone by now are left out,
        because its owner is no longer known."""
        # Without a position: start reading before listing the jobs, and yielding after it, so that no job added in
        # between is missed.
        start = (await self.service.stats()).position if from_position is None else from_position
        own = {job.spec.id for job in await self.jobs()}
        if from_position is None:
            shown_after = (await self.service.stats()).position
        else:
            shown_after = from_position
            # Events with an id from before the current job of that id was added belong to another job, maybe of others.
            async with aclosing(self.service.events(from_position=start, follow=False)) as past:
                own -= {str(event.job_id) async for event in past if event.kind is EventKind.ADDED}
        events = self.service.events(from_position=start, follow=follow)
        async with aclosing(self._while_valid(events)) as valid:
            async for event in valid:
                if event.kind is EventKind.ADDED:
                    # The id may have belonged to another job before.
                    (own.add if self._reaches_fields(event) else own.discard)(str(event.job_id))
                if event.job_id in own and event.position > shown_after:
                    yield event if self._naming is None else self._naming.shown_event(event)
                if event.kind in _ENDS:
                    own.discard(str(event.job_id))

    def archive(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        entrypoint: str | None = None,
        states: frozenset[JobState] | None = None,
    ) -> AsyncGenerator[ArchivedJob]:
        if Scope.READ not in self._scopes:
            raise NotAllowedError(Scope.READ.value, "archive")
        if since is not None:
            checks.moment_ms("since", since)
        if until is not None:
            checks.moment_ms("until", until)
        self._check_shown("archive", entrypoint)
        states = checks.states(states)
        kept = self.service.archive(since=since, until=until, entrypoint=entrypoint, states=states)
        if self._limited:
            return self._own_archive(kept)
        return kept if self._book is None else self._while_valid(kept)

    async def _own_archive(self, kept: AsyncGenerator[ArchivedJob]) -> AsyncGenerator[ArchivedJob]:
        async with aclosing(self._while_valid(kept)) as valid:
            async for job in valid:
                if self.principal.reaches(job.entrypoint, job.zone):
                    yield job if self._naming is None else self._naming.shown_archived(job)

    async def _while_valid(self, answers: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
        """End the answer when the token is revoked."""
        async with aclosing(answers):
            async for answer in answers:
                if self._book is not None and self._book.current(self.principal) is not self.principal:
                    raise NotAuthenticatedError(f"the token {self.principal.name!r} has changed; ask again")
                yield answer

    def _check_shown(self, verb: str, entrypoint: str | None) -> None:
        if entrypoint is not None:
            checks.entrypoint(entrypoint)
            if self._limited and not self.principal.reaches_entrypoint(entrypoint):
                raise NotAllowedError(Scope.READ.value, verb, f"the entrypoint {entrypoint!r}")

    # --- whose job it is ---

    def _reaches(self, job: JobRecord) -> bool:
        return self.principal.reaches(job.spec.entrypoint, job.spec.zone)

    def _reaches_fields(self, event: QueueEvent) -> bool:
        return self.principal.reaches(event.fields["entrypoint"], event.fields.get("zone"))

    def _own_or_none(self, job: JobRecord | None) -> JobRecord | None:
        return None if job is None or (self._limited and not self._reaches(job)) else self._shown(job)

    def _shown(self, job: JobRecord) -> JobRecord:
        return job if self._naming is None else self._naming.shown_job(job)


def _beyond(request: Request[Any], reach: str) -> NotAllowedError:
    """The caller has the scope, but not for this job, zone or entrypoint."""
    return NotAllowedError(request.scope.value, verb_of(type(request)), reach)


def _check_others(spec: JobSpec) -> None:
    for field, value, default in zip(_OTHERS, _others(spec), _NO_OTHERS, strict=True):
        if value == default:
            continue
        if field.set_by is not SetBy.PRODUCER or field.check is None:
            raise InvalidInputError(f"{field.spec} is for the queue to set, not for its callers")
        if field.check(value) != value:
            raise InvalidInputError(f"{field.name} must be a {type(default).__name__}, not a {type(value).__name__}")


def _checked_outcome(outcome: Outcome) -> Outcome:
    check_outcome(outcome)
    if outcome.error is not None and type(outcome.error) is not str:
        raise InvalidInputError(f"error must be a str, not {type(outcome.error).__name__}")
    if outcome.delay_ms is not None:
        checks.whole("delay_ms", outcome.delay_ms, 0, _SPAN_MS_MAX)
    if outcome.backoff is not None:
        checks.backoff(outcome.backoff)
    return msgspec.structs.replace(outcome, error=checks.error_text(outcome.error))


def _check_job_id(job_id: Any) -> None:
    if type(job_id) is not str or not job_id.isascii() or len(job_id) > checks.KEY_MAX:
        checks.text("job_id", job_id, checks.KEY_MAX)


def _check_progress(progress: Any) -> None:
    if progress is not None:
        if type(progress) is not Progress:
            raise InvalidInputError(f"progress must be a Progress, not {type(progress).__name__}")
        checks.progress(progress.done, progress.total, progress.note)


def _check_lease(job_id: Any, token: Any) -> None:
    _check_job_id(job_id)
    if token is not None:
        checks.whole("token", token, 0)


_METHODS: dict[type[Request[Any]], str] = {
    Enqueue: "_enqueue",
    requests.Admit: "_admit",
    Dequeue: "_dequeue",
    Ack: "_ack",
    Nack: "_nack",
    Settle: "_settle",
    Heartbeat: "_heartbeat",
    Heartbeats: "_heartbeats",
    GiveBack: "_give_back",
    PeekZones: "_peek_zones",
    LeaseZone: "_lease_zone",
    HeartbeatZone: "_with_zone_lease",
    ReleaseZone: "_with_zone_lease",
    Purge: "_purge",
    RequeueStale: "_requeue_stale",
    SetGate: "_set_gate",
    SetZone: "_set_zone",
    SetSchedule: "_set_schedule",
    PauseSchedule: "_pause_schedule",
    DropSchedule: "_drop_schedule",
    ListJobs: "_list_jobs",
    GetStats: "_stats",
    ListZones: "_list_zones",
    ListSchedules: "_list_schedules",
    Adopt: "_adopt",
    AskKnown: "_known",
    CopyGate: "_copy_gate",
    CopyZone: "_copy_zone",
    HasDue: "_has_due",
}
"""Requests for shards are in `shard_border`: no caller of this border has their scope. The others name one job."""
