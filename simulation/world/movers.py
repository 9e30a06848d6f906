"""Operators who reschedule jobs that wait: to another time, with another priority."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any

from casque.clock import Random
from casque.types import JobState, from_ms
from simulation.world.asked import Request, Through, Verb
from simulation.world.clock import EPOCH_MS

if TYPE_CHECKING:
    from simulation.world.crew import Crew
    from simulation.world.life import Life

PRIORITIES = (None, None, 0, 1, 5)


class Movers:
    """Those of one process."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._crew = crew
        self._world = life.world
        self._rng = Random(f"{life.world.seed}/{life.name}/movers")

    def roles(self) -> list[Coroutine[Any, Any, None]]:
        return [self._move(), self._move()]

    async def _move(self) -> None:
        """Mostly of jobs that wait; sometimes of one that may be running, or gone."""
        rng, known = self._rng, self._world.known
        while await self._crew.pause(0.7):
            there = [job for state in self._world.history.everything() for job in state.jobs.values()]
            waiting = [job.id for job in there if job.state in (JobState.READY, JobState.DELAYED) and not job.spec.fifo]
            if waiting and rng.random() < 0.8:
                await self._crew.ask(self._request(rng.choice(waiting)))
            elif known.jobs:
                job_id = rng.choice(known.jobs[-20:])
                record = self._world.history.record(job_id)
                if record is not None and not record.spec.fifo:
                    await self._crew.ask(self._request(job_id))

    def _request(self, job_id: str) -> Request:
        rng, history = self._rng, self._world.history
        number = len(history.requests)
        # Every time is asked for once, so that it tells which request has acted.
        at_ms = EPOCH_MS + int(self._world.loop.time() * 1000) + rng.randint(-1500, 2500)
        while at_ms in history.moments:
            at_ms += 1
        history.moments.add(at_ms)
        priority = rng.choice(PRIORITIES)
        request_id = f"r{number}" if rng.random() < 0.6 else None

        def send(through: Through) -> Awaitable[None]:
            return through.queue.reschedule(job_id, run_at=from_ms(at_ms), priority=priority, request_id=request_id)

        request = Request(
            number, Verb.RESCHEDULE, send, request_id=request_id, job_id=job_id, run_at_ms=at_ms, priority=priority
        )
        history.add(request)
        return request
