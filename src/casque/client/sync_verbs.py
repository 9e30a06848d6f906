"""The verbs of `SyncQueue`. Written by `make reference` from `Queue`: change that one, not this."""
# ruff: noqa: A002  arguments have the names that they have there

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import EllipsisType
from typing import Generic, TypeVar

from casque.client.blocking import Blocking, SyncJob
from casque.client.new_jobs import NewJob
from casque.errors import CasqueError
from casque.service import ArchivedJob, Lease, Outcome, QueueEvent, Stats
from casque.types import (
    Admission,
    JobState,
    Missed,
    PeekedZone,
    Schedule,
    StagedPart,
    ZoneLease,
    ZoneRules,
    ZoneStanding,
)

T = TypeVar("T")


class SyncVerbs(Blocking[T], Generic[T]):
    """Every verb of `Queue`, without `await`."""

    def enqueue(
        self,
        entrypoint: str,
        payload: T,
        *,
        priority: int = 0,
        delay: float | timedelta | None = None,
        run_at: datetime | None = None,
        key: str | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, str] | None = None,
        zone: str | None = None,
        max_crashes: int | None = None,
        fifo: bool = False,
        tags: Sequence[str] = (),
        expires: float | timedelta | datetime | None = None,
        id: str | None = None,
        request_id: str | None = None,
    ) -> SyncJob[T]:
        """Add a job; it is durable when this returns."""
        return SyncJob(
            self._wait(
                self._queue.enqueue(
                    entrypoint,
                    payload,
                    priority=priority,
                    delay=delay,
                    run_at=run_at,
                    key=key,
                    max_attempts=max_attempts,
                    headers=headers,
                    zone=zone,
                    max_crashes=max_crashes,
                    fifo=fifo,
                    tags=tags,
                    expires=expires,
                    id=id,
                    request_id=request_id,
                )
            ),
            self,
        )

    def enqueue_many(
        self, jobs: Iterable[tuple[str, T] | NewJob[T]], *, request_id: str | None = None
    ) -> list[SyncJob[T]]:
        """Add jobs in one commit: all of them or none."""
        return [SyncJob(job, self) for job in self._wait(self._queue.enqueue_many(jobs, request_id=request_id))]

    def admit(self, source: str, batch: int, parts: Sequence[StagedPart], *, skip_known: bool = False) -> Admission:
        """Add the jobs of staged parts in one commit: all of them or none, and once however often this is called."""
        return self._wait(self._queue.admit(source, batch, parts, skip_known=skip_known))

    def dequeue(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        batch_size: int = 1,
        wait: float | timedelta = 0.0,
        lease: float | timedelta | None = None,
        zone: str | Sequence[str] | None = None,
        zone_lease: ZoneLease | None = None,
        request_id: str | None = None,
    ) -> list[SyncJob[T]]:
        """Claim up to `batch_size` jobs of one entrypoint, of several, or of any."""
        return [
            SyncJob(job, self)
            for job in self._wait(
                self._queue.dequeue(
                    entrypoint,
                    batch_size=batch_size,
                    wait=wait,
                    lease=lease,
                    zone=zone,
                    zone_lease=zone_lease,
                    request_id=request_id,
                )
            )
        ]

    def heartbeats(self, jobs: Sequence[SyncJob[T] | Lease]) -> list[CasqueError | None]:
        """Renew the leases of these jobs to their full length. Returns one entry per job: None, or the error; a lost
        lease does not affect the others."""
        return self._wait(self._queue.heartbeats([one.job if isinstance(one, SyncJob) else one for one in jobs]))

    def give_back(self, jobs: Sequence[SyncJob[T] | Lease]) -> list[CasqueError | None]:
        """Return claimed jobs to the queue without counting an attempt. Returns one entry per job: None if it went back
        or was no longer this caller's, or the error."""
        return self._wait(self._queue.give_back([one.job if isinstance(one, SyncJob) else one for one in jobs]))

    def cancel(self, job_id: str, *, request_id: str | None = None) -> None:
        """Take a waiting or running job out of the queue; its worker notices at its next heartbeat or ack."""
        self._wait(self._queue.cancel(job_id, request_id=request_id))

    def retry(self, job_id: str, *, request_id: str | None = None) -> None:
        """Give a dead job a fresh set of attempts."""
        self._wait(self._queue.retry(job_id, request_id=request_id))

    def reschedule(
        self,
        job_id: str,
        *,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        priority: int | None = None,
        request_id: str | None = None,
    ) -> None:
        """Change when a waiting job runs (`run_at`, or `delay` from now), its priority, or both. What is not given
        stays as it is; a time in the past means now."""
        self._wait(self._queue.reschedule(job_id, run_at=run_at, delay=delay, priority=priority, request_id=request_id))

    def purge(self, entrypoint: str | None = None, *, zone: str | None = None, request_id: str | None = None) -> int:
        """Remove dead jobs for good, of one entrypoint, of one zone, or all; returns their number."""
        return self._wait(self._queue.purge(entrypoint, zone=zone, request_id=request_id))

    def requeue_stale(
        self,
        older: float | timedelta,
        *,
        entrypoint: str | None = None,
        zone: str | None = None,
        request_id: str | None = None,
    ) -> int:
        """Take back running jobs whose last claim or heartbeat was written longer ago than `older`; returns their
        number. For operators who know that their workers are gone."""
        return self._wait(self._queue.requeue_stale(older, entrypoint=entrypoint, zone=zone, request_id=request_id))

    def pause(self, entrypoint: str | None = None, *, request_id: str | None = None) -> None:
        """Stop claims from the queue, or from one entrypoint, until it is resumed. Running jobs continue, and jobs can
        be added."""
        self._wait(self._queue.pause(entrypoint, request_id=request_id))

    def drain(self, entrypoint: str | None = None, *, request_id: str | None = None) -> None:
        """Refuse new jobs for the queue, or for one entrypoint, until it is resumed: `enqueue` raises
        QueueDrainingError. Existing jobs are processed; this does not wait for them."""
        self._wait(self._queue.drain(entrypoint, request_id=request_id))

    def resume(self, entrypoint: str | None = None, *, request_id: str | None = None) -> None:
        """Reopen the queue, or one entrypoint. An entrypoint that was paused by itself stays paused when the queue is
        resumed."""
        self._wait(self._queue.resume(entrypoint, request_id=request_id))

    def set_zone(
        self,
        zone: str,
        *,
        weight: float | None = None,
        running_max: int | EllipsisType | None = ...,
        per_second: float | EllipsisType | None = ...,
        paused: bool | None = None,
        request_id: str | None = None,
    ) -> ZoneRules:
        """Change a zone's share of the turns, and its limits; what is not given stays as it is."""
        return self._wait(
            self._queue.set_zone(
                zone,
                weight=weight,
                running_max=running_max,
                per_second=per_second,
                paused=paused,
                request_id=request_id,
            )
        )

    def zones(self, zone: str | Sequence[str] | None = None, *, limit: int = 100) -> list[ZoneStanding]:
        """Zones that have jobs or rules, those whose jobs have been due longest first: one, several, or the first
        `limit` of all."""
        return self._wait(self._queue.zones(zone, limit=limit))

    def peek_zones(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        zone: str | Sequence[str] | None = None,
        limit: int = 100,
    ) -> list[PeekedZone]:
        """The top-level queue: unleased zones with work that no limit holds back, those whose jobs have been due
        longest first. Zones whose jobs are not due yet (`due` is False) follow, in order."""
        return self._wait(self._queue.peek_zones(entrypoint, zone=zone, limit=limit))

    def lease_zone(
        self, zone: str, *, lease: float | timedelta | None = None, request_id: str | None = None
    ) -> ZoneLease | None:
        """Lease a whole zone: until `release_zone`, or until `lease` has passed without a heartbeat, only a `dequeue`
        with this lease gets its jobs. None if the zone is leased already, or has no jobs. A call that is cancelled
        releases the zone, unless it has a `request_id`."""
        return self._wait(self._queue.lease_zone(zone, lease=lease, request_id=request_id))

    def heartbeat_zone(self, lease: ZoneLease) -> ZoneLease:
        """Renew the lease of the zone to its full length."""
        return self._wait(self._queue.heartbeat_zone(lease))

    def release_zone(self, lease: ZoneLease) -> None:
        """Release the zone to others, from the moment its next job is due. Does nothing if the lease has ended
        already."""
        self._wait(self._queue.release_zone(lease))

    def set_schedule(
        self,
        name: str,
        expression: str,
        job: tuple[str, T] | NewJob[T],
        *,
        tz: str = "UTC",
        missed: Missed | str = Missed.ONE,
        origin: str | None = None,
    ) -> Schedule:
        """Add a job at every tick of a cron expression: one job per tick, whichever process notices it."""
        return self._wait(self._queue.set_schedule(name, expression, job, tz=tz, missed=missed, origin=origin))

    def schedules(self) -> list[Schedule]:
        """All schedules, in the order in which they were first set."""
        return self._wait(self._queue.schedules())

    def pause_schedule(self, name: str) -> Schedule:
        """Stop its ticks until it is resumed. Raises ScheduleNotFoundError."""
        return self._wait(self._queue.pause_schedule(name))

    def resume_schedule(self, name: str) -> Schedule:
        """Resume its ticks from now on; those missed during the pause are skipped. Raises ScheduleNotFoundError."""
        return self._wait(self._queue.resume_schedule(name))

    def drop_schedule(self, name: str) -> None:
        """Remove a schedule; jobs that it added stay. Raises ScheduleNotFoundError."""
        self._wait(self._queue.drop_schedule(name))

    def trigger_schedule(self, name: str) -> SyncJob[T]:
        """Add the job of a schedule now, in addition to its ticks. Raises ScheduleNotFoundError."""
        return SyncJob(self._wait(self._queue.trigger_schedule(name)), self)

    def find(self, job_id: str) -> SyncJob[T] | None:
        """The job, if it is in the queue (waiting, running or dead)."""
        job = self._wait(self._queue.find(job_id))
        return None if job is None else SyncJob(job, self)

    def jobs(
        self,
        *,
        states: Iterable[JobState] | None = None,
        entrypoint: str | None = None,
        limit: int | None = None,
        after: int = 0,
    ) -> list[SyncJob[T]]:
        """Jobs in the queue in enqueue order, by state and entrypoint."""
        return [
            SyncJob(job, self)
            for job in self._wait(self._queue.jobs(states=states, entrypoint=entrypoint, limit=limit, after=after))
        ]

    def stats(self) -> Stats:
        """The position and the number of jobs in each state."""
        return self._wait(self._queue.stats())

    def events(
        self, *, from_position: int | Mapping[int, int] | None = None, follow: bool = True
    ) -> Iterator[QueueEvent]:
        """The events of this queue, in order. Never writes."""
        return self._each(self._queue.events(from_position=from_position, follow=follow))

    def archive(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        entrypoint: str | None = None,
        states: Iterable[JobState] | None = None,
    ) -> Iterator[ArchivedJob]:
        """Finished jobs, `done`, `dead` and `cancelled`, each finish once, hour by hour as they were committed."""
        return self._each(self._queue.archive(since=since, until=until, entrypoint=entrypoint, states=states))

    def ack(
        self, job_id: str, token: int | None = None, *, result: bytes | None = None, request_id: str | None = None
    ) -> None:
        """Mark the job as done, which removes it from the queue. With a token, only if that lease is still current."""
        self._wait(self._queue.ack(job_id, token, result=result, request_id=request_id))

    def nack(
        self,
        job_id: str,
        token: int | None = None,
        *,
        delay: float | timedelta | None = None,
        error: BaseException | str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Mark the attempt as failed: the job runs again after `delay`, or after a back-off that doubles with every
        attempt."""
        self._wait(self._queue.nack(job_id, token, delay=delay, error=error, request_id=request_id))

    def settle(
        self, outcomes: Iterable[SyncJob[T] | Outcome], *, request_id: str | None = None
    ) -> list[CasqueError | None]:
        """Many acks and nacks in one commit. A claimed job means its ack; an `Outcome` without an error is an ack, and
        with one a nack, after its `delay_ms`, or after the queue's back-off. `how` says what else became of the job:
        `OutcomeKind.FINAL`, it is dead at once; `CRASHED`, `SNOOZED`, `CANCELLED` or `DECLINED`."""
        return self._wait(
            self._queue.settle(
                [one.job if isinstance(one, SyncJob) else one for one in outcomes], request_id=request_id
            )
        )

    def heartbeat(self, job_id: str, token: int | None = None) -> None:
        """Renew the lease to its full length. Raises LeaseLostError if it is no longer held."""
        self._wait(self._queue.heartbeat(job_id, token))
