"""`Job` and `QueueState`, as frozen pydantic models.

A state is a value: its methods return changed copies and touch no storage. One that was read from a queue also knows in
which order that queue hands out its jobs.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_serializer, field_validator

from casque.client.job import Job as CasqueJob
from casque.client.job import JobStatus
from casque.clock import SystemClock, new_id, system_random
from casque.compat.jqueue.domain.errors import JobNotFoundError
from casque.types import JobState, from_ms

__all__ = ["Job", "JobStatus", "QueueState"]

Turn = tuple[bool, int, datetime]
"""What decides when a waiting job is handed out: whether it is delayed, its priority, since when it is due."""

_RANDOM = system_random()


def _now() -> datetime:
    return from_ms(SystemClock().wall_ms())


class Job(BaseModel):
    """One job. In JSON its payload is base64."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(default_factory=lambda: new_id(_RANDOM))
    entrypoint: str
    payload: bytes
    status: JobStatus = JobStatus.QUEUED
    priority: int = 0
    created_at: datetime = Field(default_factory=_now)
    heartbeat_at: datetime | None = None

    @classmethod
    def new(cls, entrypoint: str, payload: bytes, priority: int = 0) -> Self:
        """A queued job with an id of its own."""
        return cls(entrypoint=entrypoint, payload=payload, priority=priority)

    @classmethod
    def of(cls, job: CasqueJob[bytes]) -> Self:
        """The same job as jqueue shows it."""
        # Not validated: its values come from a queue, and there may be many.
        return cls.model_construct(
            id=job.id,
            entrypoint=job.entrypoint,
            payload=job.payload,
            status=job.status,
            priority=job.priority,
            created_at=job.created_at,
            heartbeat_at=job.heartbeat_at,
        )

    def with_status(self, status: JobStatus) -> Self:
        return self.model_copy(update={"status": status})

    def with_heartbeat(self, ts: datetime | None) -> Self:
        return self.model_copy(update={"heartbeat_at": ts})

    @field_validator("payload", mode="before")
    @classmethod
    def _from_base64(cls, value: Any) -> Any:
        if isinstance(value, str):
            return base64.b64decode(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise ValueError(f"payload must be bytes, or base64 as str, not {type(value).__name__}")

    @field_serializer("payload")
    def _to_base64(self, value: bytes) -> str:
        return base64.b64encode(value).decode("ascii")


class QueueState(BaseModel):
    """Every job of a queue, in enqueue order, and the number of the last write."""

    model_config = ConfigDict(frozen=True)

    jobs: tuple[Job, ...] = ()
    version: int = 0

    _turns: dict[str, Turn] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, jobs: Iterable[CasqueJob[bytes]], version: int) -> Self:
        """A state as read from a queue."""
        found = list(jobs)
        state = cls.model_construct(jobs=tuple([Job.of(job) for job in found]), version=version)
        turns = {job.id: _turn(job) for job in found if job.status is JobStatus.QUEUED}
        state._turns.update(turns)  # noqa: SLF001 (its own)
        return state

    def queued_jobs(self, entrypoint: str | None = None) -> tuple[Job, ...]:
        """Waiting jobs in the order in which `dequeue` hands them out; of one entrypoint or all.

        That is by priority, then since when they are due: their creation, or their last failure. Delayed ones are last.
        """
        waiting = [j for j in self.jobs if j.status == JobStatus.QUEUED and entrypoint in (None, j.entrypoint)]
        return tuple(sorted(waiting, key=self._turn_of))

    def in_progress_jobs(self) -> tuple[Job, ...]:
        return tuple(job for job in self.jobs if job.status == JobStatus.IN_PROGRESS)

    def find(self, job_id: str) -> Job | None:
        return next((job for job in self.jobs if job.id == job_id), None)

    def with_job_added(self, job: Job) -> Self:
        return self._changed((*self.jobs, job))

    def with_job_replaced(self, updated: Job) -> Self:
        """Raises JobNotFoundError if no job has this one's id."""
        if self.find(updated.id) is None:
            raise JobNotFoundError(updated.id)
        return self._changed(updated if job.id == updated.id else job for job in self.jobs)

    def with_job_removed(self, job_id: str) -> Self:
        """Raises JobNotFoundError if no job has this id."""
        if self.find(job_id) is None:
            raise JobNotFoundError(job_id)
        return self._changed(job for job in self.jobs if job.id != job_id)

    def requeue_stale(self, cutoff: datetime) -> Self:
        """Queue again what is in progress without a heartbeat since `cutoff`; the same state if there is none."""
        stale = {j.id for j in self.in_progress_jobs() if j.heartbeat_at is None or j.heartbeat_at < cutoff}
        if not stale:
            return self
        waiting = {"status": JobStatus.QUEUED, "heartbeat_at": None}
        return self._changed(job.model_copy(update=waiting) if job.id in stale else job for job in self.jobs)

    def __eq__(self, other: object) -> bool:
        # Without the order of a queue: a state that went through JSON is still the same.
        return isinstance(other, QueueState) and (self.jobs, self.version) == (other.jobs, other.version)

    def __hash__(self) -> int:
        return hash((self.jobs, self.version))

    def _changed(self, jobs: Iterable[Job]) -> Self:
        return self.model_copy(update={"jobs": tuple(jobs), "version": self.version + 1})

    def _turn_of(self, job: Job) -> Turn:
        return self._turns.get(job.id, (False, job.priority, job.created_at))


def _turn(job: CasqueJob[bytes]) -> Turn:
    return job.state is JobState.DELAYED, job.priority, job.due_at
