"""The verbs of a queue over HTTP: each takes a decoded request and returns the message that answers it.

Defaults for what a caller leaves out come from the broker's settings, as in an embedded queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from msgspec import UNSET, UnsetType

from casque import checks
from casque.clock import Clock, Random, new_id
from casque.errors import CasqueError, InvalidInputError, JobNotFoundError, UnknownOutcomeError
from casque.fields import gained
from casque.service import Lease, Outcome, OutcomeKind
from casque.settings import QueueSettings, milliseconds
from casque.transport.errors import to_wire
from casque.transport.http.messages import (
    AckRequest,
    Beat,
    Beats,
    Claim,
    HeartbeatRequest,
    HeartbeatsRequest,
    Job,
    Jobs,
    JobsPage,
    JobsQuery,
    MaybeJob,
    NackRequest,
    NewJob,
    NewSchedule,
    OutcomeOf,
    PeekedZones,
    PeekQuery,
    ScheduleOf,
    Settled,
    SettleRequest,
    Zones,
    ZonesQuery,
    given_bytes,
    headers_of,
    to_backoff,
    to_job,
    to_peeked,
    to_progress,
    to_schedule,
    to_zone,
)
from casque.transport.http.simple_verbs import DONE, Call, Done, maybe_job
from casque.transport.settling import refused_among, single_kind
from casque.types import Backoff, JobRecord, JobSpec, ScheduleSpec, ZoneLease


class Verbs:
    """One method per route. `leaving` is set when the server stops, and ends all waits for a job."""

    def __init__(
        self, settings: QueueSettings, clock: Clock, rng: Random, *, wait_max_s: float, leaving: asyncio.Event
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._wait_max_s = wait_max_s
        self._leaving = leaving

    # --- Producing ---

    async def enqueue(self, call: Call) -> Jobs:
        asked: NewJob | list[NewJob] = call.body
        specs = [self._spec(one) for one in (asked if isinstance(asked, list) else [asked])]
        return _jobs(await call.service.enqueue(specs, request_id=call.request_id))

    def _spec(self, new: NewJob) -> JobSpec:
        payload = given_bytes("payload", new.payload, new.payload_text, new.payload_json)
        if new.delay is not None and new.run_at is not None:
            raise InvalidInputError("give delay or run_at, not both")
        run_at_ms = None
        if new.delay is not None:
            run_at_ms = self._clock.wall_ms() + checks.span_ms("delay", new.delay)
        elif new.run_at is not None:
            run_at_ms = checks.moment_ms("run_at", new.run_at)
        return JobSpec(
            new_id(self._rng) if new.id is UNSET else checks.name("id", new.id, checks.NAME_MAX),
            checks.entrypoint(new.entrypoint),
            payload or b"",
            new.priority,
            run_at_ms,
            self._settings.max_attempts if new.max_attempts is UNSET else new.max_attempts,
            None if new.key is None else checks.name("key", new.key, checks.KEY_MAX),
            headers_of(new),
            None if new.zone is None else checks.name("zone", new.zone, checks.NAME_MAX),
            max_crashes=new.max_crashes,
            fifo=new.fifo,
            **gained(new),
        )

    # --- Working ---

    async def claim(self, call: Call) -> Jobs:
        asked: Claim = call.body
        claiming = asyncio.ensure_future(self._dequeue(call, min(asked.wait, self._wait_max_s)))
        try:
            claimed = await self._until_leaving(claiming)
            if claimed is None:
                # The wait was ended. The call may have claimed jobs at the last moment; the same key returns them.
                claimed = [] if call.request_id is None else await self._dequeue(call, 0.0)
            return _jobs(claimed)
        except asyncio.CancelledError:
            # The client left. The queue gives back a claim still being made; give back a finished one here.
            if claiming.done() and not claiming.cancelled() and claiming.exception() is None:
                await self.unclaim(call, _jobs(claiming.result()))
            raise

    async def _dequeue(self, call: Call, wait_s: float) -> list[JobRecord]:
        asked: Claim = call.body
        return await call.service.dequeue(
            entrypoints=checks.entrypoints(asked.entrypoints),
            limit=asked.limit,
            lease_ms=None if asked.lease is None else max(1, checks.span_ms("lease", asked.lease)),
            worker=None if asked.worker is None else checks.name("worker", asked.worker, checks.NAME_MAX),
            wait_s=wait_s,
            request_id=call.request_id,
            zones=checks.zones(asked.zones),
            zone_lease=_shown(asked),
        )

    async def _until_leaving(self, claiming: asyncio.Future[list[JobRecord]]) -> list[JobRecord] | None:
        """The claimed jobs, or None if the server stops first.

        Raises:
            UnknownOutcomeError: the claim was cancelled elsewhere.
        """
        leaving = asyncio.ensure_future(self._leaving.wait())
        try:
            await asyncio.wait((claiming, leaving), return_when=asyncio.FIRST_COMPLETED)
            if claiming.cancelled():
                raise UnknownOutcomeError("the claim was cut off; repeat it with the same Idempotency-Key")
        finally:
            leaving.cancel()
            claiming.cancel()
            await asyncio.gather(claiming, leaving, return_exceptions=True)
        return None if claiming.cancelled() else claiming.result()

    async def unclaim(self, call: Call, claimed: Jobs) -> None:
        """Give back jobs whose claim never reached the client: others need not wait for the leases to run out."""
        if call.request_id is None:  # with a key, a repeated request returns them
            for job in claimed.jobs:
                with suppress(CasqueError):  # one failure does not keep the others from going back
                    await call.service.give_back(job.id, token=job.token)

    async def ack(self, call: Call) -> Done:
        asked: AckRequest = call.body
        result = given_bytes("result", asked.result, asked.result_text, asked.result_json)
        await call.service.ack(call.job_id, token=asked.token, result=result, request_id=call.request_id)
        return DONE

    async def nack(self, call: Call) -> MaybeJob:
        asked: NackRequest = call.body
        record = await call.service.nack(
            call.job_id,
            token=asked.token,
            delay_ms=None if asked.delay is None else checks.span_ms("delay", asked.delay),
            backoff=self._backoff() if asked.backoff is None else to_backoff(asked.backoff, self._rng.random()),
            error=checks.error_text(asked.error),
            request_id=call.request_id,
        )
        return maybe_job(record)

    async def settle(self, call: Call) -> Settled:
        asked: SettleRequest = call.body
        answers = await call.service.settle([self._outcome(one) for one in asked.outcomes], request_id=call.request_id)
        refused = refused_among(answers)
        return Settled(len(answers) - sum(len(why.places) for why in refused), refused)

    def _outcome(self, one: OutcomeOf) -> Outcome:
        error = None if one.error is UNSET else checks.error_text(one.error)
        delay_ms = None if one.delay is UNSET else checks.span_ms("delay", one.delay)
        backoff = None if one.backoff is UNSET else to_backoff(one.backoff, self._rng.random())
        if one.final is not UNSET and (error is None or one.how == "cancelled"):
            raise InvalidInputError("final is for a job that failed: give its error as well")
        if error is not None and delay_ms is None and backoff is None and one.how in (UNSET, "crashed"):
            backoff = self._backoff()
        result = given_bytes("result", one.result, one.result_text, one.result_json)
        said = [OutcomeKind.FINAL] if one.final is True else []
        if one.how is not UNSET:
            said.append(OutcomeKind(one.how))
        return Outcome(
            checks.job_id(one.job_id),
            one.token,
            error,
            result,
            delay_ms,
            backoff,
            single_kind(said),
        )

    def _backoff(self) -> Backoff:
        settings = self._settings
        return Backoff(milliseconds(settings.backoff_base), milliseconds(settings.backoff_cap), self._rng.random())

    async def heartbeat(self, call: Call) -> Job:
        asked: HeartbeatRequest = call.body
        return to_job(await call.service.heartbeat(call.job_id, token=asked.token))

    async def heartbeats(self, call: Call) -> Beats:
        asked: HeartbeatsRequest = call.body
        leases = [Lease(checks.job_id(one.job_id), one.token, to_progress(one.progress)) for one in asked.leases]
        answers = await call.service.heartbeats(leases)
        return Beats(
            [
                Beat(job=to_job(answer)) if isinstance(answer, JobRecord) else Beat(error=to_wire(answer))
                for answer in answers
            ]
        )

    # --- Managing ---

    # --- Schedules ---

    async def set_schedule(self, call: Call) -> ScheduleOf:
        asked: NewSchedule = call.body
        payload = given_bytes("payload", asked.payload, asked.payload_text, asked.payload_json)
        job = JobSpec(
            "",
            checks.entrypoint(asked.entrypoint),
            payload or b"",
            asked.priority,
            None,
            self._settings.max_attempts if asked.max_attempts is UNSET else asked.max_attempts,
            asked.key,
            headers_of(asked),
            asked.zone,
            max_crashes=asked.max_crashes,
            fifo=asked.fifo,
            **gained(asked),
        )
        spec = ScheduleSpec(asked.name, asked.cron, job, asked.tz, asked.missed, asked.origin)
        return to_schedule(await call.service.set_schedule(spec))

    # --- Looking ---

    async def peek_zones(self, call: Call) -> PeekedZones:
        asked: PeekQuery = call.query
        found = await call.service.peek_zones(
            entrypoints=None if asked.entrypoint is UNSET else checks.entrypoints(asked.entrypoint),
            names=None if asked.name is UNSET else frozenset(checks.zones(asked.name) or ()),
            limit=asked.limit,
        )
        return PeekedZones([to_peeked(one) for one in found])

    async def zones(self, call: Call) -> Zones:
        asked: ZonesQuery = call.query
        names = None if asked.name is UNSET else frozenset(checks.zones(asked.name) or ())
        return Zones([to_zone(one) for one in await call.service.zones(names=names, limit=asked.limit)])

    async def find(self, call: Call) -> Job:
        record = await call.service.find(call.job_id)
        if record is None:
            raise JobNotFoundError(call.job_id)
        return to_job(record)

    async def jobs(self, call: Call) -> JobsPage:
        asked: JobsQuery = call.query
        records = await call.service.jobs(
            states=None if asked.state is UNSET else frozenset(asked.state),
            entrypoint=given(asked.entrypoint),
            limit=asked.limit,
            after=asked.after,
        )
        more = len(records) >= asked.limit
        return JobsPage([to_job(record) for record in records], records[-1].sequence if more else None)


def given(name: str | UnsetType) -> str | None:
    return None if name is UNSET else checks.entrypoint(name)


def _shown(asked: Claim) -> ZoneLease | None:
    lease = asked.zone_lease
    return None if lease is None else ZoneLease(checks.zone(lease.zone), lease.token, lease_ms=0)


def _jobs(records: Sequence[JobRecord]) -> Jobs:
    return Jobs([to_job(record) for record in records])
