"""The network between callers and brokers: a call travels to whoever is said to lead, and so does its answer.

Either may get lost, the broker may have stopped or died meanwhile, and the caller may leave.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from casque.client.connecting import AddressFinder, BucketFinder
from casque.client.remote import Finder, RemoteQueue, RemoteService
from casque.clock import Random
from casque.environment import Environment
from casque.errors import BrokerUnreachableError, CasqueError, UnknownOutcomeError
from casque.service.requests import Request
from simulation.world.asked import Call
from simulation.world.profile import Fault

if TYPE_CHECKING:
    from simulation.world.life import Life, Node

CALL: ContextVar[Call] = ContextVar("call")
"""What the running task is asking for."""
REFUSED = 0.8
"""How often a machine without a broker says so, instead of saying nothing."""


def followed(life: Life, name: str) -> RemoteQueue:
    """The real client of remote queues, over this network: it asks the bucket who leads, or tries them all."""
    rng = Random(f"{life.world.seed}/{life.name}/{name}")
    nodes = {node.name: node for node in life.world.nodes}
    finder: Finder = BucketFinder(life.line, owns_store=False)
    if rng.random() < 0.5:
        finder = AddressFinder(rng.sample(sorted(nodes), len(nodes)))
    return RemoteQueue(
        finder,
        lambda address: cast(RemoteService, Wire(life, nodes[address])),
        Environment(life.world.profile.settings, life.clock, rng),
    )


class Wire:
    """Looks like the service of the broker on one node."""

    def __init__(self, life: Life, node: Node) -> None:
        self._life = life
        self._node = node
        self._rng = Random(f"{life.world.seed}/{life.name}/wire/{node.name}")
        self.address = node.name

    async def call(self, request: Request[Any]) -> Any:
        if self._node.life is None and self._rng.random() < REFUSED:
            raise BrokerUnreachableError(self.address, "connection refused")
        return await _Message(self._life, self._node, self._rng, request).sent()

    async def close(self) -> None:
        """There is nothing to let go of."""


class _Message:
    """One call on its way to one broker."""

    def __init__(self, life: Life, node: Node, rng: Random, request: Request[Any]) -> None:
        self._life = life
        self._node = node
        self._loop = life.world.loop
        self._rng = rng
        self._request = request
        self._reply: asyncio.Future[Any] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None
        self._call = CALL.get()

    async def sent(self) -> Any:
        profile = self._life.world.profile
        fault = self._life.line.fault({f: profile.writes.get(f, 0.0) for f in (Fault.BEFORE, Fault.AFTER)})
        deadline_s = getattr(self._request, "wait_s", 0.0) + self._rng.uniform(*profile.timeout_s) + 2.0
        timer = self._life.clock.call_later(deadline_s, self._give_up)
        if fault is not Fault.BEFORE:
            self._loop.call_later(self._latency_s(), self._arrive, fault is None)
        try:
            return await self._reply
        except asyncio.CancelledError:
            self._loop.call_later(self._latency_s(), self._hang_up)
            raise
        finally:
            timer.cancel()

    def _arrive(self, tell: bool) -> None:
        broker = self._node.life
        if broker is None or self._life.node.cut_off or self._node.cut_off:
            return
        broker.deliver(lambda: self._begin(broker, tell))

    def _begin(self, broker: Life, tell: bool) -> None:
        self._call.via.add(broker)
        self._task = broker.start(self._carry_out(broker, tell))

    async def _carry_out(self, broker: Life, tell: bool) -> None:
        """In the broker's process."""
        try:
            answer, error = await broker.leading().call(self._request), None
        except CasqueError as refusal:
            answer, error = None, refusal
        if tell:
            self._loop.call_later(self._latency_s(), self._life.deliver, lambda: self._answer(answer, error))

    def _answer(self, answer: Any, error: CasqueError | None) -> None:
        if self._reply.done() or self._life.node.cut_off:
            return
        if error is not None:
            self._reply.set_exception(error)
        else:
            self._reply.set_result(answer)

    def _give_up(self) -> None:
        if not self._reply.done():
            self._reply.set_exception(UnknownOutcomeError("no answer from the broker"))

    def _hang_up(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _latency_s(self) -> float:
        return self._rng.uniform(*self._life.world.profile.latency_s)
