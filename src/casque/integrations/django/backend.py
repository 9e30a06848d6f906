"""`CasqueBackend`: tasks become jobs, and jobs are looked up as results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from datetime import UTC, timedelta
from functools import cached_property, partial
from typing import Any

from django.core import checks
from django.db import transaction
from django.utils import timezone

from casque.client.job import Job
from casque.client.new_jobs import NewJob
from casque.client.queue import Queue
from casque.clock import Clock, SystemClock, system_random
from casque.errors import CasqueError
from casque.integrations.django.connection import Connection, LentConnection, connect
from casque.integrations.django.options import backend_options
from casque.integrations.django.payload import ENTRYPOINT, TASK_HEADER, encode_call, made_at, new_task_id
from casque.integrations.django.results import local, of_archived, of_job, set_field
from casque.integrations.django.tasks_api import (
    BaseTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from casque.service import ArchivedJob
from casque.settings import milliseconds

CLOCKS_APART = timedelta(hours=1)
"""Clock difference between machines up to which a result is still found."""
ARCHIVED_AFTER = 3
"""After this many times `archive_interval`, a job that is not in the archive will not appear there."""


class CasqueBackend(BaseTaskBackend):
    """Tasks on a queue of casque's: deferred or by priority, coroutines too, and with results for every process."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.chosen = backend_options(alias, self.options)
        self._clock: Clock = SystemClock()
        self._rng = system_random()

    def enqueue(self, task: Task, args: Iterable[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Enqueue a task: at once, or in a transaction when that is committed. Durable when this returns, or the
        commit.

        Raises:
            CasqueError: it was not enqueued, or that is unknown.
        """
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id=new_task_id(self._rng, self._clock.wall_ms()),
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        send = partial(self._send, result, self._new_job(result))
        database = self.chosen.database
        if self.chosen.enqueue_on_commit and transaction.get_connection(database).in_atomic_block:
            transaction.on_commit(send, using=database)
        else:
            send()
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """The task as it is now.

        A task that has finished is in the archive within a second or so; in between this waits for it.

        Raises:
            TaskResultDoesNotExist: no task has this id, it waits for the commit of its transaction, or the archive has
                forgotten it.
        """
        since = made_at(result_id)
        if since is None:
            raise TaskResultDoesNotExist(result_id)
        connection = self.connection()
        found = connection.wait(self._find(connection.queue, result_id))
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        return of_job(found, self.alias) if isinstance(found, Job) else of_archived(found, self.alias)

    def check(self, **_: Any) -> list[checks.CheckMessage]:
        """For `manage.py check`: whether the queue's name can be found. Opens nothing."""
        try:
            self.chosen.located()
        except CasqueError as error:
            return [checks.Error(f"TASKS[{self.alias!r}]: {error}", id="casque.E001")]
        return []

    def connection(self) -> Connection | LentConnection:
        """The queue, opened for this process."""
        return connect(self.alias, *self._located)

    @cached_property
    def _located(self) -> tuple[Any, Mapping[str, Any]]:
        return self.chosen.located()

    # --- Inside ---

    def _new_job(self, result: TaskResult) -> NewJob[bytes]:
        task = result.task
        run_after = task.run_after
        if run_after is not None and timezone.is_naive(run_after):
            run_after = timezone.make_aware(run_after)
        return NewJob(
            f"{ENTRYPOINT}{task.queue_name}",
            encode_call(task.module_path, result.args, result.kwargs),
            priority=-task.priority,  # Django runs higher ones first
            run_at=None if run_after is None else run_after.astimezone(UTC),
            max_attempts=self.chosen.max_attempts,
            max_crashes=self.chosen.max_crashes,
            headers={TASK_HEADER: task.module_path},
            id=result.id,
        )

    def _send(self, result: TaskResult, new: NewJob[bytes]) -> None:
        connection = self.connection()
        # The request id makes it safe to repeat, and the id is known before: the result is handed out while a
        # transaction may still be open.
        [job] = connection.wait(connection.queue.enqueue_many([new], request_id=result.id))
        set_field(result, "enqueued_at", local(job.created_at))
        task_enqueued.send(type(self), task_result=result)

    async def _find(self, queue: Queue[bytes], task_id: str) -> Job[bytes] | ArchivedJob | None:
        interval_ms = milliseconds(self.chosen.archive_interval())
        until_ms = self._clock.monotonic_ms() + ARCHIVED_AFTER * interval_ms
        while True:
            late = self._clock.monotonic_ms() >= until_ms
            if (job := await queue.find(task_id)) is not None:
                return job
            if (archived := await _archived(queue, task_id)) is not None or late:
                return archived
            await self._clock.sleep(interval_ms / 4000)


async def _archived(queue: Queue[bytes], task_id: str) -> ArchivedJob | None:
    made = made_at(task_id)
    assert made is not None
    found: ArchivedJob | None = None
    async with aclosing(queue.archive(since=made - CLOCKS_APART)) as jobs:
        async for job in jobs:
            if job.id == task_id:
                found = job  # and continue: a dead job that got new attempts ends again
    return found
