"""Long answers, the events and the archive, for one caller: only of its own jobs, and only while its token is valid."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

from casque.errors import NotAuthenticatedError
from casque.service import ArchivedJob, EventKind, QueueEvent, QueueService
from casque.transport.access import TokenBook
from casque.transport.scopes import Principal
from casque.transport.tenants import Naming
from casque.types import JobRecord

OwnJobs: TypeAlias = Callable[[], Awaitable[list[JobRecord]]]

_ENDS = frozenset({EventKind.ACKED, EventKind.CANCELLED, EventKind.WITHDRAWN, EventKind.LAPSED, EventKind.PURGED})


class LongAnswers:
    """What a queue yields to one caller. The token is looked up in `book` with each entry: an answer may outlive it."""

    def __init__(
        self, service: QueueService, principal: Principal, naming: Naming | None, book: TokenBook | None
    ) -> None:
        self._service = service
        self._principal = principal
        self._naming = naming
        self._book = book

    def events(self, own_jobs: OwnJobs, from_position: int | None, *, follow: bool) -> AsyncGenerator[QueueEvent]:
        """`own_jobs` lists the jobs in the queue that a limited caller reaches."""
        if self._naming is not None:
            return self._own_events(self._naming, own_jobs, from_position, follow=follow)
        events = self._service.events(from_position=from_position, follow=follow)
        return events if self._book is None else self._while_valid(events)

    async def _own_events(
        self, naming: Naming, own_jobs: OwnJobs, from_position: int | None, *, follow: bool
    ) -> AsyncGenerator[QueueEvent]:
        """Most events name only a job, so track which jobs are the caller's own: those that exist now, and those added
        after the start position. Events of a job that existed at `from_position` and is gone by now are left out,
        because its owner is no longer known."""
        # Without a position: start reading before listing the jobs, and yielding after it, so that no job added in
        # between is missed.
        start = (await self._service.stats()).position if from_position is None else from_position
        own = {job.spec.id for job in await own_jobs()}
        if from_position is None:
            shown_after = (await self._service.stats()).position
        else:
            shown_after = from_position
            # Events with an id from before the current job of that id was added belong to another job, maybe of others.
            async with aclosing(self._service.events(from_position=start, follow=False)) as past:
                own -= {str(event.job_id) async for event in past if event.kind is EventKind.ADDED}
        events = self._service.events(from_position=start, follow=follow)
        async with aclosing(self._while_valid(events)) as valid:
            async for event in valid:
                if event.kind is EventKind.ADDED:
                    # The id may have belonged to another job before.
                    (own.add if self._reaches_fields(event) else own.discard)(str(event.job_id))
                if event.job_id in own and event.position > shown_after:
                    yield naming.shown_event(event)
                if event.kind in _ENDS:
                    own.discard(str(event.job_id))

    def archive(self, kept: AsyncGenerator[ArchivedJob]) -> AsyncGenerator[ArchivedJob]:
        if self._naming is not None:
            return self._own_archive(self._naming, kept)
        return kept if self._book is None else self._while_valid(kept)

    async def _own_archive(self, naming: Naming, kept: AsyncGenerator[ArchivedJob]) -> AsyncGenerator[ArchivedJob]:
        async with aclosing(self._while_valid(kept)) as valid:
            async for job in valid:
                if self._principal.reaches(job.entrypoint, job.zone):
                    yield naming.shown_archived(job)

    async def _while_valid(self, answers: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
        """End the answer when the token is revoked."""
        async with aclosing(answers):
            async for answer in answers:
                if self._book is not None and self._book.current(self._principal) is not self._principal:
                    raise NotAuthenticatedError(f"the token {self._principal.name!r} has changed; ask again")
                yield answer

    def _reaches_fields(self, event: QueueEvent) -> bool:
        return self._principal.reaches(event.fields["entrypoint"], event.fields.get("zone"))
