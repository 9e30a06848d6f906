"""What all formats have in common: a file of jobs, and what is known of each."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """Who wrote the file."""

    JQUEUE = "jqueue"
    OSQUEUE_GO = "osqueue-go"
    OSQUEUE_TS = "osqueue-ts"


class ForeignStatus(StrEnum):
    """What a job was doing when the file was written."""

    WAITING = "waiting"
    RUNNING = "running"
    DEAD = "dead"
    FINISHED = "finished"


class ForeignJob(msgspec.Struct, frozen=True):
    """One job, in casque's words."""

    id: str
    entrypoint: str
    payload: bytes
    status: ForeignStatus
    created_at: datetime
    priority: int = 0
    attempts: int = 0
    """How often it was claimed before."""
    max_attempts: int | None = None
    """Attempts that are left; None if the other queue has no limit."""
    unnamed: bool = False
    """Whether the file names no entrypoint for it."""


class ForeignFile(msgspec.Struct, frozen=True):
    """The jobs of a file, in the order in which its queue would hand out those of one priority."""

    kind: Kind
    jobs: tuple[ForeignJob, ...]

    def headers_of(self, job: ForeignJob) -> dict[str, str]:
        """What casque has no field for."""
        known = {"imported-from": str(self.kind), "created-at": job.created_at.isoformat()}
        return {**known, "attempts": str(job.attempts)} if job.attempts else known

    def with_status(self, status: ForeignStatus) -> list[ForeignJob]:
        return [job for job in self.jobs if job.status is status]
