"""Programs of other languages in a simulated process: clients of osqueue, and clients made from casque's proto file.

They know nothing of leaders and sessions. They call a broker, each call by itself, go on to another one when it
refuses or does not answer, and are held to account like all other callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from casque.clock import Random
from casque.errors import UnknownOutcomeError
from casque.transport.grpc import casque_v1_pb2, osqueue_v1_pb2
from casque.transport.grpc.osqueue import ENTRYPOINT
from casque.transport.grpc.refusals import typed
from simulation.world.asked import Request, Send, Verb
from simulation.world.invariants import Invariant
from simulation.world.streams import Channel

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from simulation.world.crew import Crew
    from simulation.world.life import Life

OSQUEUE = "osqueue.v1.QueueService"
QUEUE = "casque.v1.Queue"
CALL_S = 3.0
LEASE_MS = 3_000
"""Of clients of osqueue, which cannot ask for another one: half a minute elsewhere."""


class Shown(NamedTuple):
    """A job as such a program sees it."""

    id: str
    token: int = 0
    payload: bytes = b""


class Foreigners:
    """Those of one process."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._crew = crew
        self._world = life.world
        self._rng = Random(f"{life.world.seed}/{life.name}/foreign")

    def roles(self) -> list[Coroutine[Any, Any, None]]:
        return [self._push(), self._work_for_osqueue(), self._work_for_osqueue(), self._enqueue(), self._work()]

    # --- Clients of osqueue ---

    async def _push(self) -> None:
        while await self._crew.pause(0.8):
            await self._crew.ask(self._push_request())

    async def _work_for_osqueue(self) -> None:
        """Some keep their jobs alive, some are too slow for them, and some forget them."""
        rng, crew = self._rng, self._crew
        while await crew.pause(0.4):
            # A name for each claim: what it may do with a job that it claimed twice is not for it to tell.
            worker = f"worker-{len(self._world.history.requests)}"
            for job_id, token in await crew.ask(self._claim_request(worker)) or ():
                manner = rng.random()
                if manner < 0.1:
                    continue
                await self._life.clock.sleep(rng.uniform(2.0, 6.0) if manner < 0.35 else rng.expovariate(4.0))
                while manner > 0.7 and rng.random() < 0.6:
                    await crew.ask(self._on_claim(Verb.HEARTBEAT, job_id, token, worker))
                    await self._life.clock.sleep(rng.uniform(0.1, 1.5))
                await crew.ask(self._on_claim(Verb.ACK, job_id, token, worker))

    def _push_request(self) -> Request:
        def send(number: int) -> Send:
            async def push(_: Any) -> list[Shown]:
                data = b"%d:0" % number
                answer = await _call(OSQUEUE, "Push", osqueue_v1_pb2.PushRequest(data=data))
                return [Shown(answer.job_id)]

            return push

        return self._add(Verb.ENQUEUE, send, items=1)

    def _claim_request(self, worker: str) -> Request:
        async def claim(_: Any) -> list[Shown]:
            answer = await _call(OSQUEUE, "Claim", osqueue_v1_pb2.ClaimRequest(worker_id=worker))
            return [] if answer.empty else [Shown(answer.job_id, self._token_of(answer.job_id, worker), answer.data)]

        return self._add(Verb.DEQUEUE, lambda _: claim, entrypoints=(ENTRYPOINT,))

    def _on_claim(self, verb: Verb, job_id: str, token: int, worker: str) -> Request:
        async def send(_: Any) -> None:
            if verb is Verb.ACK:
                await _call(OSQUEUE, "Complete", osqueue_v1_pb2.CompleteRequest(job_id=job_id, worker_id=worker))
            else:
                await _call(OSQUEUE, "Heartbeat", osqueue_v1_pb2.HeartbeatRequest(job_id=job_id, worker_id=worker))

        return self._add(verb, lambda _: send, job_id=job_id, token=token)

    def _token_of(self, job_id: str, worker: str) -> int:
        """Of its claim, which it is not told: responses have no place for it."""
        history = self._world.history
        tokens = [one.token for one in history.claims.values() if (one.job_id, one.worker) == (job_id, worker)]
        if not tokens and job_id in history.fates:
            # It was taken out by the very commit that claimed it, which may have made other claims, too.
            tokens = [token for token in history.fates[job_id].hidden if token not in history.claims]
        with self._world.watching():
            history.demand(
                bool(tokens), Invariant.DURABLE, lambda: f"{worker} was given {job_id[:8]}, and nothing was claimed"
            )
        return tokens[-1]

    # --- Clients made from the proto file ---

    async def _enqueue(self) -> None:
        while await self._crew.pause(0.8):
            await self._crew.ask(self._enqueue_request())

    async def _work(self) -> None:
        rng, crew = self._rng, self._crew
        while await crew.pause(0.4):
            for job_id, token in await crew.ask(self._dequeue_request()) or ():
                await self._life.clock.sleep(rng.uniform(2.0, 6.0) if rng.random() < 0.2 else rng.expovariate(4.0))
                await crew.ask(self._on_lease(Verb.ACK if rng.random() < 0.7 else Verb.NACK, job_id, token))

    def _enqueue_request(self) -> Request:
        rng, count = self._rng, self._rng.choice((1, 1, 2))
        names = self._crew.some_entrypoints() or ("mail",)
        delays = [rng.choice((None, None, 300)) for _ in range(count)]
        request_id = self._maybe_an_id()

        def send(number: int) -> Send:
            jobs = [
                casque_v1_pb2.NewJob(entrypoint=names[0], payload=b"%d:%d" % (number, item), delay_ms=delay)
                for item, delay in enumerate(delays)
            ]
            request = casque_v1_pb2.EnqueueRequest(jobs=jobs, request_id=request_id)

            async def enqueue(_: Any) -> list[Shown]:
                return [Shown(job.id) for job in (await _call(QUEUE, "Enqueue", request)).jobs]

            return enqueue

        return self._add(Verb.ENQUEUE, send, items=count, request_id=request_id)

    def _dequeue_request(self) -> Request:
        rng, request_id, entrypoints = self._rng, self._maybe_an_id(), self._crew.some_entrypoints()
        request = casque_v1_pb2.DequeueRequest(
            entrypoints=entrypoints or (),
            limit=rng.choice((1, 2, 4)),
            wait_ms=rng.choice((0, 500, 2_000)),
            lease_ms=rng.choice((None, 3_000)),
            request_id=request_id,
        )

        async def dequeue(_: Any) -> list[Shown]:
            answer = await _call(QUEUE, "Dequeue", request)
            return [Shown(job.id, job.token, job.payload) for job in answer.jobs]

        return self._add(Verb.DEQUEUE, lambda _: dequeue, entrypoints=entrypoints, request_id=request_id)

    def _on_lease(self, verb: Verb, job_id: str, token: int) -> Request:
        request_id = self._maybe_an_id()

        def send(number: int) -> Send:
            async def tell(_: Any) -> None:
                if verb is Verb.ACK:
                    ack = casque_v1_pb2.AckRequest(job_id=job_id, token=token, request_id=request_id)
                    await _call(QUEUE, "Ack", ack)
                else:
                    nack = casque_v1_pb2.NackRequest(
                        job_id=job_id, token=token, error=f"nack {number}", request_id=request_id
                    )
                    await _call(QUEUE, "Nack", nack)

            return tell

        return self._add(verb, send, job_id=job_id, token=token, request_id=request_id)

    def _maybe_an_id(self) -> str | None:
        return f"r{len(self._world.history.requests)}" if self._rng.random() < 0.5 else None

    def _add(self, verb: Verb, send: Any, **about: Any) -> Request:
        history = self._world.history
        number = len(history.requests)
        request = Request(number, verb, send(number), **about)
        history.add(request)
        return request


async def _call(service: str, method: str, request: Message) -> Any:
    """From the process whose code is running, to whichever machine it thinks of.

    Raises:
        CasqueError: what the broker said, if it was a broker that refused.
        UnknownOutcomeError: nobody said anything that tells whether it was carried out.
    """
    from simulation.world.life import CURRENT

    life = CURRENT.get()
    assert life is not None
    module = osqueue_v1_pb2 if service == OSQUEUE else casque_v1_pb2
    channel = Channel(life, life.rng.choice(life.world.nodes))
    call = channel.unary_unary(
        f"/{service}/{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=getattr(module, f"{method}Response").FromString,
    )
    try:
        async with asyncio.timeout(CALL_S):
            return await call(request)
    except TimeoutError:
        raise UnknownOutcomeError("deadline exceeded") from None
    except grpc.aio.AioRpcError as error:
        raise typed(error) or UnknownOutcomeError(f"{error.code().name}: {error.details()}") from None
    finally:
        await channel.close()
