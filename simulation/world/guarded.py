"""Tenants of a simulated queue who come through the real door of a broker, each with a token of its own.

Some tokens are limited to zones, some to entrypoints, one to both, and one is revoked in the middle of the day. All
tenants use the same names for their jobs, keys and requests. Some try what is not theirs to do; that is no part of the
history, so whatever comes of it happened because nobody asked for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from casque.client.remote import RemoteQueue
from casque.clock import Random
from casque.errors import CasqueError, CorruptQueueError, InvalidInputError, NotAllowedError, NotAuthenticatedError
from casque.transport.tenants import OF_ENTRYPOINT, prefix
from casque.types import JobRecord, JobSpec
from simulation.world.asked import NOT_THEIRS, Request, Verb
from simulation.world.badges import INTERN, STRANGER, TENANTS, Badge
from simulation.world.foreign import Shown
from simulation.world.invariants import Invariant, Violation
from simulation.world.server import remote_queue

if TYPE_CHECKING:
    from simulation.world.crew import Crew
    from simulation.world.life import Life

ENTRYPOINTS = ("mail", "video", "report")
KEYS = ("daily", "hourly")
LOOKED_BACK = 6


class Guarded:
    """The tenants of one process."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._crew = crew
        self._world = life.world
        self._rng = Random(f"{life.world.seed}/{life.name}/guarded")
        self._queues: dict[str, RemoteQueue] = {}

    def roles(self) -> list[Coroutine[Any, Any, None]]:
        return [self._order(), self._work(), self._look(), self._trespass(), self._come_in_vain(), self._watch()]

    def _queue(self, badge: Badge) -> RemoteQueue:
        if badge.name not in self._queues:
            self._queues[badge.name] = remote_queue(self._life, f"badge {badge.name}", badge=badge)
        return self._queues[badge.name]

    # --- What is theirs to do ---

    async def _order(self) -> None:
        """Whatever others call theirs: a new name is a new job."""
        rng, world = self._rng, self._world
        while await self._crew.pause(0.5):
            badge = rng.choice((*TENANTS, INTERN))
            entrypoint = rng.choice(badge.entrypoints or ENTRYPOINTS)
            zone = rng.choice(badge.zones) if badge.zones is not None else rng.choice((None, "acme"))
            begin = prefix(zone) if badge.zones is not None and zone else prefix(entrypoint, OF_ENTRYPOINT)
            name, request_id = world.known.orders.next(begin), world.known.orders.next(badge.name)
            key = rng.choice(KEYS) if rng.random() < 0.3 else None
            asked_at, number = world.loop.time(), len(world.history.requests)
            spec = JobSpec(name, entrypoint, b"%d:0" % number, max_attempts=2, key=key, zone=zone)
            request = self._add(Verb.ENQUEUE, partial(_enqueue, spec, request_id), badge, items=1)
            added = await self._ask(badge, request)
            if added is None:
                continue
            self._demand(
                world.tokens.may_come_in(badge, asked_at) and len(added) == 1 and added[0].startswith(begin),
                f"{badge.name} wanted {name}, which is new, and got {added}",
            )

    async def _work(self) -> None:
        """Each claims what is its own."""
        rng = self._rng
        while await self._crew.pause(0.8):
            badge = rng.choice(TENANTS)
            zones, entrypoints, limit = badge.zones, badge.entrypoints, rng.choice((1, 2, 4))
            # Without any, what it is limited to is meant.
            asked = rng.random() < 0.5

            async def claim(queue: RemoteQueue) -> list[Shown]:
                claimed = await queue.dequeue(
                    entrypoints=entrypoints if asked else None,  # noqa: B023
                    zones=zones if asked else None,  # noqa: B023
                    limit=limit,  # noqa: B023
                    lease_ms=3_000,
                )
                self._check_own(badge, claimed)  # noqa: B023
                return [Shown(job.id, job.token, job.spec.payload) for job in claimed]

            request = self._add(Verb.DEQUEUE, claim, badge, entrypoints=entrypoints, zones=zones)
            for job_id, token in await self._ask(badge, request) or ():
                await self._life.clock.sleep(rng.expovariate(4.0))
                ack = self._add(Verb.ACK, partial(_ack, job_id, token), badge, job_id=job_id, token=token)
                await self._ask(badge, ack)

    async def _look(self) -> None:
        """At all that can be seen, and at a job that may be another's."""
        rng, world = self._rng, self._world
        while await self._crew.pause(0.8):
            badge = rng.choice((*TENANTS, INTERN))
            queue, asked_at = self._queue(badge), world.loop.time()
            try:
                await self._look_as(badge, queue)
            except CasqueError as error:
                self._refused(badge, error)
            else:
                self._demand(
                    world.tokens.may_come_in(badge, asked_at), f"{badge.name} is shown the queue, and its token is void"
                )

    async def _look_as(self, badge: Badge, queue: RemoteQueue) -> None:
        rng, known, principal = self._rng, self._world.known.jobs, badge.principal
        found = await queue.find(rng.choice(known[-60:])) if known else None
        self._check_own(badge, [*await queue.jobs(), *([found] if found is not None else [])])
        zones = {one.zone for one in await queue.peek_zones()}
        if badge.entrypoints is None:
            zones |= {one.zone for one in await queue.zones()}
        self._demand(
            all(principal.reaches_zone(zone) for zone in zones), f"{badge.name} is shown the zones {sorted(zones)}"
        )
        begin = max(0, self._world.history.position - LOOKED_BACK)
        async with aclosing(queue.events(from_position=begin, follow=False)) as events:
            self._check_ids(badge, [event.job_id async for event in events], "events")
        async with aclosing(queue.archive()) as archive:
            jobs = [job async for job in archive]
        strange = [job.id for job in jobs if not principal.reaches(job.entrypoint, job.zone)]
        self._demand(not strange, f"{badge.name} reads of {strange[:3]} in the archive")

    async def _watch(self) -> None:
        """Somebody whose token is revoked while it follows."""
        world, queue = self._world, self._queue(INTERN)
        while await self._crew.pause(0.5):
            try:
                async with aclosing(queue.events()) as events:
                    async for event in events:
                        self._check_ids(INTERN, [event.job_id], "events")
                        last = world.tokens.last_shown
                        self._demand(
                            last is None or event.position <= last,
                            f"{INTERN.name} is shown commit {event.position}, and its token has been void since {last}",
                        )
            except CasqueError as error:
                self._refused(INTERN, error)

    # --- What is not ---

    async def _trespass(self) -> None:
        rng, world = self._rng, self._world
        while await self._crew.pause(0.5):
            badge = rng.choice(TENANTS)
            reaches = badge.principal.reaches
            others = [
                job for job in world.history.state.jobs.values() if not reaches(job.spec.entrypoint, job.spec.zone)
            ]
            if not others:
                continue
            job = rng.choice(others)
            tried = rng.choice(list(TRIES))
            try:
                answer = await TRIES[tried](self._queue(badge), job)
            except CasqueError as error:
                world.trace.note(self._life.name, f"{badge.name} tries {tried}: {type(error).__name__}")
                continue
            self._demand(False, f"{badge.name} tried {tried} with {job.id}, which is not its own, and got {answer}")

    async def _come_in_vain(self) -> None:
        """Without a token that counts, nobody is told anything."""
        while await self._crew.pause(2.0):
            try:
                position = (await self._queue(STRANGER).stats()).position
            except CasqueError as error:
                self._world.trace.note(self._life.name, f"a stranger: {type(error).__name__}")
            else:
                self._demand(False, f"a stranger was told that the queue is at {position}")

    # --- Asking and judging ---

    def _add(self, verb: Verb, send: Callable[[RemoteQueue], Awaitable[Any]], badge: Badge, **about: Any) -> Request:
        history = self._world.history
        request = Request(len(history.requests), verb, lambda _: send(self._queue(badge)), **about)
        history.add(request)
        return request

    async def _ask(self, badge: Badge, request: Request) -> Any:
        try:
            return await self._crew.call(request)
        except CasqueError as error:
            self._refused(badge, error)
            return None

    def _refused(self, badge: Badge, error: CasqueError) -> None:
        """Nothing that is its own is refused, as long as its token counts."""
        void = badge is INTERN and self._world.tokens.revoked_at is not None
        self._world.trace.note(self._life.name, f"{badge.name} is refused: {type(error).__name__}")
        wrong = isinstance(error, (NotAllowedError, InvalidInputError, CorruptQueueError))
        if wrong or (isinstance(error, NotAuthenticatedError) and not void):
            with self._world.watching():
                raise Violation(Invariant.TENANTS, f"{badge.name} asked for what is its own, and met {error!r}")

    def _check_own(self, badge: Badge, jobs: Iterable[JobRecord]) -> None:
        strange = [job.id for job in jobs if not badge.principal.reaches(job.spec.entrypoint, job.spec.zone)]
        self._demand(not strange, f"{badge.name} is shown {strange[:3]}")

    def _check_ids(self, badge: Badge, ids: Iterable[str | None], where: str) -> None:
        own = self._world.history.reached
        strange = [one for one in ids if one is None or not badge.principal.reaches(*own.get(one, ("", None)))]
        self._demand(not strange, f"{badge.name} is shown {strange[:3]} in its {where}")

    def _demand(self, holds: bool, detail: str) -> None:
        with self._world.watching():
            self._world.history.demand(holds, Invariant.TENANTS, lambda: detail)


async def _enqueue(spec: JobSpec, request_id: str, queue: RemoteQueue) -> Sequence[JobRecord]:
    return await queue.enqueue([spec], request_id=request_id)


async def _ack(job_id: str, token: int, queue: RemoteQueue) -> None:
    await queue.ack(job_id, token=token)


_Try: TypeAlias = Callable[[RemoteQueue, JobRecord], Awaitable[Any]]
TRIES: dict[str, _Try] = {
    "cancel": lambda queue, job: queue.cancel(job.id),
    "retry": lambda queue, job: queue.retry(job.id),
    "ack": lambda queue, job: queue.ack(job.id, token=job.token),
    "ack without a token": lambda queue, job: queue.ack(job.id),
    "nack": lambda queue, job: queue.nack(job.id, token=job.token),
    "heartbeat": lambda queue, job: queue.heartbeat(job.id, token=job.token),
    "enqueue": lambda queue, job: queue.enqueue([JobSpec("mine", job.spec.entrypoint, NOT_THEIRS, zone=job.spec.zone)]),
    "dequeue": lambda queue, job: queue.dequeue(
        entrypoints=(job.spec.entrypoint,), zones=(job.spec.zone or "acme",), limit=1
    ),
    "purge": lambda queue, _: queue.purge(),
}
"""With a job that is another's."""
