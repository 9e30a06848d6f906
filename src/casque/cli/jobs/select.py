"""Choosing jobs by state, entrypoint and zone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec

from casque.client.job import Job
from casque.client.queue import Queue
from casque.types import JobState

PAGE = 5_000
WAITING = frozenset({JobState.READY, JobState.DELAYED})
UNFINISHED = WAITING | {JobState.RUNNING}
DEAD = frozenset({JobState.DEAD})


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs of a queue are meant; None is any."""

    states: frozenset[JobState] | None = None
    entrypoint: str | None = None
    zone: str | None = None
    only: Callable[[Job[bytes]], bool] | None = None

    async def find(self, q: Queue[bytes], limit: int | None = None) -> AsyncIterator[Job[bytes]]:
        """In enqueue order, a page at a time. Zones and `only` are filtered here: a queue does not search by them."""
        found = after = 0
        while True:
            page = PAGE if limit is None or self._filters else min(PAGE, limit - found)
            jobs = await q.jobs(states=self.states, entrypoint=self.entrypoint, limit=page, after=after)
            for job in jobs:
                if not self._filters or self._has(job):
                    yield job
                    found += 1
                    if found == limit:
                        return
            if len(jobs) < page:
                return
            after = jobs[-1].record.sequence

    @property
    def _filters(self) -> bool:
        return self.zone is not None or self.only is not None

    def _has(self, job: Job[bytes]) -> bool:
        return self.zone in (None, job.zone) and (self.only is None or self.only(job))

    async def find_ids(self, q: Queue[bytes], limit: int | None = None) -> list[str]:
        return [job.id async for job in self.find(q, limit)]
