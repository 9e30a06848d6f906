"""The `Job` that users see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from casque.client.payloads import BytesCodec, PayloadCodec
from casque.codec.blobs import missing_blob
from casque.errors import InvalidInputError
from casque.types import Attempt, JobRecord, JobState, Progress, from_ms, moment_of

T = TypeVar("T")

_BYTES = BytesCodec()


class JobStatus(StrEnum):
    """The three states of the small API."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    DEAD = "dead"


class LeaseHolder(Protocol):
    """The part of a queue that a claimed job needs."""

    async def ack(self, job_id: str, token: int | None = None, *, result: bytes | None = None) -> None: ...

    async def nack(self, job_id: str, token: int | None = None, *, delay: Any = None, error: Any = None) -> None: ...

    async def heartbeat(self, job_id: str, token: int | None = None) -> None: ...


class Job(msgspec.Struct, Generic[T], frozen=True, gc=False, eq=False):
    """One job, frozen as it was when the call that returned it was committed.

    A claimed job carries the token of its lease, and `ack`, `nack` and `heartbeat` send it along: once the lease is
    lost they raise LeaseLostError and change nothing.

    >>> import asyncio
    >>> from casque import Queue
    >>> async def main():
    ...     async with Queue.open("memory://job-example") as q:
    ...         await q.enqueue("send", b"hello", priority=5)
    ...         [job] = await q.dequeue("send")
    ...         print(job.payload, job.priority, job.attempts)
    ...         await job.ack()
    >>> asyncio.run(main())
    b'hello' 5 1
    """

    # Not tracked by the garbage collector: a worker may get many thousands at once.
    record: JobRecord
    """The complete record, as the queue stores it."""
    _codec: PayloadCodec[T]
    _holder: LeaseHolder | None = None
    _payload: tuple[T] | None = None

    @property
    def id(self) -> str:
        return self.record.spec.id

    @property
    def entrypoint(self) -> str:
        return self.record.spec.entrypoint

    @property
    def payload(self) -> T:
        """The payload, decoded and validated. Raises InvalidInputError if it does not fit the queue's type."""
        decoded = self._payload
        if decoded is None:
            decoded = (self._codec.decode(self.raw_payload),)
            msgspec.structs.force_setattr(self, "_payload", decoded)
        return decoded[0]

    @property
    def raw_payload(self) -> bytes:
        """The stored payload. Raises CorruptQueueError if it was in a separate object that is gone."""
        if self.record.spec.blob is not None:
            raise missing_blob(self.record)
        return self.record.spec.payload

    @property
    def status(self) -> JobStatus:
        match self.record.state:
            case JobState.RUNNING:
                return JobStatus.IN_PROGRESS
            case JobState.DEAD:
                return JobStatus.DEAD
            case _:
                return JobStatus.QUEUED

    @property
    def state(self) -> JobState:
        return self.record.state

    @property
    def priority(self) -> int:
        return self.record.spec.priority

    @property
    def created_at(self) -> datetime:
        return from_ms(self.record.created_ms)

    @property
    def heartbeat_at(self) -> datetime | None:
        return None if self.record.beat_ms is None else from_ms(self.record.beat_ms)

    @property
    def due_at(self) -> datetime:
        """When it became due, or will."""
        return from_ms(self.record.due_ms)

    @property
    def attempts(self) -> int:
        """How often it has been claimed, including the current claim."""
        return self.record.attempts

    @property
    def max_attempts(self) -> int | None:
        return self.record.spec.max_attempts

    @property
    def crashes(self) -> int:
        """How often its worker crashed on it, if it has `max_crashes`; such a claim does not count as an attempt."""
        return self.record.crashes

    @property
    def progress(self) -> Progress | None:
        """Progress of the current attempt, if its handler reports it, as of its last heartbeat."""
        return self.record.progress

    @property
    def max_crashes(self) -> int | None:
        return self.record.spec.max_crashes

    @property
    def token(self) -> int:
        return self.record.token

    @property
    def lease(self) -> timedelta:
        """How long the claim lasts without a heartbeat."""
        return timedelta(milliseconds=self.record.lease_ms)

    @property
    def worker(self) -> str | None:
        return self.record.worker

    @property
    def last_error(self) -> str | None:
        return self.record.error

    @property
    def tries(self) -> tuple[Attempt, ...]:
        """The failed attempts, oldest first, the last 50 at most."""
        return self.record.tries

    @property
    def key(self) -> str | None:
        return self.record.spec.key

    @property
    def zone(self) -> str | None:
        return self.record.spec.zone

    @property
    def headers(self) -> Mapping[str, str]:
        return MappingProxyType(self.record.spec.headers or {})

    @property
    def tags(self) -> tuple[str, ...]:
        return self.record.spec.tags

    @property
    def expires_at(self) -> datetime | None:
        """When it is cancelled unless it is running by then; None if it does not expire."""
        return moment_of(self.record.expires_at_ms)

    async def ack(self, *, result: bytes | None = None) -> None:
        """Mark the job as done; `result`, up to 256 KiB, goes to the archive with it.

        Raises LeaseLostError or JobNotFoundError if this worker no longer holds it.
        """
        await self.lease_holder().ack(self.id, self.token, result=result)

    async def nack(self, *, delay: float | timedelta | None = None, error: BaseException | str | None = None) -> None:
        """Mark the attempt as failed: the job runs again after `delay`, or after the queue's back-off; it is dead if
        this was its last attempt."""
        await self.lease_holder().nack(self.id, self.token, delay=delay, error=error)

    async def heartbeat(self) -> None:
        """Renew the lease to its full length."""
        await self.lease_holder().heartbeat(self.id, self.token)

    def lease_holder(self) -> LeaseHolder:
        """The queue that claimed this job. Raises InvalidInputError for a job that was not claimed."""
        if self._holder is None or self.record.state is not JobState.RUNNING:
            raise InvalidInputError(f"job {self.id!r} was not claimed by this queue: dequeue it first")
        return self._holder

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.record == other.record

    def __hash__(self) -> int:
        return hash((self.id, self.token))

    def __repr__(self) -> str:
        return f"Job(id={self.id!r}, entrypoint={self.entrypoint!r}, state={self.state.value!r}, token={self.token})"


@dataclass(frozen=True, slots=True)
class QueueState:
    """Everything in a queue at one position; `version` is that position."""

    jobs: tuple[Job[bytes], ...] = ()
    version: int = 0

    def queued_jobs(self, entrypoint: str | None = None) -> tuple[Job[bytes], ...]:
        """Waiting jobs by priority, then in the order they were created; of one entrypoint or all."""
        waiting = (j for j in self.jobs if j.status is JobStatus.QUEUED and entrypoint in (None, j.entrypoint))
        return tuple(sorted(waiting, key=lambda j: (j.priority, j.created_at)))

    def in_progress_jobs(self) -> tuple[Job[bytes], ...]:
        return tuple(j for j in self.jobs if j.status is JobStatus.IN_PROGRESS)

    def find(self, job_id: str) -> Job[bytes] | None:
        return next((j for j in self.jobs if j.id == job_id), None)

    def __repr__(self) -> str:
        return f"QueueState(version={self.version}, jobs={len(self.jobs)})"


def plain_job(record: JobRecord, holder: LeaseHolder | None = None) -> Job[bytes]:
    """A job whose payload stays bytes."""
    return Job(record, _BYTES, holder)
