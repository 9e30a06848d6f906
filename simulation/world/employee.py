"""A real worker in a simulated process: whatever it asks of its queue is a request like those of the crew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from casque.client.job import Job
from casque.client.queue import Queue
from casque.clock import Random
from casque.errors import CasqueError
from casque.service import Lease, Outcome
from casque.worker.handlers import Handler, JobContext
from casque.worker.worker import Worker
from simulation.world.asked import Request, Send, Through, Verb
from simulation.world.invariants import Invariant

if TYPE_CHECKING:
    from simulation.world.crew import Crew
    from simulation.world.life import Life

WORK_S = (0.02, 0.3, 3.0, 9.0)
"""How long jobs take: some outlive the time that they have when their worker is stopped."""
CONCURRENCY = 4


class Employee:
    """Works from the start of its process to the end, and gives back what it has not done if that is a clean one."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._rng = Random(f"{life.world.seed}/{life.name}/employee")
        self._desk = _Desk(life, crew)
        self._worker: _Worker | None = None
        self._ended = asyncio.Event()

    async def run(self) -> None:
        world = self._life.world
        self._worker = _Worker(self._work, lease_s=world.profile.worker_lease_s, drain_s=world.profile.drain_s)
        try:
            await self._worker.work(cast("Queue[bytes]", self._desk), self._life, self._rng)
        except CasqueError as error:
            world.trace.note(self._life.name, f"its worker ends: {type(error).__name__}")
        except Exception as error:  # noqa: BLE001  a bug: nobody waits for this task
            world.found(Invariant.EXPECTED, f"the worker of {self._life.name} failed: {error!r}")
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """As on SIGTERM."""
        if self._worker is None:
            return  # it was never begun
        self._worker.stop()
        await self._ended.wait()
        history = self._life.world.history
        with self._life.world.watching():
            for job_id, token in self._desk.leases:
                history.demand(
                    not history.goes_on(job_id, history.own(token)) or self._is_in_doubt(job_id, history.own(token)),
                    Invariant.GIVEN_BACK,
                    lambda: f"the worker of {self._life.name} has stopped, and keeps {job_id[:8]}",  # noqa: B023
                )

    def _is_in_doubt(self, job_id: str, token: int) -> bool:
        """It has said what becomes of the job, and was not told whether that was heard."""
        history = self._life.world.history
        return any(history.concerning(job_id, verb, token) for verb in (Verb.ACK, Verb.GIVE_BACK))

    async def _work(self, _payload: bytes, _context: JobContext) -> None:
        await self._life.clock.sleep(WORK_S[0] if self._life.world.healed else self._rng.choice(WORK_S))


class _Worker(Worker):
    """The real one, on a queue that is open, by a simulated clock."""

    def __init__(self, call: Callable[[bytes, JobContext], Any], *, lease_s: float, drain_s: float) -> None:
        from simulation.world.crew import ENTRYPOINTS

        super().__init__(_App(call, ENTRYPOINTS), concurrency=CONCURRENCY, lease=lease_s, drain=drain_s)

    async def work(self, queue: Queue[bytes], life: Life, rng: Random) -> None:
        await self._work_on(queue, life.clock, rng)


class _App:
    url = "memory://never-opened"
    opening: MappingProxyType[str, Any] = MappingProxyType({})

    def __init__(self, call: Callable[[bytes, JobContext], Any], entrypoints: Sequence[str]) -> None:
        self.handlers = {name: Handler(name, call) for name in entrypoints}


class _Desk:
    """What a worker sees of a queue. Its calls are noted, and held to account like all others."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._crew = crew
        self._settles: dict[str, Request] = {}
        self.leases: list[tuple[str, int]] = []

    async def dequeue(self, entrypoints: tuple[str, ...], **how: Any) -> list[Job[bytes]]:
        claimed: list[Job[bytes]] = []

        async def send(through: Through) -> list[Job[bytes]]:
            claimed[:] = await through.queue.dequeue(entrypoints, **how)
            return claimed

        self.leases += await self._crew.call(self._request(Verb.DEQUEUE, send, entrypoints=entrypoints, kept=True))
        return claimed

    async def settle(self, outcomes: Sequence[Outcome], *, request_id: str) -> list[CasqueError | None]:
        request = self._settles.get(request_id)
        if request is None:
            parts = [self._part(Verb.ACK, outcome.job_id, outcome.token) for outcome in outcomes]
            request = self._settles[request_id] = self._request(
                Verb.SETTLE,
                lambda through: through.queue.settle(outcomes, request_id=request_id),
                request_id=request_id,
                parts=parts,
            )
        return cast("list[CasqueError | None]", await self._crew.call(request))

    async def heartbeats(self, leases: Sequence[Lease]) -> list[CasqueError | None]:
        parts = [self._part(Verb.HEARTBEAT, lease.job_id, lease.token) for lease in leases]
        return await self._several(lambda through: through.queue.heartbeats(leases), parts)

    async def give_back(self, jobs: Sequence[Job[bytes]]) -> list[CasqueError | None]:
        parts = [self._part(Verb.GIVE_BACK, job.id, job.token) for job in jobs]
        return await self._several(lambda through: through.queue.give_back(jobs), parts)

    async def _several(self, send: Send, parts: Sequence[Request]) -> list[CasqueError | None]:
        request = self._request(Verb.SEVERAL, send, parts=parts)
        return cast("list[CasqueError | None]", await self._crew.call(request))

    def _part(self, verb: Verb, job_id: str, token: int | None) -> Request:
        own = None if token is None else self._life.world.history.own(token)
        return self._request(verb, _with_the_others, job_id=job_id, token=own)

    def _request(self, verb: Verb, send: Send, **about: Any) -> Request:
        history = self._life.world.history
        request = Request(len(history.requests), verb, send, **about)
        history.add(request)
        return request


async def _with_the_others(_: Through) -> None:
    raise AssertionError("it is asked for together with others")
