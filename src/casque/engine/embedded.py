"""The queue service inside this process: builds commands and passes them to an executor."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, Self, TypeVar, Unpack, cast

import msgspec

from casque.clock import yield_once
from casque.engine.blobs import Blobs
from casque.engine.group import GroupCommit
from casque.engine.history import History
from casque.engine.operation import Executor
from casque.engine.staging import Staging
from casque.engine.ticker import first_tick_ms
from casque.errors import (
    CasqueError,
    CorruptQueueError,
    InvalidInputError,
    JobNotFoundError,
    LeaseLostError,
    NoHistoryError,
    ScheduleNotFoundError,
    StorageError,
    UnknownOutcomeError,
)
from casque.service import ArchivedJob, ArchiveFilter, Outcome, OutcomeKind, QueueEvent, QueueService, Stats, requests
from casque.service.requests import (
    Ack,
    Admit,
    Cancel,
    Dequeue,
    Enqueue,
    Find,
    GetStats,
    Heartbeat,
    Heartbeats,
    LeaseZone,
    ListJobs,
    ListSchedules,
    ListZones,
    Nack,
    PeekZones,
    Purge,
    Request,
    Settle,
)
from casque.settings import QueueSettings, milliseconds
from casque.state import Command, Expire, Observed, PauseSchedule, ReturnUnseen, SetSchedule, State
from casque.state.standing import ZoneScan
from casque.tasks import Background
from casque.telemetry import logger
from casque.types import (
    Admission,
    Backoff,
    JobRecord,
    JobSpec,
    JobState,
    PeekedZone,
    Reach,
    Schedule,
    ScheduleSpec,
    ZoneLease,
    ZoneStanding,
)

A = TypeVar("A")

log = logger("engine")

LOOKED_AT_ONCE = 5_000
"""Jobs that a scan visits before it yields to other tasks: a few milliseconds."""

HELD_MAX = 10_000
PEEKED_AT_ONCE = 1_000
"""Entrypoints that one peek at zones visits before it yields."""


class EmbeddedService(QueueService):
    """Satisfies `QueueService` without any transport."""

    def __init__(
        self,
        executor: Executor,
        settings: QueueSettings,
        history: History | None = None,
        *,
        blobs: Blobs | None = None,
        staging: Staging | None = None,
    ) -> None:
        self._executor = executor
        self._history = history
        self._lease_ms = settings.lease_ms
        self._backoff = Backoff(milliseconds(settings.backoff_base), milliseconds(settings.backoff_cap))
        self._blobs = blobs
        self._staging = staging
        self._admitting = asyncio.Lock()
        self._scanning = asyncio.Lock()
        """Held by a scan over all jobs: several at once would starve other calls."""
        self._drops_blobs = not settings.archive  # otherwise they are deleted when the job is archived
        self._held: OrderedDict[str, str] = OrderedDict()
        """Payloads of claimed jobs, which only this process will delete."""
        self._returning = Background()
        self._reach: Reach | None = None

    def within(self, reach: Reach) -> Self:
        """The same queue, for a caller limited to some of its jobs."""
        scoped = copy(self)
        scoped._reach = reach  # noqa: SLF001  a copy of this very object
        return scoped

    def call(self, request: Request[A]) -> Awaitable[A]:
        """Most requests are carried out as they are; others need work before or after."""
        name = _METHODS.get(type(request))
        if name is None:
            try:
                # No coroutine in between: this is the busiest path.
                return self._executor.execute(cast(Command, request), self._reach)
            except CasqueError as error:
                # Return the error as an awaitable: a ring calls several queues at once, and a closed one must not hide
                # the results of the others.
                return _refused(error)
        return cast("Awaitable[A]", getattr(self, name)(request))

    async def _enqueue(self, request: Enqueue) -> Sequence[JobRecord]:
        if not request.specs:
            return ()
        blobs = self._blobs
        if blobs is not None and blobs.concerns(request.specs):
            return await self._enqueue_large(blobs, request)
        added = cast(Sequence[JobRecord], await self._executor.execute(request))
        # A job that existed already may have a large payload.
        return await self._filled_if_possible(added) if _any_blob(added) else added

    async def _enqueue_large(self, blobs: Blobs, request: Enqueue) -> Sequence[JobRecord]:
        """Store the payloads, then add the jobs. Payloads that turn out not to be needed are deleted at once."""
        specs = request.specs
        put = await blobs.put(specs)
        try:
            added = await self._executor.execute(msgspec.structs.replace(request, specs=put))
        except UnknownOutcomeError:
            raise  # the jobs may exist
        except CasqueError:
            await blobs.drop(spec.blob for spec in put)
            raise
        taken = {job.spec.blob for job in added}
        await blobs.drop(spec.blob for spec in put if spec.blob not in taken)
        return await self._filled_if_possible(
            [
                msgspec.structs.replace(job, spec=msgspec.structs.replace(asked, id=job.spec.id))
                if _is_what_was_put(job, named)
                else job
                for job, asked, named in zip(added, specs, put, strict=True)
            ]
        )

    async def _admit(self, request: Admit) -> Admission:
        if self._staging is None:
            raise InvalidInputError("a storage of one object has no room for staged jobs; open the queue by URL")
        source, batch = request.source, request.batch
        # One at a time: all jobs of an admission are in memory meanwhile.
        async with self._admitting:
            # Check first: the parts of an old admission may be gone.
            if (repeated := await self._executor.look(partial(_admitted, source, batch))) is not None:
                return cast(Admission, repeated)
            command = await self._staging.fetch(source, batch, request.parts, skip_known=request.skip_known)
            if request.generation:
                command = msgspec.structs.replace(command, generation=request.generation)
            return cast(Admission, await self._executor.execute(command))

    async def _dequeue(self, request: Dequeue) -> list[JobRecord]:
        if request.lease_ms is None:
            request = msgspec.structs.replace(request, lease_ms=self._lease_ms)
        if request.wait_s > 0 and isinstance(self._executor, GroupCommit):
            claimed = await self._executor.dequeue(request, wait_s=request.wait_s)
        else:
            claimed = await self._executor.execute(request)
        if _any_blob(claimed) and self._blobs is not None:
            claimed = await self._with_payloads(self._blobs, claimed, request.request_id)
        return cast(list[JobRecord], claimed)

    async def _with_payloads(self, blobs: Blobs, claimed: list[JobRecord], request_id: str | None) -> list[JobRecord]:
        """The jobs whose payload could be read. A job whose payload is missing fails, like any job that cannot be
        processed; a job whose payload cannot be read now is given back. With a request id such jobs stay claimed for a
        caller that repeats the request: an earlier answer may have named them, and a worker may be running them.

        Raises:
            UnknownOutcomeError: none of them could be read. They are claimed, until they are given back or their
                leases run out.
        """
        whole: list[JobRecord] = []
        unread: list[JobRecord] = []
        try:
            fetched = await blobs.fetch(claimed)
            for job, found in zip(claimed, fetched, strict=True):
                if isinstance(found, StorageError):
                    unread.append(job)
                elif isinstance(found, CorruptQueueError):
                    await self._fail_missing(job, found)
                else:
                    whole.append(found)
        except BaseException:
            # No caller learns of these claims, unless the request is repeated.
            if request_id is None:
                self._return_soon(claimed)
            raise
        if self._drops_blobs:
            self._hold(claimed, {job.id for job in whole})
        if unread:
            if request_id is None:
                self._return_soon(unread)
            if not whole:
                raise UnknownOutcomeError(
                    f"{len(unread)} jobs were claimed, and their large payloads cannot be read: "
                    f"{next(found for found in fetched if isinstance(found, StorageError))}"
                )
        return whole

    async def _fail_missing(self, job: JobRecord, missing: CorruptQueueError) -> None:
        """If this cannot be written, the lease runs out. The other claims are valid in any case."""
        log.error("%s", missing)
        try:
            await self._executor.execute(Nack(job.id, job.token, backoff=self._backoff, error=str(missing)))
        except (LeaseLostError, JobNotFoundError):
            pass
        except CasqueError as error:
            log.warning("job %s is left to its lease: %s", job.id, error)

    def _hold(self, claimed: list[JobRecord], there: set[str]) -> None:
        """Remember the payloads, to delete them when the jobs are done."""
        for job in claimed:
            if job.spec.blob is not None and job.id in there:
                self._held[job.id] = job.spec.blob
                if len(self._held) > HELD_MAX:
                    self._held.popitem(last=False)

    def _return_soon(self, claimed: list[JobRecord]) -> None:
        if isinstance(self._executor, GroupCommit):
            self._executor.give_back_unseen(claimed)
            return
        self._returning.start(self._return(claimed))

    async def _return(self, claimed: list[JobRecord]) -> None:
        for job in claimed:
            with suppress(CasqueError):
                await self._executor.execute(ReturnUnseen(job.id, job.token))

    async def _filled(self, records: Sequence[JobRecord]) -> list[JobRecord]:
        """The records with payloads, without jobs that ended, and lost their payloads, while these were read.

        Raises:
            CorruptQueueError: a payload is missing, and the caller cannot read the job without it.
        """
        if self._blobs is None or not _any_blob(records):
            return list(records)
        fetched = await self._blobs.fetch(records)
        named: set[str] | None = None
        filled: list[JobRecord] = []
        for job, found in zip(records, fetched, strict=True):
            if isinstance(found, StorageError):
                raise found
            if isinstance(found, CorruptQueueError) and not self._blobs.tolerant:
                if named is None:
                    named = cast("set[str]", await self._executor.look(_blobs_in))
                if job.spec.blob in named:
                    raise found
                continue
            filled.append(job if isinstance(found, CasqueError) else found)
        return filled

    async def _filled_if_possible(self, records: Sequence[JobRecord]) -> Sequence[JobRecord]:
        """For answers after a commit: it holds whether or not a payload can be read, so jobs whose payload cannot be
        read are left out of the answer."""
        if self._blobs is None:
            return records
        fetched = await self._blobs.fetch(records)
        return [job if isinstance(found, CasqueError) else found for job, found in zip(records, fetched, strict=True)]

    async def _ack(self, request: Ack) -> None:
        await self._executor.execute(request, self._reach)
        if self._held and self._blobs is not None and (key := self._held.pop(request.job_id, None)) is not None:
            await self._blobs.drop([key])

    async def _settle(self, request: Settle) -> list[CasqueError | None]:
        outcomes = request.outcomes
        if not outcomes:
            return []
        answers = cast("list[CasqueError | None]", await self._executor.execute(request, self._reach))
        if self._held and self._blobs is not None:
            pairs = zip(outcomes, answers, strict=True)
            over = [outcome.job_id for outcome, refused in pairs if refused is None and _ends(outcome)]
            await self._blobs.drop([self._held.pop(job_id) for job_id in over if job_id in self._held])
        return answers

    async def _heartbeats(self, request: Heartbeats) -> list[JobRecord | CasqueError]:
        beats = [
            self._executor.execute(Heartbeat(lease.job_id, lease.token, lease.progress), self._reach)
            for lease in request.leases
        ]
        answers = await asyncio.gather(*beats, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, CasqueError):
                raise answer
        return cast("list[JobRecord | CasqueError]", answers)

    async def _cancel(self, request: Cancel) -> None:
        blob: str | None = None
        if self._drops_blobs and self._blobs is not None and (job := await self._job(request.job_id)) is not None:
            blob = job.spec.blob
        await self._executor.execute(request, self._reach)
        if blob is not None and self._blobs is not None:
            await self._blobs.drop([blob])

    async def _purge(self, request: Purge) -> int:
        blobs = await self._blobs_of_dead(request)
        purged = cast(int, await self._executor.execute(request))
        if blobs and self._blobs is not None:
            # A job that was retried meanwhile was not purged.
            try:
                await self._blobs.drop(sorted(blobs - await self._executor.look(_blobs_in)))
            except CasqueError as error:
                log.warning("the payloads of purged jobs stay until they are swept: %s", error)
        return purged

    async def _list_zones(self, request: ListZones) -> list[ZoneStanding]:
        """Visits every job, in portions, so that other calls get their turns; one such scan at a time."""

        def begun(state: State, now_ms: int) -> ZoneScan:
            return ZoneScan(state, now_ms, request.names)

        async with self._scanning:
            scan = cast(ZoneScan, await self._executor.look(begun))
            while scan.step(LOOKED_AT_ONCE):
                await yield_once()
        return scan.standings(request.limit)

    async def _peek_zones(self, request: PeekZones) -> list[PeekedZone]:
        """The answer is a hint, so changes between two portions do no harm: with many entrypoints, each portion visits
        some
        of them."""

        names, limit = request.names, request.limit

        def looked_for(some: tuple[str, ...] | None) -> Callable[[State, int], list[PeekedZone]]:
            return lambda state, now_ms: state.peek(some, names, limit, now_ms)

        asked, due = request.entrypoints, request.entrypoints
        if due is None:
            due = cast("tuple[str, ...]", await self._executor.look(lambda state, now_ms: state.due_names(now_ms)))
        if len(due) <= PEEKED_AT_ONCE:
            return cast("list[PeekedZone]", await self._executor.look(looked_for(asked)))
        looks = [looked_for(due[start : start + PEEKED_AT_ONCE]) for start in range(0, len(due), PEEKED_AT_ONCE)]
        if asked is None:
            looks.append(lambda state, now_ms: state.peek_delayed(names, limit, now_ms))
        found: dict[str, PeekedZone] = {}
        async with self._scanning:
            for look in looks:
                for zone in cast("list[PeekedZone]", await self._executor.look(look)):
                    known = found.get(zone.zone)
                    if known is None or zone.next_ms < known.next_ms:
                        found[zone.zone] = zone
                await yield_once()
        return sorted(found.values(), key=lambda one: (one.next_ms, one.zone))[:limit]

    def _lease_zone(self, request: LeaseZone) -> Awaitable[ZoneLease | None]:
        if request.lease_ms is None:
            request = msgspec.structs.replace(request, lease_ms=self._lease_ms)
        return self._executor.execute(request)

    async def _blobs_of_dead(self, command: Purge) -> set[str]:
        def found(state: State, _now_ms: int) -> set[str]:
            dead = (state.jobs[job_id].spec for job_id in state.dead)
            return {spec.blob for spec in dead if spec.blob is not None and command.takes(spec)}

        return cast("set[str]", await self._executor.look(found)) if self._blobs is not None else set()

    async def expire_before(self, cutoff_ms: int) -> int:
        """Take back every lease whose last claim or heartbeat was written before `cutoff_ms`; returns their number.

        The only verb that trusts a written time, because an operator asks for it by name.
        """

        def stale(state: State, _now_ms: int) -> tuple[Observed, ...]:
            return tuple(
                Observed(job.spec.id, job.token, job.beat_ms)
                for job in state.leases()
                if job.beat_ms is None or job.beat_ms < cutoff_ms
            )

        leases = await self._executor.look(stale)
        return cast(int, await self._executor.execute(Expire(leases))) if leases else 0

    async def _find(self, request: Find) -> JobRecord | None:
        job = await self._job(request.job_id)
        if job is None or job.spec.blob is None:
            return job
        return next(iter(await self._filled([job])), None)

    async def _job(self, job_id: str) -> JobRecord | None:
        job = cast(JobRecord | None, await self._executor.look(lambda state, _now: state.jobs.get(job_id)))
        return None if job is None or (self._reach is not None and not self._reach.has(job.spec)) else job

    async def _list_jobs(self, request: ListJobs) -> list[JobRecord]:
        """A page, or all jobs. Only copying the list of records blocks other calls: records never change."""

        def listed(state: State, now_ms: int) -> tuple[list[JobRecord], int]:
            return list(state.listed()), now_ms

        states, entrypoint, limit = request.states, request.entrypoint, request.limit
        found: list[JobRecord] = []
        async with self._scanning:
            jobs, now_ms = await self._executor.look(listed)
            begin = bisect_right(jobs, request.after, key=lambda job: job.sequence)
            for start in range(begin, len(jobs), LOOKED_AT_ONCE):
                for job in jobs[start : start + LOOKED_AT_ONCE]:
                    if limit is not None and len(found) >= limit:
                        break
                    if entrypoint is not None and job.spec.entrypoint != entrypoint:
                        continue
                    if states is None or state_at(job, now_ms) in states:
                        found.append(job)
                if limit is not None and len(found) >= limit:
                    break
                await yield_once()
        filled = await self._filled(found)
        if (gone := len(found) - len(filled)) and len(found) == limit:
            # A page that is not full would pass for the last one.
            filled += await self._list_jobs(msgspec.structs.replace(request, limit=gone, after=found[-1].sequence))
        return filled

    async def _stats(self, request: GetStats) -> Stats:  # noqa: ARG002
        def counted(state: State, now_ms: int) -> Stats:
            # The batch of this read makes the next position, if it writes anything.
            return Stats(state.position + bool(state.events), state.totals(now_ms), state.gates)

        return cast(Stats, await self._executor.look(counted))

    async def _set_schedule(self, request: requests.SetSchedule) -> Schedule:
        spec = request.spec
        while True:
            since_ms = await self._executor.look(partial(_since_ms, spec.name))
            next_ms = first_tick_ms(spec.cron, spec.tz, since_ms)
            done = await self._executor.execute(SetSchedule(spec, next_ms), self._reach)
            if done is not None:  # otherwise the schedule has ticked since it was read
                return cast(Schedule, done)

    async def _schedules(self, request: ListSchedules) -> list[Schedule]:  # noqa: ARG002
        return cast("list[Schedule]", await self._executor.look(lambda state, _now_ms: list(state.schedules.values())))

    async def _pause_schedule(self, request: requests.PauseSchedule) -> Schedule:
        name = request.name

        def found(state: State, now_ms: int) -> tuple[ScheduleSpec, int]:
            if name not in state.schedules:
                raise ScheduleNotFoundError(name)
            return state.schedules[name].spec, _since_ms(name, state, now_ms)

        while True:
            spec, since_ms = await self._executor.look(found)
            next_ms = first_tick_ms(spec.cron, spec.tz, since_ms)
            done = await self._executor.execute(PauseSchedule(name, request.paused, next_ms), self._reach)
            if done is not None:
                return cast(Schedule, done)

    def events(self, *, from_position: int | None = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        return self._past.events(from_position=from_position, follow=follow)

    def archive(self, **asked: Unpack[ArchiveFilter]) -> AsyncGenerator[ArchivedJob]:
        return self._past.archive(**asked)

    @property
    def _past(self) -> History:
        if self._history is None:
            raise NoHistoryError
        return self._history


_METHODS: dict[type[Request[Any]], str] = {
    Enqueue: "_enqueue",
    Admit: "_admit",
    Dequeue: "_dequeue",
    Ack: "_ack",
    Settle: "_settle",
    Heartbeats: "_heartbeats",
    Cancel: "_cancel",
    Purge: "_purge",
    LeaseZone: "_lease_zone",
    PeekZones: "_peek_zones",
    Find: "_find",
    ListJobs: "_list_jobs",
    ListZones: "_list_zones",
    ListSchedules: "_schedules",
    GetStats: "_stats",
    requests.SetSchedule: "_set_schedule",
    requests.PauseSchedule: "_pause_schedule",
}
"""Requests that need work before or after their command."""


async def _refused(error: CasqueError) -> Any:
    raise error


def _admitted(source: str, batch: int, state: State, _now_ms: int) -> Admission | None:
    return state.admitted(source, batch)


def _since_ms(name: str, state: State, now_ms: int) -> int:
    """Now, or the schedule's last tick if that is later, because the clock of its committer was ahead."""
    schedule = state.schedules.get(name)
    return now_ms if schedule is None or schedule.last_ms is None else max(now_ms, schedule.last_ms)


def _ends(outcome: Outcome) -> bool:
    """True if this outcome removes the job from the queue."""
    return outcome.kind in (OutcomeKind.DONE, OutcomeKind.CANCELLED)


def _is_what_was_put(job: JobRecord, named: JobSpec) -> bool:
    """True if this job uses the payload that was stored for it: the job was added now, or by an earlier attempt of this
    request and has ended since, and then it has no number. Another job may hold the unique key, large or small."""
    if named.blob is None:
        return False
    return job.spec.blob == named.blob or (not job.sequence and job.spec.blob_bytes == named.blob_bytes)


def _any_blob(records: Sequence[JobRecord]) -> bool:
    return any(job.spec.blob is not None for job in records)


def _blobs_in(state: State, _now_ms: int) -> set[str]:
    return {job.spec.blob for job in state.jobs.values() if job.spec.blob is not None}


def state_at(job: JobRecord, now_ms: int) -> JobState:
    """A delayed job whose time has come is ready, although no commit says so."""
    if job.state is JobState.DELAYED and job.due_ms <= now_ms:
        return JobState.READY
    return job.state
