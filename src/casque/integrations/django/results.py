"""A job as Django's `TaskResult`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from casque.client.job import Job
from casque.integrations.django.failures import as_task_error
from casque.integrations.django.payload import ENTRYPOINT, TASK_HEADER, TaskCall, decode_call
from casque.integrations.django.tasks_api import Task, TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus
from casque.service import ArchivedJob
from casque.types import JobState, from_ms

STATUS = {
    JobState.READY: TaskResultStatus.READY,
    JobState.DELAYED: TaskResultStatus.READY,
    JobState.RUNNING: TaskResultStatus.RUNNING,
    JobState.DONE: TaskResultStatus.SUCCESSFUL,
    JobState.DEAD: TaskResultStatus.FAILED,
    JobState.CANCELLED: TaskResultStatus.FAILED,
}

CANCELLED = "the task was cancelled"


class Claimed(msgspec.Struct, frozen=True):
    """One attempt: when it began, and whose it was."""

    at: datetime | None
    worker: str | None


def of_job(job: Job[bytes], backend: str) -> TaskResult:
    """A task that has not finished, or has failed."""
    record = job.record
    claims = [Claimed(None if one.claimed_ms is None else from_ms(one.claimed_ms), one.worker) for one in job.tries]
    errors = [one.error for one in job.tries]
    ended = job.state is JobState.DEAD
    if job.state is JobState.RUNNING:
        claims.append(Claimed(None if record.claimed_ms is None else from_ms(record.claimed_ms), job.worker))
    return _result(
        job.id,
        job.state,
        _call(job.payload, job.headers.get(TASK_HEADER), job.id),
        entrypoint=job.entrypoint,
        priority=job.priority,
        run_at_ms=record.spec.run_at_ms,
        backend=backend,
        created_at=job.created_at,
        claims=claims,
        errors=errors,
        finished_at=from_ms(job.tries[-1].ended_ms) if ended and job.tries else None,
    )


def of_archived(job: ArchivedJob, backend: str) -> TaskResult:
    """A task that has finished."""
    claims = [Claimed(one.claimed_at, one.worker) for one in job.tries]
    errors = [one.error for one in job.tries]
    if not job.waiting and job.claimed_at is not None:
        claims.append(Claimed(job.claimed_at, job.worker))
    if job.state is not JobState.DONE:
        errors.append(job.error or CANCELLED)
    result = _result(
        job.id,
        job.state,
        _call(job.payload, (job.headers or {}).get(TASK_HEADER), job.id),
        entrypoint=job.entrypoint,
        priority=job.priority,
        run_at_ms=None if job.run_at is None else int(job.run_at.timestamp() * 1000),
        backend=backend,
        created_at=job.created_at,
        claims=claims,
        errors=errors,
        finished_at=job.finished_at,
    )
    if job.result is not None:
        set_field(result, "_return_value", msgspec.json.decode(job.result))
    return result


def set_field(result: TaskResult, name: str, value: Any) -> None:
    """Results are frozen for their users; backends change them, as Django's own do."""
    object.__setattr__(result, name, value)


def local(moment: datetime | None) -> datetime | None:
    """As Django's settings have times: aware, or naive in the current time zone."""
    if moment is None or settings.USE_TZ:
        return moment
    naive: datetime = timezone.make_naive(moment)
    return naive


def task_of(path: str) -> Task:
    """The task that a path names.

    Raises:
        ImportError: there is none by this name in this version of the program.
    """
    found = import_string(path)
    if not isinstance(found, Task):
        raise ImportError(f"{path} is no task: it is {type(found).__name__}")  # noqa: TRY004 (as if it were not there)
    return found


def _call(payload: bytes, path: str | None, job_id: str) -> TaskCall:
    try:
        return decode_call(payload)
    except msgspec.DecodeError:
        if path is None:
            raise TaskResultDoesNotExist(f"job {job_id!r} is not a task of Django's") from None
        return TaskCall(path)  # its payload was too large for the archive


def _result(
    job_id: str,
    state: JobState,
    call: TaskCall,
    *,
    entrypoint: str,
    priority: int,
    run_at_ms: int | None,
    backend: str,
    created_at: datetime,
    claims: list[Claimed],
    errors: list[str | None],
    finished_at: datetime | None,
) -> TaskResult:
    try:
        task = task_of(call.task)
    except ImportError as error:
        raise TaskResultDoesNotExist(f"the task of {job_id!r} is not there any more: {error}") from error
    began = [one.at for one in claims if one.at is not None]
    return TaskResult(
        task=task.using(
            priority=-priority,
            queue_name=entrypoint.removeprefix(ENTRYPOINT),
            run_after=None if run_at_ms is None else local(from_ms(run_at_ms)),
            backend=backend,
        ),
        id=job_id,
        status=STATUS[state],
        enqueued_at=local(created_at),
        started_at=local(began[0]) if began else None,
        finished_at=local(finished_at),
        last_attempted_at=local(began[-1]) if began else None,
        args=call.args,
        kwargs=call.kwargs,
        backend=backend,
        errors=_errors(errors),
        worker_ids=[one.worker or "" for one in claims],
    )


def _errors(texts: list[str | None]) -> list[TaskError]:
    return [as_task_error(text) for text in texts if text is not None]
