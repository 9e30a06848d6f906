"""Settlers of a ring: their zone is empty when the ring changes, so its older sizes are forgotten as soon as may be.

What was asked before the change is asked again after it, and a queue that was open before the change is used after
the older sizes are gone.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from casque.client.new_jobs import NewJob
from casque.clock import Random
from casque.errors import CasqueError
from simulation.world.asked import Request, Send, Through, Verb
from simulation.world.ring import REMEMBERED_S, RingHistory

if TYPE_CHECKING:
    from simulation.world.crew import Crew
    from simulation.world.life import Life

ZONE = "acme"
"""Its home is the first shard of a ring of one or three, and the second of a ring of two or four."""
MARGIN_S = 0.3
"""What a call may take, which has to arrive before its request is forgotten."""
GONE_S = 6.0
"""By then older sizes are forgotten, if nothing needs them."""


class Settlers:
    """Those of the first process: two would change the ring under each other's feet."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._crew = crew
        self._world = life.world
        self._rng = Random(f"{life.world.seed}/{life.name}/settlers")

    def roles(self) -> list[Coroutine[Any, Any, None]]:
        return [self._settle()] if self._life.node.name == "n1" else []

    async def _settle(self) -> None:
        while not self._world.healed:
            visitor = self._life.visitor()
            try:
                async with visitor.queue:
                    await self._life.clock.sleep(self._rng.uniform(0.1, 1.0))
                    await self._move()
                    await self._crew.ask(self._enqueue_request(None), visitor)
            except CasqueError as error:
                self._world.trace.note(self._life.name, f"a settler could not open: {type(error).__name__}")

    async def _move(self) -> None:
        crew, sleep, now, history = self._crew, self._life.clock.sleep, self._world.loop.time, self._world.history
        assert isinstance(history, RingHistory)
        # A request that is repeated lets its older homes know of the new ring, as does everything that is added.
        began_s, repeated = now(), self._rng.random() < 0.5
        request = self._enqueue_request(f"settler {len(history.requests)}")
        for job_id in await crew.ask(request) or ():
            await crew.ask(crew.on_job(Verb.CANCEL, job_id))
        await crew.ask(crew.resize_request(1 if history.root is None or history.root.size % 2 == 0 else 2))
        while now() - began_s < GONE_S and not self._world.healed:
            await crew.ask(crew.tidy_request())
            await sleep(self._rng.uniform(0.2, 0.5))
            if repeated and now() - began_s < REMEMBERED_S - MARGIN_S:
                await crew.ask(request)
            await crew.ask(crew.look_request())

    def _enqueue_request(self, request_id: str | None) -> Request:
        history = self._world.history
        number = len(history.requests)
        jobs = [NewJob("mail", b"%d:0" % number, zone=ZONE)]
        send: Send = partial(_enqueue, jobs, request_id)
        request = Request(number, Verb.ENQUEUE, send, request_id=request_id, items=1)
        history.add(request)
        return request


async def _enqueue(jobs: list[NewJob[bytes]], request_id: str | None, through: Through) -> Any:
    return await through.queue.enqueue_many(jobs, request_id=request_id)
