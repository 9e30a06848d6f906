"""Tasks in a worker: a handler for each queue of a backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager

import msgspec
from django.db import close_old_connections
from django.utils import timezone

from casque.client.queue import Queue
from casque.errors import InvalidInputError, InvalidPayloadError, NotUnderstoodError
from casque.integrations.django.backend import CasqueBackend
from casque.integrations.django.connection import lend
from casque.integrations.django.failures import as_failure, as_task_error
from casque.integrations.django.payload import ENTRYPOINT, TaskCall, decode_call
from casque.integrations.django.results import set_field, task_of
from casque.integrations.django.tasks_api import (
    Task,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from casque.worker import Handler
from casque.worker.handlers import JobContext, Retry


class TaskHandlers:
    """What a worker needs to run the tasks of a backend: its queue, and a handler for each of these queue names."""

    def __init__(self, backend: CasqueBackend, queues: Iterable[str] = ()) -> None:
        """All queue names of the backend unless some are given.

        Raises:
            InvalidInputError: a name is not the backend's, or there is none.
        """
        self._backend = backend
        names = list(queues) or sorted(backend.queues)
        if not names:
            raise InvalidInputError(f"TASKS[{backend.alias!r}] allows any queue name: name those to work on")
        for name in names:
            if backend.queues and name not in backend.queues:
                known = ", ".join(sorted(backend.queues))
                raise InvalidInputError(f"TASKS[{backend.alias!r}] has no queue {name!r}; it has {known}")
        self.worker_name = ""
        """The worker that runs them, once it is known."""
        self.url, self.opening = backend.chosen.located()
        self.handlers: Mapping[str, Handler] = {
            f"{ENTRYPOINT}{name}": self._handler(f"{ENTRYPOINT}{name}") for name in names
        }

    def through(self, queue: Queue[bytes]) -> AbstractContextManager[None]:
        """Tasks enqueue others through the worker's own queue."""
        return lend(self._backend.alias, queue)

    def _handler(self, entrypoint: str) -> Handler:
        chosen = self._backend.chosen
        waits = tuple(chosen.backoff) if isinstance(chosen.backoff, list) else ()
        base = 1.0 if isinstance(chosen.backoff, list) else chosen.backoff
        return Handler(
            entrypoint,
            self._run,
            is_async=False,
            executor="thread",
            timeout_s=chosen.timeout,
            retry=Retry(max_attempts=chosen.max_attempts, delays_s=waits, base_s=base),
            encode_result=msgspec.json.encode,
        )

    def _run(self, payload: bytes, context: JobContext) -> object:
        """Run one task, in a thread of the worker."""
        # A thread lives longer than many databases keep a silent connection.
        close_old_connections()
        try:
            return self._call(payload, context)
        finally:
            close_old_connections()

    def _call(self, payload: bytes, context: JobContext) -> object:
        result = self._started(*_decoded(payload, context), context)
        task_started.send(type(self._backend), task_result=result)
        task = result.task
        before = (TaskContext(task_result=result),) if task.takes_context else ()
        try:
            returned = normalize_json(task.call(*before, *result.args, **result.kwargs))
        except Exception as error:  # noqa: BLE001 (it is the task's outcome)
            failure = as_failure(error)
            if context.attempt >= self._backend.chosen.max_attempts:
                set_field(result, "status", TaskResultStatus.FAILED)
                set_field(result, "finished_at", timezone.now())
                result.errors.append(as_task_error(f"{type(failure).__name__}: {error}"))
                task_finished.send(type(self._backend), task_result=result)
            raise failure from None
        set_field(result, "status", TaskResultStatus.SUCCESSFUL)
        set_field(result, "finished_at", timezone.now())
        set_field(result, "_return_value", returned)
        task_finished.send(type(self._backend), task_result=result)
        return returned

    def _started(self, task: Task, call: TaskCall, context: JobContext) -> TaskResult:
        """The result that the task itself and Django's signals see."""
        backend = self._backend
        if context.attempt > 1:
            return backend.get_result(context.job_id)  # with the workers and errors of earlier attempts
        now = timezone.now()
        return TaskResult(
            task=task.using(queue_name=context.entrypoint.removeprefix(ENTRYPOINT), backend=backend.alias),
            id=context.job_id,
            status=TaskResultStatus.RUNNING,
            enqueued_at=None,
            started_at=now,
            finished_at=None,
            last_attempted_at=now,
            args=call.args,
            kwargs=call.kwargs,
            backend=backend.alias,
            errors=[],
            worker_ids=[self.worker_name],
        )


def _decoded(payload: bytes, context: JobContext) -> tuple[Task, TaskCall]:
    try:
        call = decode_call(payload)
    except msgspec.DecodeError as error:
        raise InvalidPayloadError(context.entrypoint, f"it is not a task of Django's: {error}") from error
    try:
        return task_of(call.task), call
    except ImportError as error:
        # Another version of the program may have it, as during a deployment.
        raise NotUnderstoodError(context.entrypoint, str(error)) from error
