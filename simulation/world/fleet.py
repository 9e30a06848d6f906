"""A deployment that is never finished: workers of two versions, workers that are stopped in the middle of a job, and
operators who take back by hand what looks stale."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any
from zlib import crc32

from casque.errors import CasqueError
from casque.service import Lease
from simulation.world.asked import Request, Send, Through, Verb

if TYPE_CHECKING:
    from simulation.world.crew import Crew
    from simulation.world.life import Life

NOT_UNDERSTOOD = 2
"""Every other job is one that workers of the older version do not understand."""
AGES_S = (0.5, 1.0, 3.0, 8.0)


class Fleet:
    """Those of one process."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._crew = crew
        self._rng = life.rng
        self._held: dict[int, str] = {}
        """Jobs that its workers have, by the token of their lease."""

    def roles(self) -> list[Coroutine[Any, Any, None]]:
        return [self._work(), self._work(), self._operate(), self._visit()]

    async def leave(self) -> None:
        """As a worker does whose jobs outlive its drain."""
        for token, job_id in list(self._held.items()):
            await self._crew.ask(self._return_request(job_id, token))

    async def _work(self) -> None:
        """An older version: what it does not understand it declines, and sometimes it is stopped."""
        rng, crew = self._rng, self._crew
        while await crew.pause(0.4):
            leases = await crew.ask(crew.dequeue_request(crew.some_entrypoints(), rng.choice((0.0, 1.0)))) or ()
            self._held |= {token: job_id for job_id, token in leases}
            await self._life.clock.sleep(rng.expovariate(2.0))
            if leases and rng.random() < 0.25:
                await self.leave()
            elif leases:
                outcomes = [(i, token, Verb.DECLINE if _is_new(i) else Verb.ACK) for i, token in leases]
                await crew.ask(crew.settle_request(outcomes))
            for _, token in leases:
                self._held.pop(token, None)

    async def _operate(self) -> None:
        while await self._crew.pause(1.5):
            await self._crew.ask(self._requeue_request())

    async def _visit(self) -> None:
        """`casque jobs requeue --stale`: a process of its own."""
        while await self._crew.pause(3.0):
            visitor = self._life.visitor()
            try:
                async with visitor.queue:
                    await self._crew.ask(self._requeue_request(), visitor)
            except CasqueError as error:
                self._life.world.trace.note(self._life.name, f"a visitor could not open: {type(error).__name__}")

    # --- Requests ---

    def _return_request(self, job_id: str, token: int) -> Request:
        async def send(through: Through) -> None:
            (refused,) = await through.queue.give_back([Lease(job_id, token)])
            if refused is not None:
                raise refused

        return self._add(Verb.GIVE_BACK, send, job_id=job_id, token=self._life.world.history.own(token))

    def _requeue_request(self) -> Request:
        rng, world = self._rng, self._life.world
        older_s, entrypoints = rng.choice(AGES_S), self._crew.some_entrypoints()
        entrypoint = None if entrypoints is None else entrypoints[0]
        zone = rng.choice(self._crew.zones) if world.zoned and rng.random() < 0.3 else None
        request_id = f"r{len(world.history.requests)}" if rng.random() < 0.5 else None

        def send(through: Through) -> Awaitable[int]:
            return through.queue.requeue_stale(older_s, entrypoint=entrypoint, zone=zone, request_id=request_id)

        return self._add(
            Verb.REQUEUE,
            send,
            by_hand=True,
            request_id=request_id,
            timeout_ms=int(older_s * 1000),
            entrypoints=None if entrypoint is None else (entrypoint,),
            zones=None if zone is None else (zone,),
        )

    def _add(self, verb: Verb, send: Send, **about: Any) -> Request:
        history = self._life.world.history
        request = Request(len(history.requests), verb, send, **about)
        history.add(request)
        return request


def _is_new(job_id: str) -> bool:
    return crc32(job_id.encode()) % NOT_UNDERSTOOD == 0
