"""Choosing jobs by state, entrypoint and zone."""

from __future__ import annotations

from collections.abc import AsyncIterator

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

    async def find(self, q: Queue[bytes], limit: int | None = None) -> AsyncIterator[Job[bytes]]:
        """In enqueue order, a page at a time. Zones are filtered here: a queue does not search by zone."""
        found = after = 0
        while True:
            page = PAGE if limit is None or self.zone is not None else min(PAGE, limit - found)
            jobs = await q.jobs(states=self.states, entrypoint=self.entrypoint, limit=page, after=after)
            for job in jobs:
                if self.zone is None or job.zone == self.zone:
                    yield job
                    found += 1
                    if found == limit:
                        return
            if len(jobs) < page:
                return
            after = jobs[-1].record.sequence

    async def find_ids(self, q: Queue[bytes], limit: int | None = None) -> list[str]:
        return [job.id async for job in self.find(q, limit)]
