"""What people do with a queue: the callers inside one life of a process, good and careless ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from casque.client.heartbeat import HeartbeatManager
from casque.client.job import Job
from casque.client.new_jobs import NewJob
from casque.client.verbs import LeaseVerbs
from casque.clock import Random
from casque.codec.staged import StagedJobs
from casque.errors import (
    CasqueError,
    CorruptQueueError,
    InvalidInputError,
    LeaseLostError,
    QueueReplacedError,
    UnknownOutcomeError,
)
from casque.service import Outcome, OutcomeKind
from casque.settings import milliseconds
from casque.tasks import is_cancelled
from casque.transport.tenants import prefix
from casque.types import Admission, Gate, Missed, ZoneLease, ZoneRules
from simulation.world.asked import FIFO_ZONES, Call, Request, Send, Through, Told, Verb
from simulation.world.calendar import STEADY
from simulation.world.converting import Converters
from simulation.world.copies import Copies
from simulation.world.erasers import Erasers, Wish
from simulation.world.fleet import Fleet
from simulation.world.foreign import Foreigners
from simulation.world.guarded import Guarded
from simulation.world.heirs import Heirs
from simulation.world.history import History
from simulation.world.holders import Holders
from simulation.world.invariants import Invariant, Violation
from simulation.world.keepers import Keepers
from simulation.world.movers import Movers
from simulation.world.profile import PAYLOAD_MAX, Fault
from simulation.world.readers import Readers
from simulation.world.settlers import Settlers
from simulation.world.stalled import Stalled
from simulation.world.switchers import Switchers
from simulation.world.tenants import TENANTS, Orders, order, peep
from simulation.world.wire import CALL

if TYPE_CHECKING:
    from simulation.world.life import Life

ENTRYPOINTS = ("mail", "video", "report")
KEYS = ("daily", "hourly", "once")
REMEMBERED = 60
SMALL = 0.25
"""The share of calls that go through the small API."""
TOGETHER = 0.35
"""The share of workers who tell what became of all their jobs in one call."""
BRISK = 0.85
NOT_DONE = (Verb.NACK, Verb.NACK, Verb.SNOOZE, Verb.WITHDRAW)
NEVER_REPEATED = (
    Verb.HEARTBEAT,
    Verb.REQUEUE,
    Verb.LOOK,
    Verb.SCHEDULE,
    Verb.RESIZE,
    Verb.TIDY,
    Verb.BEAT_ZONE,
    Verb.RELEASE_ZONE,
)
ZONES = ("acme", "globex", "initech")
EITHER = "either"
"""A zone whose next use decides whether it is FIFO, each time it was empty."""
SIZES = (1, 2, 2, 3, 4)
"""That a ring may have."""


def tags_of(number: int, item: int) -> tuple[str, ...]:
    """The tags of a job, which a third of them have. Not drawn, so that worlds are those that they were."""
    return ("odd" if item % 2 else "even", f"request-{number % 5}") if (number + item) % 3 == 0 else ()


class Knowledge:
    """What callers all over the world have heard of, current or not."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.leases: list[tuple[str, int]] = []
        self.orders = Orders()
        """What tenants call their jobs."""
        self.zone_leases: list[ZoneLease] = []
        self.unerased: list[Wish] = []
        """Erasures that broke off: to be asked again, here or elsewhere."""
        self.doubtful: list[Request] = []
        """Requests with an id whose outcome is in doubt: to be asked again, here or elsewhere."""


class Crew:
    """Producers, workers and operators of one process."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._world = life.world
        self._rng: Random = life.rng
        # Beside a leader it is refused every time, which is worth seeing now and then.
        layout = life.world.layout
        self._small_share = 0.0 if layout.ring else 0.05 if layout.led and not layout.foreign else SMALL
        # In some worlds zones are busy and the ring is resized all the time. In others zones run empty, so that older
        # sizes are forgotten.
        self._leisure_s = 1.5 if not layout.ring else 0.7 if life.world.restless else 3.0
        # What a ring may forget are requests, when zones move.
        self._repeated, self._deaf = (0.6, 0.7) if layout.ring or life.world.profile.insistent else (0.3, 0.1)
        self._delay_max_s = 1.0 if layout.ring else 6.0
        several = 3 if layout.ring else 1
        self._zones = (*ZONES[:several], *FIFO_ZONES[:several], *([] if layout.ring else [EITHER]))
        self._tasks: list[asyncio.Task[None]] = []
        self._fleet = Fleet(life, self) if layout.fleet else None
        copies = Copies(life, self) if layout.copied else None
        converters = Converters(life, self) if layout.converted else None
        readers = Readers(life, self) if layout.read else None
        foreigners = Foreigners(life, self) if layout.foreign else None
        guarded = Guarded(life, self) if layout.guarded else None
        stalled = Stalled(life, self, readers) if readers is not None and layout.stalled else None
        movers = Movers(life, self) if layout.moved else None
        erasers = Erasers(life, self) if layout.erased else None
        holders = Holders(life, self) if life.world.profile.holders else None
        heirs = Heirs(life, self) if life.world.profile.heirs else None
        settlers = Settlers(life, self) if life.world.profile.settlers else None
        keepers = Keepers(life, self) if life.world.profile.keepers else None
        switchers = Switchers(life, self) if life.world.profile.switchers else None
        others = (self._fleet, copies, converters, readers, foreigners, guarded, stalled, movers, erasers)
        self._others = [some for some in (*others, holders, heirs, settlers, keepers, switchers) if some is not None]

    def begin(self) -> None:
        if not self._world.healed:
            ring = self._world.layout.ring
            for loop in (
                self._produce,
                self._produce,
                self._admit,
                self._operate,
                self._repeat,
                self._meddle,
                self._borrow,
            ):
                if not (ring and loop == self._borrow):
                    self._start(loop(), "casque crew")
            self._start(self._visit(), "casque crew")
            for _ in range(self._world.profile.curious):
                self._start(self._look_around(), "casque crew")
            for _ in range(self._world.profile.operators - 1):
                self._start(self._operate(), "casque crew")
            if self._world.profile.hedged:
                self._start(self._hedge(), "casque crew")
            if ring:
                self._start(self._resize(), "casque crew")
                self._start(self._tidy(), "casque crew")
                self._start(self._repeat(), "casque crew")
            self._start(self._schedule(), "casque crew")
            self._start(self._keep_gates(), "casque crew")
            if self._world.zoned:
                self._start(self._keep_zones(), "casque crew")
                if (not ring or self._world.layout.fleet) and not self._world.layout.guarded:
                    self._start(self._rent(), "casque crew")
                self._start(self._hold_zones(), "casque crew")
            for others in self._others:
                for role in others.roles():
                    self._start(role, "casque crew")
        for loop in (self._wander, self._work, self._work, *([self._work] * self._world.layout.ring)):
            self._start(loop(), "casque crew")

    async def leave(self) -> None:
        """The process is being stopped: what its workers cannot finish goes back."""
        if self._fleet is not None:
            await self._fleet.leave()

    def dismiss(self) -> None:
        """Callers leave, as they do before a clean stop."""
        for task in self._tasks:
            task.cancel()

    def _start(self, coro: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(coro, name=name)
        task.add_done_callback(self._left_off)
        self._tasks.append(task)

    def _left_off(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Violation):
            self._world.found(Invariant.EXPECTED, f"the crew of {self._life.name} met {error!r}")

    # --- Roles ---

    async def _produce(self) -> None:
        while await self._pause(self._leisure_s):
            small = self._rng.random() < self._small
            await self._ask(self._small_enqueue_request() if small else self._enqueue_request())

    async def _admit(self) -> None:
        while await self._pause(2.5):
            await self._ask(self._admit_request())

    async def _look_around(self) -> None:
        while not self._world.healed:
            await self._life.clock.sleep(self._rng.uniform(0.0, 0.1))
            await self._ask(self._look_request())

    async def _hedge(self) -> None:
        """Somebody admits every batch through two queues at once, and goes by the first answer."""
        visitor = self._life.visitor()
        try:
            async with visitor.queue:
                while await self._pause(0.8):
                    request = self._admit_request()
                    await asyncio.gather(self._ask(request), self._later(request, visitor))
        except CasqueError as error:
            self._world.trace.note(self._life.name, f"somebody could not hedge: {type(error).__name__}")

    async def _later(self, request: Request, through: Through) -> None:
        await self._life.clock.sleep(self._rng.uniform(0.0, 0.3))
        await self._ask(request, through)

    async def _schedule(self) -> None:
        """Programs start and say what they want again and again; somebody pauses one of them now and then."""
        while await self._pause(1.5):
            await self._ask(self._schedule_request())

    async def _keep_gates(self) -> None:
        """Somebody pauses or drains the queue, or an entrypoint of it, and opens it again soon, if nobody else does."""
        rng, history = self._rng, self._world.history
        while await self._pause(8.0):
            closed = _closed(history)
            scope = rng.choice(closed) if closed else rng.choice((None, *ENTRYPOINTS))
            if not closed:
                await self._ask(self._gate_request(rng.choice((Gate.PAUSED, Gate.DRAINING)), scope))
                await self._life.clock.sleep(rng.uniform(0.1, 2.5))
            await self._ask(self._gate_request(Gate.OPEN, scope))

    async def _keep_zones(self) -> None:
        """Somebody gives zones weights and limits, pauses them and lets them go on."""
        rng = self._rng
        while await self._pause(2.0):
            paused = _paused(self._world.history)
            zone = rng.choice(paused) if paused else rng.choice(self._zones)
            await self._ask(self._zone_request(zone, paused=not paused and rng.random() < 0.3))

    async def _rent(self) -> None:
        """Tenants order what they need, by names that others use as well, and look at what they can see."""
        rng, world = self._rng, self._world
        while await self._pause(0.8):
            zone = rng.choice(TENANTS)
            if world.known.jobs and not world.layout.led and rng.random() < 0.3:  # looks are no requests to a leader
                with suppress(CasqueError):
                    await peep(self._life, zone, rng.choice(world.known.jobs[-REMEMBERED:]))
                continue
            name, entrypoint = world.known.orders.next(zone), rng.choice(ENTRYPOINTS)
            key = rng.choice(KEYS) if rng.random() < 0.3 else None
            request = self._request(Verb.ENQUEUE, partial(order, zone, name, entrypoint, key), items=1)
            try:
                added = await self.call(request)
            except InvalidInputError as error:
                added, refusal = (), str(error)
            except CasqueError:
                continue
            with world.watching():
                world.history.demand(
                    len(added) == 1 and added[0].startswith(prefix(zone)),
                    Invariant.TENANTS,
                    lambda: f"the tenant {zone} wanted {name}, which is new, and got {added or refusal}",  # noqa: B023
                )

    async def _hold_zones(self) -> None:
        """Somebody takes a zone for itself, works on its jobs, and lets it go, or forgets to."""
        rng, known = self._rng, self._world.known
        while await self._pause(1.5):
            lease = await self._ask(self._lease_zone_request(rng.choice(self._zones)))
            if lease is not None:
                known.zone_leases.append(lease)
            elif known.zone_leases and rng.random() < 0.4:
                # Somebody acts on a lease that it heard of once.
                old = rng.choice(known.zone_leases[-REMEMBERED:])
                await self._ask(self._on_zone(rng.choice((Verb.BEAT_ZONE, Verb.BEAT_ZONE, Verb.RELEASE_ZONE)), old))
            while lease is not None and not self._world.healed and rng.random() < 0.7:
                for job_id, token in await self._ask(self._held_dequeue_request(lease)) or ():
                    await self._work_on(job_id, token)
                await self._life.clock.sleep(rng.uniform(4.0, 8.0) if rng.random() < 0.1 else rng.expovariate(3.0))
                if rng.random() < 0.5:
                    await self._ask(self._on_zone(Verb.BEAT_ZONE, lease))
            if lease is not None and rng.random() < 0.8:
                await self._ask(self._on_zone(Verb.RELEASE_ZONE, lease))

    async def _resize(self) -> None:
        """Somebody changes the size of the ring."""
        rng = self._rng
        while await self._pause(rng.choice((0.3, 0.3, 4.0)) if self._world.restless else 8.0):
            await self._ask(self._resize_request(rng.choice(SIZES)))

    async def _tidy(self) -> None:
        """Somebody has older sizes forgotten as soon as may be."""
        while await self._pause(4.0 if self._world.restless else 0.7):
            await self._ask(self._tidy_request())

    async def _work(self) -> None:
        while True:
            while self._world.healed and (closed := _closed(self._world.history)):
                await self._ask(self._gate_request(Gate.OPEN, closed[0]))
                await self._life.clock.sleep(self._rng.expovariate(4.0))
            while self._world.healed and (paused := _paused(self._world.history)):
                await self._ask(self._zone_request(paused[0], paused=False))
                await self._life.clock.sleep(self._rng.expovariate(4.0))
            entrypoints = self._some_entrypoints()
            wait = 10.0 if self._world.healed else self._rng.choice((0.0, 0.5, 3.0))
            if self._rng.random() < self._small:
                request = self._small_dequeue_request(entrypoints[0] if entrypoints else None)
            else:
                request = self._dequeue_request(entrypoints, wait)
            leases = await self._ask(request)
            if leases and self._rng.random() < TOGETHER:
                await self._work_on_all(leases)
            else:
                for job_id, token in leases or ():
                    await self._work_on(job_id, token)
            if not leases:
                await self._life.clock.sleep(self._rng.expovariate(2.0))

    async def _work_on(self, job_id: str, token: int) -> None:
        rng = self._rng
        manner = 0.5 if self._is_brisk() else rng.random()
        await self._life.clock.sleep(rng.expovariate(8.0))
        if not self._world.healed:
            if manner < 0.1:
                return  # forgotten: its lease runs out
            if manner < 0.2:
                await self._life.clock.sleep(rng.uniform(2.0, 14.0))
            if manner < 0.3 and await self._keep_alive(job_id, token):
                return
            while manner > 0.8 and rng.random() < 0.6:
                await self._ask(self.on_lease(Verb.HEARTBEAT, job_id, token))
                await self._life.clock.sleep(rng.uniform(0.1, 2.0))
            if rng.random() < 0.25:
                await self._ask(self.on_lease(Verb.NACK, job_id, token))
                return
        request = self.on_lease(Verb.ACK, job_id, token)
        await self._ask(request)
        if request.request_id is None and self._world.healed and request.calls[-1].told is Told.UNKNOWN:
            await self._ask(self.on_lease(Verb.ACK, job_id, token))

    async def _work_on_all(self, leases: Sequence[tuple[str, int]]) -> None:
        """Work on all of them, and tell what became of them in one call; with old ones among them, now and then."""
        rng, known = self._rng, self._world.known
        await self._life.clock.sleep(rng.uniform(2.0, 14.0) if self._careless(0.15) else rng.expovariate(4.0))
        outcomes = [
            (job_id, token, rng.choice(NOT_DONE) if self._careless(0.35) else Verb.ACK)
            for job_id, token in leases
            if not self._careless(0.1)
        ]
        if known.leases and self._careless(0.3):
            outcomes += [(*self._old_lease(), rng.choice((Verb.ACK, *NOT_DONE))) for _ in range(2)]
            rng.shuffle(outcomes)
        request = self._settle_request(outcomes)
        await self._ask(request)
        if request.request_id is not None and self._careless(0.4):
            known.doubtful.append(request)  # who tells much at once asks again when in doubt
        if request.request_id is None and self._world.healed and request.calls[-1].told is Told.UNKNOWN:
            await self._ask(self._settle_request(outcomes))

    def _careless(self, share: float) -> bool:
        """As long as the day goes on, now and then."""
        return not self._world.healed and not self._is_brisk() and self._rng.random() < share

    @property
    def _small(self) -> float:
        """The share of calls that go through the small API. Where that is refused often, it ends with the day."""
        return 0.0 if self._world.layout.foreign and self._world.healed else self._small_share

    def _is_brisk(self) -> bool:
        """On a ring most work is done at once: zones have to run empty for it to be of interest."""
        return self._world.layout.ring and self._rng.random() < (BRISK if self._world.restless else 1.0)

    async def _keep_alive(self, job_id: str, token: int) -> bool:
        """Work for long, with somebody sending heartbeats meanwhile; whether the lease was lost."""
        rng, clock = self._rng, self._life.clock
        interval = rng.uniform(0.3, 2.0)
        heartbeat = HeartbeatManager(
            _Beating(self, token), job_id, interval, cancel_on_lost=rng.random() < 0.5, clock=clock
        )
        try:
            async with heartbeat:
                await clock.sleep(rng.uniform(1.0, 9.0))
        except LeaseLostError:
            self._world.history.demand(
                heartbeat.lost, Invariant.EXPECTED, lambda: f"the work on {job_id[:8]} was stopped for no reason"
            )
        return heartbeat.lost

    async def _visit(self) -> None:
        """Short-lived programs: each opens the queue, asks for one thing, and closes it."""
        rng = self._rng
        while await self._pause(2.5):
            visitor = self._life.visitor()
            try:
                async with visitor.queue:
                    request = self._visitors_request()
                    leases = await self._ask(request, visitor)
                    if request.verb is Verb.DEQUEUE and rng.random() < 0.7:
                        for job_id, token in leases or ():
                            await self._ask(self.on_lease(Verb.ACK, job_id, token), visitor)
            except CasqueError as error:
                self._world.trace.note(self._life.name, f"a visitor could not open: {type(error).__name__}")

    def _visitors_request(self) -> Request:
        rng = self._rng
        return self._enqueue_request() if rng.random() < 0.6 else self._dequeue_request(self._some_entrypoints(), 0.0)

    async def _operate(self) -> None:
        rng, known = self._rng, self._world.known
        while await self._pause(2.0):
            if rng.random() < 0.3:
                looks = (self._look_request, self._look_request if self._world.layout.ring else self._requeue_request)
                await self._ask(rng.choice(looks)())
            if not known.jobs:
                continue
            job_id = rng.choice(known.jobs[-REMEMBERED:])
            verb = rng.choices((Verb.CANCEL, Verb.RETRY, Verb.PURGE), (3, 3, 3))[0]
            dead = [job_id for state in self._world.history.everything() for job_id in state.dead]
            if verb is Verb.RETRY and dead and rng.random() < 0.8:
                job_id = rng.choice(dead)
            await self._ask(self._purge_request() if verb is Verb.PURGE else self._on_job(verb, job_id))

    async def _meddle(self) -> None:
        """Somebody acts on a lease that it heard of once, which is mostly an old one."""
        rng, known = self._rng, self._world.known
        while await self._pause(1.5):
            if known.leases:
                job_id, token = self._old_lease()
                verb = rng.choices((Verb.ACK, Verb.NACK, Verb.HEARTBEAT), (4, 2, 1))[0]
                blind = verb is Verb.ACK and rng.random() < 0.05
                await self._ask(self.on_lease(verb, job_id, None if blind else token))

    def _old_lease(self) -> tuple[str, int]:
        """One that somebody heard of once; every other time of a job that is still there, where more can go wrong."""
        leases = self._world.known.leases[-REMEMBERED:]
        there = [lease for lease in leases if self._world.history.record(lease[0]) is not None]
        return self._rng.choice(there if there and self._rng.random() < 0.5 else leases)

    async def _repeat(self) -> None:
        """Whoever does not know how it ended asks again, with the same request id."""
        rng, doubtful = self._rng, self._world.known.doubtful
        while await self._pause(0.7):
            while doubtful:
                request = doubtful.pop(rng.randrange(len(doubtful)))
                if self._world.history.remembers(request):
                    await self._ask(request)
                    break

    async def _borrow(self) -> None:
        """Somebody calls a request what another one is called already."""
        rng, history = self._rng, self._world.history
        while await self._pause(3.0):
            known = [
                request
                for request in history.requests[-REMEMBERED:]
                if request.verb is Verb.ENQUEUE
                and request.request_id in history.remembered
                and request.request_id not in history.scoped
                and not request.borrowed
                and history.remembers(request)
            ]
            if known:
                await self._ask(self._borrowed_request(rng.choice(known)))

    async def _wander(self) -> None:
        """Callers that stop waiting before they are answered."""
        rng = self._rng
        while await self._pause(1.0, until_s=2.0):
            wait = rng.choice((0.0, 5.0))
            small = wait == 0.0 and rng.random() < self._small
            request = (
                self._small_dequeue_request(None) if small else self._dequeue_request(self._some_entrypoints(), wait)
            )
            call = asyncio.create_task(self._ask(request))
            if self._world.profile.startled:
                self._life.leave_when_written(call, rounds=rng.randrange(8))
            await self._life.clock.sleep(rng.uniform(0.0, 0.12) if wait == 0.0 else rng.uniform(0.0, 1.0))
            call.cancel()
            await asyncio.wait([call])

    async def _pause(self, mean_s: float, *, until_s: float = 0.0) -> bool:
        """Think; False when the day's work is over."""
        leisure = self._world.layout.leisure * self._world.profile.leisure
        await self._life.clock.sleep(self._rng.expovariate(1 / mean_s) * leisure)
        return not self._world.healed_for(until_s)

    # --- Requests ---

    def _request(self, verb: Verb, send: Callable[[int, str | None], Send], **about: Any) -> Request:
        number = len(self._world.history.requests)
        request_id = f"r{number}" if verb not in NEVER_REPEATED and self._rng.random() < self._repeated else None
        request = Request(number, verb, send(number, request_id), request_id=request_id, **about)
        self._world.history.add(request)
        return request

    def _enqueue_request(self) -> Request:
        rng = self._rng
        items = rng.choices((1, 2, 5), (6, 2, 1))[0] if self._leisure_s < 3.0 else 1
        drawn = [
            (
                rng.choice(ENTRYPOINTS[:2] if self._world.profile.one_customer else ENTRYPOINTS),
                self._drawn_priority(),
                rng.uniform(0.1, self._delay_max_s) if rng.random() < 0.25 else None,
                rng.choice(KEYS) if rng.random() < self._world.profile.keyed else None,
                rng.choice((None, None, 1, 2)),
                rng.choice((None, None, 1, 3)),
            )
            for _ in range(items)
        ]
        zones = self._drawn_zones(items)
        fifos = {*FIFO_ZONES, *([EITHER] if self._is_fifo(EITHER) else [])}
        large = [b":" + b"x" * PAYLOAD_MAX if rng.random() < self._world.profile.large else b"" for _ in range(items)]

        def send(number: int, request_id: str | None) -> Send:
            jobs = [
                NewJob(
                    name,
                    b"%d:%d" % (number, i) + large[i],
                    priority,
                    None if zones[i] in fifos else delay,
                    None,
                    key,
                    attempts,
                    zone=zones[i],
                    max_crashes=crashes,
                    fifo=zones[i] in fifos,
                    tags=tags_of(number, i),
                    expires=self._expires_s(number, i, delay),
                )
                for i, (name, priority, delay, key, attempts, crashes) in enumerate(drawn)
            ]
            return lambda life: life.queue.enqueue_many(jobs, request_id=request_id)

        return self._request(Verb.ENQUEUE, send, items=items)

    def _expires_s(self, number: int, item: int, delay_s: float | None) -> float | None:
        """Nothing is drawn for it that others draw from: where no job expires, worlds stay as they were."""
        if not self._world.profile.fleeting:
            return None
        rng = Random(f"{self._world.seed}/{number}/{item}/expires")
        expires_s = (delay_s or 0.0) + rng.uniform(0.5, 8.0)
        return expires_s if rng.random() < self._world.profile.fleeting else None

    def _expiries_ms(self, number: int, delays: list[float | None]) -> list[int | None] | None:
        spans = [self._expires_s(number, row, delay) for row, delay in enumerate(delays)]
        return [None if span is None else int(span * 1000) for span in spans] if any(spans) else None

    def _borrowed_request(self, other: Request) -> Request:
        number, rng = len(self._world.history.requests), self._rng
        jobs = [NewJob(rng.choice(ENTRYPOINTS), b"%d:%d" % (number, item)) for item in range(other.items)]
        request = Request(
            number,
            Verb.ENQUEUE,
            lambda life: life.queue.enqueue_many(jobs, request_id=other.request_id),
            request_id=other.request_id,
            items=other.items,
            borrowed=True,
        )
        self._world.history.add(request)
        return request

    def _drawn_priority(self) -> int:
        if self._world.profile.urgent:
            return 10_000 - int(100 * self._world.loop.time()) + self._rng.randrange(100)
        return self._rng.choice((0, 0, 1, 5))

    def _drawn_zones(self, items: int) -> list[str | None]:
        """Mostly a producer has one customer."""
        rng = self._rng
        if self._world.profile.one_customer:
            return [ZONES[0]] * items
        if not self._world.zoned or rng.random() < 0.3:
            return [None] * items
        if rng.random() < 0.7:
            return [rng.choice(self._zones)] * items
        return [rng.choice((None, *self._zones)) for _ in range(items)]

    def _is_fifo(self, zone: str) -> bool:
        """As far as anybody knows; an empty zone is what the next one makes of it."""
        state = self._world.history.state
        return state.is_fifo(zone) if zone in state.zone_jobs else self._rng.random() < 0.5

    def _zone_request(self, zone: str, *, paused: bool) -> Request:
        rng = self._rng
        rules = ZoneRules(rng.choice((1.0, 0.5, 3.0)), rng.choice((None, 1, 2)), None, paused)

        def send(_: int, request_id: str | None) -> Send:
            return lambda life: life.queue.set_zone(
                zone,
                weight=rules.weight,
                running_max=rules.running_max,
                per_second=rules.per_second,
                paused=rules.paused,
                request_id=request_id,
            )

        return self._request(Verb.ZONE, send, source=zone, rules=rules)

    def _lease_zone_request(self, zone: str) -> Request:
        lease = self._rng.choice((1.5, 3.0, 6.0))

        def send(_: int, request_id: str | None) -> Send:
            return lambda life: life.queue.lease_zone(zone, lease=lease, request_id=request_id)

        return self._request(Verb.LEASE_ZONE, send, source=zone)

    def _held_dequeue_request(self, lease: ZoneLease) -> Request:
        batch, wait = self._rng.choice((1, 2, 4)), self._rng.choice((0.0, 0.5))

        def send(_: int, request_id: str | None) -> Send:
            return lambda life: life.queue.dequeue(batch_size=batch, wait=wait, zone_lease=lease, request_id=request_id)

        own = self._world.history.own(lease.token)
        return self._request(Verb.DEQUEUE, send, zones=(lease.zone,), zone_token=own)

    def _on_zone(self, verb: Verb, lease: ZoneLease) -> Request:
        def send(*_: Any) -> Send:
            if verb is Verb.BEAT_ZONE:
                return lambda life: life.queue.heartbeat_zone(lease)
            return lambda life: life.queue.release_zone(lease)

        own = self._world.history.own(lease.token)
        return self._request(verb, send, source=lease.zone, token=lease.token, zone_token=own)

    def _resize_request(self, size: int) -> Request:
        return self._request(Verb.RESIZE, lambda *_: lambda life: life.builder().resize(size))

    def _tidy_request(self) -> Request:
        return self._request(Verb.TIDY, lambda *_: lambda life: life.builder().tidy())

    def _admit_request(self, only: str | None = None) -> Request:
        """Staged anew with every attempt, as a task that is run twice does it. `only`: the zone of all of its jobs."""
        rng = self._rng
        parts = rng.choice((1, 1, 2))
        items = parts * rng.choice((1, 2, 4))
        names = [rng.choice(ENTRYPOINTS) for _ in range(items)]
        keys = [rng.choice(KEYS) if rng.random() < 0.1 else None for _ in range(items)]
        customers = [zone for zone in self._zones if zone in ZONES]
        zones = [rng.choice((None, *customers)) if self._world.zoned else None for _ in range(items)]
        zones = zones if only is None else [only] * items
        delays = [rng.uniform(0.1, self._delay_max_s) if rng.random() < 0.25 else None for _ in range(items)]
        source = rng.choice((self._life.node.name, "everybody"))
        number = len(self._world.history.requests)
        if self._world.profile.strict and number % 2:
            zones = [FIFO_ZONES[(number + row) % 4 // 2] for row in range(items)]
            delays = [None] * items

        async def admit(life: Through) -> Admission:
            wall_ms = life.clock.wall_ms()
            jobs = StagedJobs(
                [f"a{number:06d}-{row}" for row in range(items)],
                names,
                [b"%d:%d" % (number, row) for row in range(items)],
                rng.choice((0, 0, 1, 5)),
                [None if delay is None else wall_ms + int(delay * 1000) for delay in delays],
                3,
                keys,
                zones=zones if any(zones) else None,
                fifo=[zone in FIFO_ZONES for zone in zones] if self._world.profile.strict else False,
                expires_ms=self._expiries_ms(number, delays),
            )
            staging = life.staging()
            size = items // parts
            named = [await staging.put(jobs.rows(at, at + size), source) for at in range(0, items, size)]
            return await life.queue.admit(source, number, named)

        request = Request(
            number, Verb.ADMIT, admit, request_id=f"batch {number} of {source}", items=items, source=source
        )
        self._world.history.add(request)
        return request

    def _schedule_request(self) -> Request:
        rng = self._rng
        name = rng.choice((STEADY, "changing", "late"))
        every = 1 if name == STEADY else rng.choice((1, 2, 3))
        missed = rng.choice((Missed.ONE, Missed.SKIP)) if name == "late" else Missed.ALL
        entrypoint = ENTRYPOINTS[len(name) % len(ENTRYPOINTS)]
        manner = rng.random() if name == "changing" else 1.0

        def send(life: Through) -> Awaitable[Any]:
            if manner < 0.15:
                return life.queue.pause_schedule(name)
            if manner < 0.4:
                return life.queue.resume_schedule(name)
            return life.queue.set_schedule(name, f"*/{every} * * * *", (entrypoint, b""), missed=missed)

        request = Request(len(self._world.history.requests), Verb.SCHEDULE, send, source=name)
        self._world.history.add(request)
        return request

    def _small_enqueue_request(self) -> Request:
        entrypoint, priority = self._rng.choice(ENTRYPOINTS), self._rng.choice((0, 1))

        def send(number: int, request_id: str | None) -> Send:
            async def enqueue(life: Through) -> list[Job[bytes]]:
                return [await life.small.enqueue(entrypoint, b"%d:0" % number, priority, request_id=request_id)]

            return enqueue

        return self._request(Verb.ENQUEUE, send, items=1)

    def _dequeue_request(self, entrypoints: tuple[str, ...] | None, wait_s: float) -> Request:
        batch = self._rng.choice((1, 1, 2, 4))
        lease = self._rng.choice((None, 3.0, 10.0))
        zones = None
        if self._world.zoned and not self._world.healed and self._rng.random() < 0.2:
            zones = tuple(self._rng.sample(self._zones, self._rng.choice((1, 2))))
        return self._request(
            Verb.DEQUEUE,
            lambda _, request_id: (
                lambda life: life.queue.dequeue(
                    entrypoints, batch_size=batch, wait=wait_s, lease=lease, zone=zones, request_id=request_id
                )
            ),
            entrypoints=entrypoints,
            zones=zones,
        )

    def _small_dequeue_request(self, entrypoint: str | None) -> Request:
        batch = self._rng.choice((1, 1, 2))
        return self._request(
            Verb.DEQUEUE,
            lambda _, request_id: lambda life: life.small.dequeue(entrypoint, batch_size=batch, request_id=request_id),
            entrypoints=None if entrypoint is None else (entrypoint,),
        )

    def on_lease(self, verb: Verb, job_id: str, token: int | None) -> Request:
        delay = self._rng.choice((None, 0.0, 1.0))
        small = self._rng.random() < self._small

        def through(life: Through) -> LeaseVerbs:
            return life.small if small else life.queue

        def known(life: Through) -> int | None:
            """By id alone where the small queue itself knows the token: it must come to the same."""
            is_known = small and token is not None and life.small._claimed.get(job_id) == token  # noqa: SLF001
            return None if is_known else token

        def send(number: int, request_id: str | None) -> Send:
            if verb is Verb.ACK:
                return lambda life: through(life).ack(job_id, known(life), request_id=request_id)
            if verb is Verb.NACK:
                error = f"nack {number}"
                return lambda life: through(life).nack(
                    job_id, known(life), delay=delay, error=error, request_id=request_id
                )
            return lambda life: through(life).heartbeat(job_id, known(life))

        own = None if token is None else self._world.history.own(token)
        return self._request(verb, send, job_id=job_id, token=own)

    def _settle_request(self, outcomes: Sequence[tuple[str, int, Verb]]) -> Request:
        rng, history = self._rng, self._world.history
        small = rng.random() < self._small
        told: list[Outcome] = []
        parts: list[Request] = []
        for job_id, token, verb in outcomes:
            crashed = verb is Verb.NACK and rng.random() < 0.4
            part = Request(
                len(history.requests),
                verb,
                _never_by_itself,
                job_id=job_id,
                token=history.own(token),
                crashed=crashed,
            )
            history.add(part)
            parts.append(part)
            match verb:
                case Verb.NACK:
                    error, delay_ms = f"nack {part.number}", rng.choice((None, 0, 1000))
                    how = OutcomeKind.CRASHED if crashed else None
                    told.append(Outcome(job_id, token, error, delay_ms=delay_ms, how=how))
                case Verb.SNOOZE:
                    told.append(Outcome(job_id, token, delay_ms=rng.choice((None, 0, 1000)), how=OutcomeKind.SNOOZED))
                case Verb.DECLINE:
                    delay_ms = rng.choice((None, None, 0, 500))
                    told.append(
                        Outcome(job_id, token, f"decline {part.number}", delay_ms=delay_ms, how=OutcomeKind.DECLINED)
                    )
                case Verb.WITHDRAW:
                    told.append(Outcome(job_id, token, rng.choice((None, "withdrawn")), how=OutcomeKind.CANCELLED))
                case _:
                    told.append(Outcome(job_id, token))

        def send(_: int, request_id: str | None) -> Send:
            return lambda life: (life.small if small else life.queue).settle(told, request_id=request_id)

        return self._request(Verb.SETTLE, send, parts=parts)

    def _on_job(self, verb: Verb, job_id: str) -> Request:
        def send(_: int, request_id: str | None) -> Send:
            if verb is Verb.CANCEL:
                return lambda life: life.queue.cancel(job_id, request_id=request_id)
            return lambda life: life.queue.retry(job_id, request_id=request_id)

        return self._request(verb, send, job_id=job_id)

    def _purge_request(self) -> Request:
        entrypoint = self._rng.choice((None, *ENTRYPOINTS))
        return self._request(
            Verb.PURGE, lambda _, request_id: lambda life: life.queue.purge(entrypoint, request_id=request_id)
        )

    def _gate_request(self, gate: Gate, scope: str | None) -> Request:
        def send(_: int, request_id: str | None) -> Send:
            def ask(life: Through) -> Coroutine[Any, Any, None]:
                q = life.queue
                verb = {Gate.PAUSED: q.pause, Gate.DRAINING: q.drain, Gate.OPEN: q.resume}[gate]
                return verb(scope, request_id=request_id)

            return ask

        return self._request(Verb.GATE, send, gate=gate, scope=scope)

    def _requeue_request(self) -> Request:
        timeout = timedelta(seconds=self._rng.choice((1.0, 5.0, 20.0)))
        return self._request(
            Verb.REQUEUE, lambda *_: lambda life: life.small.requeue_stale(timeout), timeout_ms=milliseconds(timeout)
        )

    def _look_request(self) -> Request:
        small = self._rng.random() < self._small

        async def position(life: Through) -> int:
            return (await life.small.read_state()).version if small else (await life.queue.stats()).position

        return self._request(Verb.LOOK, lambda *_: position)

    def _some_entrypoints(self) -> tuple[str, ...] | None:
        rng = self._rng
        # A small staff has to reach every job once the day is over.
        count = 0 if self._world.healed else rng.choice((0, 1, 1, 2))
        return tuple(rng.sample(ENTRYPOINTS, count)) or None

    # --- Asking ---

    async def _ask(self, request: Request, through: Through | None = None) -> Any:
        """The answer; None if there was none."""
        try:
            return await self.call(request, through)
        except CasqueError:
            return None

    def _check_payloads(self, request: Request, answer: Any) -> None:
        """Whoever claims a job gets to know what it is to do, and no job is shown with the payload of another."""
        for job in answer if request.verb is Verb.DEQUEUE else ():
            self._check_payload(request, job.id, job.payload)
        for job in answer if request.verb is Verb.ENQUEUE else ():
            # That of a job that held a unique key, and is over, is not known any more. A large one may be gone by now.
            if isinstance(job, Job) and job.record.spec.payload and job.record.spec.blob is None:
                self._check_payload(request, job.id, job.record.spec.payload)

    def _check_payload(self, request: Request, job_id: str, payload: bytes) -> None:
        expected = self._world.history.payloads.get(job_id)
        with self._world.watching():
            self._world.history.demand(
                expected is None or payload == expected,
                Invariant.PAYLOADS,
                lambda: f"{request} got job {job_id[:8]} with {payload!r}, and it was {expected!r}",
            )

    async def call(self, request: Request, through: Through | None = None) -> Any:
        """Send it through one of this process's queues, and note what came back."""
        call = Call(request, self._life)
        CALL.set(call)
        self._world.history.checked[Invariant.EXPECTED] += 1
        try:
            answer = await request.send(through or self._life)
            self._check_payloads(request, answer)
            answer = _plain(request.verb, answer)
        except asyncio.CancelledError:
            if not self._life.dead and not is_cancelled():
                with self._world.watching():
                    raise Violation(Invariant.EXPECTED, f"the caller of {request} was cancelled by the queue") from None
            self._in_doubt(call, Told.UNKNOWN if self._life.dead else Told.LEFT)
            raise
        except UnknownOutcomeError as error:
            self._in_doubt(call, Told.UNKNOWN)
            if isinstance(error, QueueReplacedError):
                self._world.loop.call_soon(self._life.node.crash)  # it has to be opened again
            raise
        except CasqueError as error:
            self._refused(call, error)
            raise
        except Violation:
            raise
        except Exception as error:
            # Whatever it is, no caller should meet it.
            with self._world.watching():
                raise Violation(Invariant.EXPECTED, f"{request} met {error!r}") from error
        else:
            self._answered(call, answer)
            return answer

    def _answered(self, call: Call, answer: Any) -> None:
        self._note(call, str(answer))
        with self._world.watching():
            self._world.answers.answered(call, answer)
        known = self._world.known
        if call.request.verb is Verb.ENQUEUE:
            known.jobs.extend(answer)
        elif call.request.verb is Verb.DEQUEUE:
            known.leases.extend(answer)
        if call.request.request_id is not None and self._rng.random() < self._deaf:
            known.doubtful.append(call.request)  # an answer that did not reach whoever asked through us

    def _refused(self, call: Call, error: CasqueError) -> None:
        self._note(call, f"{type(error).__name__}")
        with self._world.watching():
            if isinstance(error, CorruptQueueError):
                raise Violation(Invariant.EXPECTED, f"{call.request} met {error!r}")
            self._world.answers.refused(call, error)

    def _in_doubt(self, call: Call, told: Told) -> None:
        self._note(call, told)
        self._world.answers.unknown(call, told)
        request = call.request
        if told is Told.LEFT:
            self._world.faults[Fault.CALLER_LEFT] += 1
        if request.request_id is not None:
            self._world.known.doubtful.append(request)

    def _note(self, call: Call, told: str) -> None:
        self._world.trace.note(self._life.name, f"{call.request} -> {told}")

    # --- For others in the same process ---

    ask, pause = _ask, _pause
    gate_request, zone_request = _gate_request, _zone_request
    settle_request, dequeue_request, look_request = _settle_request, _dequeue_request, _look_request
    admit_request, resize_request, tidy_request, on_job = _admit_request, _resize_request, _tidy_request, _on_job
    lease_zone_request, held_dequeue_request, on_zone = _lease_zone_request, _held_dequeue_request, _on_zone
    some_entrypoints = _some_entrypoints

    @property
    def zones(self) -> tuple[str, ...]:
        return self._zones


def _closed(history: History) -> list[str | None]:
    """What is paused or being drained."""
    gates = [shard.state.gates for shard in history.walked()]
    whole: list[str | None] = [] if all(one.queue is Gate.OPEN for one in gates) else [None]
    return whole + sorted({name for one in gates for name in one.entrypoints})


def _paused(history: History) -> list[str]:
    """Zones of which nothing is claimed."""
    return sorted({zone for shard in history.walked() for zone, rules in shard.state.rules.items() if rules.paused})


class _Beating:
    """What a `HeartbeatManager` needs of a queue: each of its beats is a request like any other."""

    def __init__(self, crew: Crew, token: int) -> None:
        self._crew = crew
        self._token = token

    async def heartbeat(self, job_id: str) -> None:
        await self._crew.call(self._crew.on_lease(Verb.HEARTBEAT, job_id, self._token))


async def _never_by_itself(_: Through) -> None:
    raise AssertionError("the parts of a settle are asked for by the whole")


def _plain(verb: Verb, answer: Any) -> Any:
    if verb is Verb.ENQUEUE:
        return tuple(job.id for job in answer)
    if verb is Verb.DEQUEUE:
        return tuple((job.id, job.token) for job in answer)
    return answer
