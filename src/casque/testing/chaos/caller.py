"""A queue whose every call is recorded: when it started, when it ended, what came back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from casque.client.job import Job
from casque.client.queue import NewJob, Queue
from casque.errors import (
    CasqueError,
    InvalidInputError,
    JobNotFoundError,
    JobStateError,
    LeaseLostError,
    UnknownOutcomeError,
    ZoneLeaseLostError,
)
from casque.service import ArchivedJob
from casque.testing.history import Outcome, Recorder
from casque.testing.history.call import Asked, Claim, Wish
from casque.types import JobState, ZoneLease

A = TypeVar("A")

ENTRYPOINT = "work"
ATTEMPTS = 1_000
"""Workers are killed often: no job is to die of that here, or its end would be another one than was asked for."""
REFUSALS = (InvalidInputError, JobNotFoundError, JobStateError, LeaseLostError, ZoneLeaseLostError)
WAITING_STATES = (JobState.READY, JobState.DELAYED)


class Caller:
    """The calls of one process. Each answers None if it came to nothing; the record says why."""

    def __init__(self, queue: Queue[bytes], recorder: Recorder) -> None:
        self._queue = queue
        self._recorder = recorder
        self.known: list[str] = []
        """Jobs that this process has enqueued."""

    async def enqueue(self, wishes: Sequence[Wish], *, request: str | None = None) -> list[Job[bytes]] | None:
        asked = self._recorder.ask("enqueue", wishes=wishes, request=request)
        new = [
            NewJob(ENTRYPOINT, w.tag.encode(), key=w.key, zone=w.zone, fifo=w.fifo, max_attempts=ATTEMPTS)
            for w in wishes
        ]
        jobs = await self._call(asked, self._queue.enqueue_many(new, request_id=request), names_of)
        self.known = [*self.known[-100:], *(job.id for job in jobs or ())]
        return jobs

    async def dequeue(
        self, *, batch_size: int, wait_s: float, lease_s: float, zone_lease: ZoneLease | None = None
    ) -> list[Job[bytes]]:
        asked = self._recorder.ask("dequeue", lease_ms=int(lease_s * 1000))
        work = self._queue.dequeue(ENTRYPOINT, batch_size=batch_size, wait=wait_s, lease=lease_s, zone_lease=zone_lease)
        return await self._call(asked, work, claims_of) or []

    async def ack(self, job: Job[bytes]) -> None:
        await self._settle("ack", job, job.ack())

    async def nack(self, job: Job[bytes]) -> None:
        await self._settle("nack", job, job.nack(delay=0.1))

    async def heartbeat(self, job: Job[bytes]) -> None:
        await self._settle("heartbeat", job, job.heartbeat())

    async def _settle(self, verb: str, job: Job[bytes], work: Awaitable[None]) -> None:
        await self._call(self._recorder.ask(verb, job=job.id, token=job.token), work)

    async def give_back(self, job: Job[bytes]) -> None:
        async def give() -> None:
            [error] = await self._queue.give_back([job])
            if error is not None:
                raise error

        await self._settle("give_back", job, give())

    async def cancel(self, job_id: str) -> None:
        await self._call(self._recorder.ask("cancel", job=job_id), self._queue.cancel(job_id))

    async def find(self, job_id: str) -> None:
        asked = self._recorder.ask("read", job=job_id)
        await self._call(asked, self._queue.find(job_id), lambda job: [claim_of(job)] if job is not None else [])

    async def lease_zone(self, lease_s: float) -> ZoneLease | None:
        """Of a zone with work, if there is one that is free."""
        try:
            peeked = await self._queue.peek_zones(ENTRYPOINT, limit=10)
        except CasqueError:
            return None
        for zone in peeked:
            asked = self._recorder.ask("lease_zone", zone=zone.zone, lease_ms=int(lease_s * 1000))
            work = self._queue.lease_zone(zone.zone, lease=lease_s)
            lease = await self._call(asked, work, token_of=lambda lease: lease.token if lease is not None else 0)
            if lease is not None:
                return lease
        return None

    async def heartbeat_zone(self, lease: ZoneLease) -> None:
        asked = self._recorder.ask("heartbeat_zone", zone=lease.zone, token=lease.token)
        await self._call(asked, self._queue.heartbeat_zone(lease))

    async def release_zone(self, lease: ZoneLease) -> None:
        asked = self._recorder.ask("release_zone", zone=lease.zone, token=lease.token)
        await self._call(asked, self._queue.release_zone(lease))

    async def _call(
        self,
        asked: Asked,
        work: Awaitable[A],
        claims: Callable[[A], Sequence[Claim]] = lambda _answer: (),
        token_of: Callable[[A], int] = lambda _answer: 0,
    ) -> A | None:
        try:
            answer = await work
        except CasqueError as error:
            self._recorder.answer(asked, outcome_of(error), error=type(error).__name__)
            return None
        self._recorder.answer(asked, Outcome.OK, claims=claims(answer), token=token_of(answer))
        return answer


def outcome_of(error: CasqueError) -> Outcome:
    """What an error promises about its call."""
    if isinstance(error, UnknownOutcomeError):
        return Outcome.UNKNOWN
    return Outcome.REFUSED if isinstance(error, REFUSALS) else Outcome.FAILED


def names_of(jobs: Sequence[Job[bytes]]) -> list[Claim]:
    """Which jobs they are: an enqueue that is asked again answers with the same jobs as they are by then."""
    return [Claim(job.id, claim_of(job).tag) for job in jobs]


def claims_of(jobs: Sequence[Job[bytes]]) -> list[Claim]:
    return [claim_of(job) for job in jobs]


def claim_of(job: Job[bytes] | ArchivedJob) -> Claim:
    """A job as the record knows it."""
    schedule = (job.headers or {}).get("casque-schedule")
    tag = job.payload.decode() if schedule is None else f"tick {schedule} {(job.headers or {})['casque-tick']}"
    state = "waiting" if job.state in WAITING_STATES else job.state.value
    return Claim(job.id, tag, job.token, state)
