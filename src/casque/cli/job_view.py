"""Jobs as commands show them: with times that people and programs can read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec
from rich.text import Text

from casque.cli.formats import clock_time, colour_state, of_max, preview, text_of
from casque.cli.output import Columns
from casque.client.job import Job
from casque.clock import SystemClock
from casque.engine.embedded import state_at
from casque.fields import GAINED, gained, shown
from casque.types import Ending, GainedFields, JobState, from_ms, moment_of


class AttemptView(msgspec.Struct, frozen=True):
    """An attempt that failed."""

    claimed_at: datetime | None
    ended_at: datetime
    how: Ending
    worker: str | None
    token: int
    error: str | None


class ProgressView(msgspec.Struct, frozen=True):
    """How far an attempt has come."""

    done: float
    total: float | None
    note: str | None


class JobView(GainedFields, frozen=True, omit_defaults=False):
    """A job in the queue."""

    id: str
    entrypoint: str
    state: JobState
    payload: bytes | None
    """In JSON base64; None if it was stored in an object of its own."""
    text: str | None
    """The payload, if it is text."""
    priority: int
    attempts: int
    max_attempts: int | None
    created_at: datetime
    due_at: datetime
    token: int
    worker: str | None
    claimed_at: datetime | None
    heartbeat_at: datetime | None
    lease_s: float | None
    error: str | None
    key: str | None
    zone: str | None
    headers: dict[str, str] | None
    tries: tuple[AttemptView, ...]
    crashes: int
    max_crashes: int | None
    declined: int
    progress: ProgressView | None
    fifo: bool


CELLS: dict[str, Callable[[JobView], str | Text]] = {
    "id": lambda job: job.id,
    "token": lambda job: str(job.token),
    "entrypoint": lambda job: job.entrypoint,
    "state": lambda job: colour_state(job.state),
    "due": lambda job: clock_time(job.due_at),
    "attempt": lambda job: of_max(job.attempts, job.max_attempts),
    "attempts": lambda job: of_max(job.attempts, job.max_attempts),
    "priority": lambda job: str(job.priority or ""),
    "zone": lambda job: job.zone or "",
    "worker": lambda job: job.worker or "",
    "payload": lambda job: preview(job.payload),
    "error": lambda job: preview(job.error),
    **{field.name: lambda job, name=field.name: shown(getattr(job, name)) for field in GAINED},  # type: ignore[misc]
}


def job_columns(*names: str) -> Columns:
    """The columns of a table of jobs."""
    return [(name, CELLS[name]) for name in names]


def view_job(job: Job[bytes]) -> JobView:
    record, spec = job.record, job.record.spec
    payload = None if spec.blob is not None else spec.payload
    return JobView(
        id=spec.id,
        entrypoint=spec.entrypoint,
        state=state_at(record, SystemClock().wall_ms()),
        payload=payload,
        text=None if payload is None else text_of(payload),
        priority=spec.priority,
        attempts=record.attempts,
        max_attempts=spec.max_attempts,
        created_at=from_ms(record.created_ms),
        due_at=from_ms(record.due_ms),
        token=record.token,
        worker=record.worker,
        claimed_at=moment_of(record.claimed_ms),
        heartbeat_at=moment_of(record.beat_ms),
        lease_s=record.lease_ms / 1000 if record.state is JobState.RUNNING else None,
        error=record.error,
        key=spec.key,
        zone=spec.zone,
        headers=spec.headers,
        tries=tuple(
            AttemptView(
                moment_of(tried.claimed_ms), from_ms(tried.ended_ms), tried.how, tried.worker, tried.token, tried.error
            )
            for tried in record.tries
        ),
        crashes=record.crashes,
        max_crashes=spec.max_crashes,
        declined=record.declined,
        progress=None if (far := record.progress) is None else ProgressView(far.done, far.total, far.note),
        fifo=spec.fifo,
        **gained(spec),
    )
