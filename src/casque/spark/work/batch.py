"""One claimed batch on the driver: which jobs have an outcome, and which outcomes wait to be settled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import cached_property

import msgspec

from casque.client.job import Job
from casque.clock import Clock
from casque.service import Outcome

GROUP_S = 0.25
GROUP_MAX = 50_000
"""Outcomes are settled when the first has waited this long, or when there are this many."""


class Group(msgspec.Struct, frozen=True):
    """Outcomes to settle together."""

    done: list[Job[bytes]]
    outcomes: list[Outcome]

    def __len__(self) -> int:
        return len(self.done) + len(self.outcomes)

    def __bool__(self) -> bool:
        return bool(self.done or self.outcomes)


class Batch:
    """A job's first outcome counts: a task that Spark repeats, or ran twice, reports it again."""

    def __init__(self, jobs: Sequence[Job[bytes]], clock: Clock) -> None:
        self.jobs = jobs
        self._clock = clock
        self._untouched = True
        """Whether all jobs are open: then `_open` is not needed yet, and most batches arrive as a whole."""
        self._arrived = Group([], [])
        self._settling = Group([], [])
        self._handed_over: list[Job[bytes]] = []
        self._handing = asyncio.Event()
        self._closed = False
        self._news = asyncio.Event()

    @cached_property
    def _open(self) -> dict[str, Job[bytes]]:
        self._untouched = False
        return {job.id: job for job in self.jobs}

    @property
    def open(self) -> list[Job[bytes]]:
        """Jobs without an outcome."""
        return list(self._open.values())

    def unsettled(self) -> list[Job[bytes]]:
        """Jobs whose leases are to be kept: those without an outcome, and those whose outcomes are not durable yet."""
        return [*self.open, *self._having(self._arrived), *self._having(self._settling)]

    def is_open(self, job: Job[bytes]) -> bool:
        return job.id in self._open

    def take(self, jobs: Iterable[Job[bytes]] | None = None) -> list[Job[bytes]]:
        """Remove these jobs, or all, from the open ones. Returns those that were open: they are the caller's now."""
        wanted = self.open if jobs is None else jobs
        return [job for job in wanted if self._open.pop(job.id, None) is not None]

    def arrive(self, done: Sequence[Job[bytes]], outcomes: Sequence[Outcome]) -> None:
        """Outcomes from an executor; those of jobs that are not open are dropped."""
        if self._untouched and len(done) + len(outcomes) == len(self.jobs):
            self._untouched, self._open = False, {}
            self._arrived = Group(list(done), list(outcomes))
        else:
            self._arrived.done.extend(self.take(done))
            self._arrived.outcomes.extend(one for one in outcomes if self._open.pop(one.job_id, None) is not None)
        if self._arrived:
            self._news.set()

    def hand_over(self, jobs: Iterable[Job[bytes]]) -> None:
        """These jobs were not started by the task that had them."""
        self._handed_over.extend(job for job in jobs if job.id in self._open)
        if self._handed_over:
            self._handing.set()

    async def wait_for_handing_over(self) -> None:
        await self._handing.wait()

    def take_handed_over(self) -> list[Job[bytes]]:
        self._handing.clear()
        jobs, self._handed_over = self._handed_over, []
        return jobs

    def close(self) -> None:
        """No more outcomes arrive."""
        self._closed = True
        self._news.set()

    def drop_arrived(self) -> int:
        """Forget the outcomes that wait to be settled, because they cannot be. Returns their number."""
        count, self._arrived = len(self._arrived), Group([], [])
        return count

    async def groups(self) -> AsyncIterator[Group]:
        """Outcomes as they arrive, until the batch is closed."""
        while True:
            if not self._arrived and not self._closed:
                self._news.clear()
                await self._news.wait()
            await self._wait_for_more()
            self._settling, self._arrived = self._arrived, Group([], [])
            if self._settling:
                yield self._settling
                self._settling = Group([], [])
            elif self._closed:
                return

    def _having(self, group: Group) -> list[Job[bytes]]:
        if not group.outcomes:
            return group.done
        ids = {outcome.job_id for outcome in group.outcomes}
        return group.done + [job for job in self.jobs if job.id in ids]

    async def _wait_for_more(self) -> None:
        """So that outcomes which arrive one by one do not become a commit each."""
        until_ms = self._clock.monotonic_ms() + int(GROUP_S * 1000)
        while not self._closed and len(self._arrived) < GROUP_MAX:
            left_ms = until_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return
            self._news.clear()
            timer = self._clock.call_later(left_ms / 1000, self._news.set)
            await self._news.wait()
            timer.cancel()
