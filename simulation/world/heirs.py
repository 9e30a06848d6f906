"""Names of jobs that pass to another owner: a job is taken out, and one of another tenant gets its id.

The first owner acts on the name at about that time, or repeats a request that took the first job out. Neither may touch
the second job. `Steps` forgets what was asked about a name when it passes on, so such a call is a change that no
request explains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from casque.clock import Random
from casque.errors import CasqueError, JobNotFoundError
from casque.types import JobRecord, JobSpec
from simulation.world.asked import Call, Request, Send, Through, Verb
from simulation.world.tenants import HEIR, NAMESAKE, OWNER, border

if TYPE_CHECKING:
    from simulation.world.crew import Crew
    from simulation.world.life import Life

KEPT_S = 5.0
"""How long the first job waits before a worker may claim it: by then its name has passed on."""
SOON_S = 2.0
"""What took the first job out is repeated within this time: rings remember requests for longer."""


class Heirs:
    """Those of one process."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._crew = crew
        self._world = life.world
        self._rng = Random(f"{life.world.seed}/{life.name}/heirs")
        self._names = 0

    def roles(self) -> list[Coroutine[Any, Any, None]]:
        return [self._inherit() for _ in range(self._world.profile.heirs)]

    async def _inherit(self) -> None:
        visitor = self._life.visitor()
        try:
            async with visitor.queue:
                while await self._crew.pause(0.4):
                    self._names += 1
                    name = f"heirloom-{self._life.name}-{self._names}"
                    # A plain queue of these worlds remembers a handful of requests: a repeated one may be a new one.
                    repeated = self._world.layout.ring and self._rng.random() < 0.5
                    if await self._add(name, OWNER, KEPT_S):
                        await (self._repeat(name) if repeated else self._race(name, visitor))
        except CasqueError as error:
            self._world.trace.note(self._life.name, f"an heir could not open: {type(error).__name__}")

    async def _race(self, name: str, tenant: Through) -> None:
        """The first owner acts on its job while that is replaced by another's."""
        await asyncio.gather(self._act(name, tenant), self._pass_on(name))

    async def _act(self, name: str, tenant: Through) -> None:
        verb = self._rng.choice((Verb.CANCEL, Verb.ACK))
        await self._life.clock.sleep(self._rng.uniform(0.0, 0.05))
        own = border(tenant, OWNER)
        # Not judged by its answer: by then its job and the one after it may both be gone.
        Call(self._request(verb, _ending(verb, name, None), job_id=name), self._life)
        try:
            await (own.cancel(name) if verb is Verb.CANCEL else own.ack(name))
        except CasqueError as error:
            self._world.trace.note(self._life.name, f"{verb} of {name} by its first owner: {type(error).__name__}")

    async def _pass_on(self, name: str) -> None:
        await self._life.clock.sleep(self._rng.uniform(0.0, 0.05))
        verb = self._rng.choice((Verb.CANCEL, Verb.ACK))
        if await self._end(self._request(verb, _ending(verb, name, None), job_id=name)):
            await self._add(name, HEIR, 1.0)

    async def _repeat(self, name: str) -> None:
        """A request that took the first job out arrives again, when the second one is there."""
        began_s, verb, request_id = self._world.loop.time(), self._rng.choice((Verb.CANCEL, Verb.ACK)), f"end {name}"
        end = _ending(verb, name, request_id)
        if not await self._end(self._request(verb, end, request_id=request_id, job_id=name), found=True):
            return
        if await self._add(name, NAMESAKE, 1.0) and self._world.loop.time() - began_s < SOON_S:
            try:
                await end(self._life)
            except CasqueError as error:
                self._world.trace.note(self._life.name, f"{verb} of {name} again: {type(error).__name__}")

    # --- Asking ---

    async def _add(self, name: str, zone: str, delay_s: float) -> bool:
        number = len(self._world.history.requests)
        run_at_ms = self._life.clock.wall_ms() + int(delay_s * 1000)
        spec = JobSpec(name, "mail", b"%d:0" % number, max_attempts=2, zone=zone, run_at_ms=run_at_ms)
        added = await self._crew.ask(self._request(Verb.ENQUEUE, partial(_enqueue, spec), items=1))
        known = self._world.known.jobs
        # Operators who hear of it might mean the first job, and meet the second.
        known[:] = [one for one in known if one != name]
        return added is not None

    async def _end(self, request: Request, *, found: bool = False) -> bool:
        """Whether the first job is gone; with `found`, whether this request took it out."""
        try:
            await self._crew.call(request)
        except JobNotFoundError:
            return not found
        except CasqueError:
            return False
        finally:
            doubtful = self._world.known.doubtful
            doubtful[:] = [one for one in doubtful if one is not request]
        return True

    def _request(self, verb: Verb, send: Send, **about: Any) -> Request:
        history = self._world.history
        request = Request(len(history.requests), verb, send, **about)
        history.add(request)
        return request


def _ending(verb: Verb, name: str, request_id: str | None) -> Send:
    if verb is Verb.CANCEL:
        return lambda through: through.queue.cancel(name, request_id=request_id)
    return lambda through: through.queue.ack(name, request_id=request_id)


async def _enqueue(spec: JobSpec, through: Through) -> list[JobRecord]:
    return list(await through.queue._service.enqueue([spec]))  # noqa: SLF001  people cannot choose ids of their jobs
