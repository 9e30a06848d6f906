"""Counts what is in the queues that this process leads, by entrypoint, from their states in memory.

Reading a state costs no request and waits for none. A count visits every job, some at a time, so that other calls get
their turns, and is repeated only so often that it takes a small share of the time, however deep the queue is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from casque.clock import Clock, yield_once
from casque.engine.committer import Committer
from casque.state import State
from casque.types import JobState

AT_ONCE = 5_000
"""Jobs that a count visits before it yields to other tasks: about a millisecond."""
EVERY_S = 10.0
SHARE = 50
"""After a count, the next one waits this many times as long as it took: 2 % of the time at most."""


class Depth(msgspec.Struct):
    """The jobs of one entrypoint."""

    ready: int = 0
    delayed: int = 0
    running: int = 0
    dead: int = 0
    oldest_due_ms: int | None = None
    """When the job that has waited longest became due."""

    def add(self, other: Depth) -> None:
        self.ready += other.ready
        self.delayed += other.delayed
        self.running += other.running
        self.dead += other.dead
        self.oldest_due_ms = earlier(self.oldest_due_ms, other.oldest_due_ms)


class Depths(msgspec.Struct):
    """Jobs by entrypoint, and the workers that hold some of them."""

    by_entrypoint: dict[str, Depth] = {}
    workers: set[str] = set()

    @property
    def oldest_due_ms(self) -> int | None:
        found: int | None = None
        for depth in self.by_entrypoint.values():
            found = earlier(found, depth.oldest_due_ms)
        return found


class LedStates:
    """The states that this process leads: `committers` returns all that it has made."""

    def __init__(self, committers: Callable[[], Iterable[Committer]], clock: Clock) -> None:
        self._committers = committers
        self._clock = clock
        self._counting = asyncio.Lock()
        self._counted: Depths | None = None
        self._next_s = 0.0

    @property
    def unarchived(self) -> int:
        """Finished jobs that are not in the archive yet."""
        return sum(len(state.facets.finished.pending) for state in self._led())

    @property
    def unarchived_since_ms(self) -> int | None:
        """When the first of them finished."""
        found: int | None = None
        for state in self._led():
            if pending := state.facets.finished.pending:
                found = earlier(found, pending[0].at_ms)
        return found

    async def depths(self) -> Depths:
        """Jobs by entrypoint, as of now or some seconds ago."""
        now = asyncio.get_running_loop().time
        async with self._counting:
            if self._counted is None or now() >= self._next_s:
                began_s = now()
                self._counted = await self._count()
                self._next_s = now() + max(EVERY_S, SHARE * (now() - began_s))
            return self._counted

    async def _count(self) -> Depths:
        depths = Depths({}, set())
        for state in self._led():
            # Records never change: a list of them stays as it was while others commit.
            jobs, now_ms = list(state.jobs.values()), self._clock.wall_ms()
            for start in range(0, len(jobs), AT_ONCE):
                for job in jobs[start : start + AT_ONCE]:
                    depth = depths.by_entrypoint.get(job.spec.entrypoint)
                    if depth is None:
                        depth = depths.by_entrypoint[job.spec.entrypoint] = Depth()
                    if job.state is JobState.RUNNING:
                        depth.running += 1
                        if job.worker is not None:
                            depths.workers.add(job.worker)
                    elif job.state is JobState.DEAD:
                        depth.dead += 1
                    elif job.state is JobState.DELAYED and job.due_ms > now_ms:
                        depth.delayed += 1
                    else:
                        depth.ready += 1
                        if depth.oldest_due_ms is None or job.due_ms < depth.oldest_due_ms:
                            depth.oldest_due_ms = job.due_ms
                await yield_once()
        return depths

    def _led(self) -> list[State]:
        return [one.known for one in self._committers() if one.leads and one.known is not None]


def earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
