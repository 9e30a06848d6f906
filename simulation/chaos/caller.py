"""A queue whose every call is recorded: when it started, when it ended, what came back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from casque.client.connecting import through_brokers
from casque.client.job import Job
from casque.client.new_jobs import NewJob
from casque.client.opening import Parts
from casque.client.queue import DEFAULTS, Queue
from casque.client.staging import StagedJobs, StagedPart, Stager
from casque.clock import SystemClock
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
from casque.storage.url import open_store
from casque.types import JobState, ZoneLease
from simulation.history import Outcome, Recorder
from simulation.history.call import Asked, Claim, Wish

A = TypeVar("A")

ENTRYPOINT = "work"
GATED = "gated"
"""Whose gate is opened and closed."""
ENTRYPOINTS = (ENTRYPOINT, GATED)
ATTEMPTS = 1_000
"""Workers are killed often: no job is to die of that here, or its end would be another one than was asked for. Those
that have one attempt are to die."""
REFUSALS = (InvalidInputError, JobNotFoundError, JobStateError, LeaseLostError, ZoneLeaseLostError)
WAITING_STATES = (JobState.READY, JobState.DELAYED)
ASKED_AGAIN_MAX = 20
PAUSE_S = 0.2

_CLOCK = SystemClock()


class Place(NamedTuple):
    """Where the objects of the queue are: staged jobs are written beside them, and a ring is resized there."""

    url: str
    options: Mapping[str, str]
    whole: bool
    """Whether jobs that are enqueued together are one commit. On a ring they are one for each shard."""


@dataclass(frozen=True)
class Ended(Generic[A]):
    """How a call ended, and the answer if there was one."""

    outcome: Outcome
    answer: A | None = None


class Caller:
    """The calls of one process. The record says what came of each."""

    def __init__(self, queue: Queue[bytes], recorder: Recorder, place: Place, stopping: asyncio.Event) -> None:
        self._queue = queue
        self._recorder = recorder
        self._place = place
        self._stopping = stopping
        self.known: list[str] = []
        """Jobs that this process has enqueued."""

    async def insist(self, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """Make the same call, with a request id, until there is an answer. A process that is to leave does not wait for
        what is refused for now: an entrypoint may be drained for as long as nobody opens it."""
        outcome = await call()
        for _ in range(ASKED_AGAIN_MAX):
            if outcome in (Outcome.OK, Outcome.REFUSED):
                break
            if outcome is Outcome.FAILED and self._stopping.is_set():
                break
            await _CLOCK.sleep(PAUSE_S)
            outcome = await call()
        return outcome

    async def again(self, asked: Asked) -> None:
        """Make a call once more that another process made under a request id, and never heard of."""
        request = asked.request
        assert request is not None
        match asked.verb:
            case "enqueue":
                await self.insist(lambda: self.enqueue(asked.wishes, request=request))
            case "admit":
                source, batch = batch_of(asked)
                await self.insist(lambda: self.admit(asked.wishes, source=source, batch=batch))
            case "dequeue":
                for job in await self.dequeue(batch_size=1, wait_s=0, lease_s=asked.lease_ms / 1000, request=request):
                    await self.ack(job.id, job.token)
            case "ack" | "nack" if asked.job is not None:
                settle = self.ack if asked.verb == "ack" else self.nack
                await self.insist(lambda: settle(asked.job or "", asked.token, request=request))
            case "cancel" | "retry" if asked.job is not None:
                change = self.cancel if asked.verb == "cancel" else self.retry
                await self.insist(lambda: change(asked.job or "", request=request))
            case "gate":
                await self.insist(lambda: self.set_gate(asked.gate or "", request=request))
            case verb:
                raise AssertionError(f"{verb} is not asked again")

    # --- Producing ---

    async def enqueue(self, wishes: Sequence[Wish], *, request: str | None = None) -> Outcome:
        asked = self._recorder.ask("enqueue", wishes=wishes, request=request, whole=self._place.whole)
        new = [
            NewJob(
                w.entrypoint or ENTRYPOINT,
                w.tag.encode(),
                key=w.key,
                zone=w.zone,
                fifo=w.fifo,
                max_attempts=1 if w.once else ATTEMPTS,
            )
            for w in wishes
        ]
        ended = await self._call(asked, self._queue.enqueue_many(new, request_id=request), names_of)
        self.known = [*self.known[-100:], *(job.id for job in ended.answer or ())]
        return ended.outcome

    async def admit(self, wishes: Sequence[Wish], *, source: str, batch: int) -> Outcome:
        """Stage jobs, whose ids are their tags, and admit them. Who stages again makes other parts of the same jobs."""
        try:
            part = await asyncio.to_thread(self._stage, wishes)
        except CasqueError:
            return Outcome.FAILED  # nothing was asked yet
        asked = self._recorder.ask("admit", wishes=wishes, request=f"{source} {batch}", whole=self._place.whole)
        ended = await self._call(
            asked,
            self._queue.admit(source, batch, [part]),
            also=lambda admission: {"repeated": admission.repeated, "jobs": admission.jobs},
        )
        return ended.outcome

    def _stage(self, wishes: Sequence[Wish]) -> StagedPart:
        with Stager(self._place.url, options=self._place.options) as stager:
            return stager.stage(
                StagedJobs(
                    [w.tag for w in wishes],
                    [w.entrypoint or ENTRYPOINT for w in wishes],
                    [w.tag.encode() for w in wishes],
                    max_attempts=[1 if w.once else ATTEMPTS for w in wishes],
                    zones=[w.zone for w in wishes],
                )
            )

    # --- Working ---

    async def dequeue(
        self,
        *,
        batch_size: int,
        wait_s: float,
        lease_s: float,
        zone_lease: ZoneLease | None = None,
        request: str | None = None,
    ) -> list[Job[bytes]]:
        asked = self._recorder.ask("dequeue", lease_ms=int(lease_s * 1000), request=request)
        work = self._queue.dequeue(
            ENTRYPOINTS, batch_size=batch_size, wait=wait_s, lease=lease_s, zone_lease=zone_lease, request_id=request
        )
        ended = await self._call(asked, work, claims_of)
        return ended.answer or []

    async def ack(self, job: str, token: int, *, request: str | None = None) -> Outcome:
        return await self._settle("ack", job, token, self._queue.ack(job, token, request_id=request), request)

    async def nack(self, job: str, token: int, *, request: str | None = None) -> Outcome:
        work = self._queue.nack(job, token, delay=0.1, request_id=request)
        return await self._settle("nack", job, token, work, request)

    async def heartbeat(self, job: Job[bytes]) -> None:
        await self._settle("heartbeat", job.id, job.token, job.heartbeat())

    async def give_back(self, job: Job[bytes]) -> None:
        async def give() -> None:
            [error] = await self._queue.give_back([job])
            if error is not None:
                raise error

        await self._settle("give_back", job.id, job.token, give())

    async def _settle(
        self, verb: str, job: str, token: int, work: Awaitable[None], request: str | None = None
    ) -> Outcome:
        return (await self._call(self._recorder.ask(verb, job=job, token=token, request=request), work)).outcome

    # --- Managing ---

    async def cancel(self, job_id: str, *, request: str | None = None) -> Outcome:
        work = self._queue.cancel(job_id, request_id=request)
        return await self._settle("cancel", job_id, 0, work, request)

    async def retry(self, job_id: str, *, request: str | None = None) -> Outcome:
        work = self._queue.retry(job_id, request_id=request)
        return await self._settle("retry", job_id, 0, work, request)

    async def dead(self, most: int) -> list[str]:
        """Some jobs to be retried."""
        try:
            return [job.id for job in await self._queue.jobs(states=[JobState.DEAD], limit=most)]
        except CasqueError:
            return []

    async def set_gate(self, gate: str, *, request: str | None = None) -> Outcome:
        changes = {"paused": self._queue.pause, "draining": self._queue.drain, "open": self._queue.resume}
        asked = self._recorder.ask("gate", entrypoint=GATED, gate=gate, request=request)
        return (await self._call(asked, changes[gate](GATED, request_id=request))).outcome

    async def resize(self, shards: int) -> Outcome:
        """As `casque queue resize` does it: a process that may be killed half-way."""
        asked = self._recorder.ask("resize", shards=shards)
        store = open_store(self._place.url, options=self._place.options)
        parts = Parts(store, DEFAULTS.with_changes({"ticks": False}))

        async def work() -> None:
            builder = parts.builder(through_brokers(parts))
            await builder.tidy()
            await builder.resize(shards)

        try:
            return (await self._call(asked, work())).outcome
        finally:
            await store.close()

    async def find(self, job_id: str) -> None:
        asked = self._recorder.ask("read", job=job_id)
        await self._call(asked, self._queue.find(job_id), lambda job: [claim_of(job)] if job is not None else [])

    # --- Zones ---

    async def lease_zone(self, lease_s: float) -> ZoneLease | None:
        """Of a zone with work, if there is one that is free."""
        try:
            peeked = await self._queue.peek_zones(ENTRYPOINTS, limit=10)
        except CasqueError:
            return None
        for zone in peeked:
            asked = self._recorder.ask("lease_zone", zone=zone.zone, lease_ms=int(lease_s * 1000))
            work = self._queue.lease_zone(zone.zone, lease=lease_s)
            ended = await self._call(asked, work, also=lambda lease: {"token": lease.token} if lease else {})
            if ended.answer is not None:
                return ended.answer
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
        also: Callable[[A], Mapping[str, Any]] = lambda _answer: {},
    ) -> Ended[A]:
        try:
            answer = await work
        except CasqueError as error:
            outcome = outcome_of(error)
            self._recorder.answer(asked, outcome, error=type(error).__name__)
            return Ended(outcome)
        self._recorder.answer(asked, Outcome.OK, claims=claims(answer), **also(answer))
        return Ended(Outcome.OK, answer)


def outcome_of(error: CasqueError) -> Outcome:
    """What an error promises about its call."""
    if isinstance(error, UnknownOutcomeError):
        return Outcome.UNKNOWN
    return Outcome.REFUSED if isinstance(error, REFUSALS) else Outcome.FAILED


def batch_of(admission: Asked) -> tuple[str, int]:
    """The source and the number of a batch: its request id names both."""
    source, _, batch = (admission.request or "").rpartition(" ")
    return source, int(batch)


def names_of(jobs: Sequence[Job[bytes]]) -> list[Claim]:
    """Which jobs they are: an enqueue that is asked again answers with the same jobs as they are by then. One that held
    a unique key and is over is shown without its payload, and so without a tag."""
    return [Claim(job.id, claim_of(job).tag) for job in jobs]


def claims_of(jobs: Sequence[Job[bytes]]) -> list[Claim]:
    return [claim_of(job) for job in jobs]


def claim_of(job: Job[bytes] | ArchivedJob) -> Claim:
    """A job as the record knows it."""
    schedule = (job.headers or {}).get("casque-schedule")
    tag = job.payload.decode() if schedule is None else f"tick {schedule} {(job.headers or {})['casque-tick']}"
    state = "waiting" if job.state in WAITING_STATES else job.state.value
    return Claim(job.id, tag, job.token, state)
