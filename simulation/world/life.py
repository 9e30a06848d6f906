"""A machine, and the lives of the process that runs on it: born with a new identity, stopped, killed, born again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from casque.client.opening import Parts
from casque.client.payloads import BytesCodec
from casque.client.queue import Queue
from casque.client.remote import RemoteQueue
from casque.client.small import BrokerQueue, DirectQueue
from casque.clock import Random
from casque.codec.head import KEY, Owner
from casque.codec.ring import shard_prefix
from casque.engine.committer import Committer, Decide
from casque.engine.direct import DirectCommit
from casque.engine.embedded import EmbeddedService
from casque.engine.staging import Staging
from casque.environment import Environment
from casque.errors import CasqueError, UnknownOutcomeError
from casque.journal.port import Sighting
from casque.ring.building import Builder
from casque.service import QueueService
from casque.settings import QueueSettings
from casque.state import State
from casque.storage.port import Store
from casque.storage.prefixed import PrefixedStore
from casque.transport.grpc.door import Door
from simulation.world.broker import ANYBODY, SimulatedBroker
from simulation.world.claimable import unclaimable
from simulation.world.clock import LifeClock, MachineClock
from simulation.world.crew import Crew
from simulation.world.employee import Employee
from simulation.world.history import History
from simulation.world.invariants import Invariant
from simulation.world.line import Line, PlacedLine
from simulation.world.ring import RingHistory
from simulation.world.server import ServedBroker, led_shards, remote_queue
from simulation.world.steps import same_state
from simulation.world.streams import ClientStream, Transport
from simulation.world.tailer import Tailer
from simulation.world.wire import followed

if TYPE_CHECKING:
    from simulation.world.world import World

FOLLOWED = 0.5
"""The share of processes in which somebody follows the log."""
TASKS_FEW = 64
COMPARED = 4
"""A state that has not moved since it was compared with the store is compared again one in this many times."""
SLEEP_MAX_S = 12.0
CURRENT: ContextVar[Life | None] = ContextVar("life", default=None)
"""Whose code is running: every task that it makes dies with it."""


def task_factory(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **kwargs)
    life = CURRENT.get()
    if life is not None:
        life.own(task)
    return task


def routed(callback: Callable[[], object]) -> Callable[[], object]:
    """A timer of the process whose code is running: it waits while that is stopped, and dies with it."""
    life = CURRENT.get()
    return callback if life is None else partial(life.deliver, callback)


class Node:
    """One machine. Its clocks outlive its process; being cut off and being stopped happen to the machine."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"n{number}"
        self.rng = Random(f"{world.seed}/{self.name}")
        profile = world.profile
        self.clock = MachineClock(
            world.loop, self.rng, skew_s=world.skew_s, drift=profile.drift, grain_ms=profile.grain_ms
        )
        self.cut_off = False
        self.refused = False
        self.lives = 0
        self.life: Life | None = None

    def start(self) -> None:
        if self.life is None:
            self.lives += 1
            self.life = Life(self, self.lives)
            self.life.begin()

    def crash(self) -> None:
        """Everything stops where it is. What is under way to the store may arrive."""
        life, self.life = self.life, None
        if life is not None:
            self.world.trace.note(life.name, "crash")
            life.kill()
            self.world.loop.call_later(self.rng.uniform(0.05, 4.0), self.start)

    def close(self) -> None:
        if self.life is not None:
            self.life.begin_close()


class Life:
    """One run of the process, with the real queue inside."""

    def __init__(self, node: Node, number: int) -> None:
        world = node.world
        self.world = world
        self.node = node
        self.name = f"{node.name}.{number}"
        self.writers: dict[str, str | None] = {}
        """Its committers, and for whom each of them claims."""
        self._committers: list[Committer] = []
        self.rng = Random(f"{world.seed}/{self.name}/work")
        self.began_at = world.loop.time()
        self.dead = False
        self.closing = False
        self.in_doubt: set[tuple[str, int]] = set()
        """Its batches, by writer and number, of which it never knew whether they landed."""
        self.failed_at: dict[str, float] = {}
        """When a commit of each writer failed last."""
        self._ending: tuple[Callable[[], None], int] | None = None
        self._leaving: list[tuple[asyncio.Task[Any], int]] = []
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._room = TASKS_FEW
        self.clock = LifeClock(node.clock, self, world.loop)
        self._stopped = False
        self._sleepy = False
        self._held: list[Callable[[], object]] = []
        chance = Random(f"{world.seed}/{self.name}/line")
        self.line = Line(world.bucket, self, chance)
        if world.layout.copied:
            self.line = PlacedLine(world.bucket, self, chance, "original")
        self.queue = Queue(_WatchedParts(self, self.line, "queue", self.name), BytesCodec(), worker=self.name)
        self.broker: SimulatedBroker | ServedBroker | None = None
        self.streams: dict[ClientStream, None] = {}
        """Those that its clients have open."""
        self.served: dict[ClientStream, None] = {}
        """Those that its server has taken."""
        self.streams_begun = 0
        self.listening: Transport | None = None
        self.door: Door | None = None
        self._remote: RemoteQueue | None = None
        if world.layout.led:
            brokers = _WatchedParts(self, self.line, "broker", ANYBODY)
            self.broker = ServedBroker(self, brokers) if world.layout.served else SimulatedBroker(self, brokers)
            self._remote = remote_queue(self, "remote") if world.layout.served else followed(self, "remote")
            self.queue._embedded = self._remote  # noqa: SLF001
        self.builders = _WatchedParts(self, self.line, "builder", None)
        self.direct: DirectCommit | None = None
        self.small = self._small_queue(self.line)
        self._opened = False
        self._looked: WeakKeyDictionary[State, int] = WeakKeyDictionary()
        self._compared = 0
        """Of each state that it has held, the position up to which it was asked what can be claimed."""
        self._stagings = 0
        self._visitors = 0
        self._crew = Crew(self)
        self._employee = Employee(self, self._crew) if world.profile.worker_lease_s else None
        self._context = copy_context()
        self._context.run(CURRENT.set, self)

    def builder(self) -> Builder:
        """For whoever makes or resizes a ring."""
        return self.builders.builder(led_shards(self, self.builders) if self.world.layout.led else None)

    def staging(self) -> Staging:
        """For whoever stages jobs in this process."""
        rng = Random(f"{self.world.seed}/{self.name}/staging/{self._stagings}")
        self._stagings += 1
        return Staging(self.line, Environment(self.world.profile.settings, self.clock, rng))

    def visitor(self) -> Visitor:
        """Somebody who opens the queue in this process, as a writer or a client of its own, and closes it soon."""
        self._visitors += 1
        return Visitor(self, self._visitors)

    def _small_queue(self, line: Line) -> BrokerQueue | DirectQueue:
        """The small API in the same process, as another writer."""
        parts = _WatchedParts(self, line, "small", None)
        blobs = parts.blobs(tolerant=True)
        if self.rng.random() < 0.5:
            broker = BrokerQueue(line)
            broker._parts, broker._blobs = parts, blobs  # noqa: SLF001
            return broker
        direct = DirectQueue(line)
        direct._parts, direct._blobs = parts, blobs  # noqa: SLF001
        self.direct = parts.direct()
        direct._embedded = EmbeddedService(self.direct, parts.settings, blobs=blobs)  # noqa: SLF001
        return direct

    # --- Born, closed, killed ---

    def begin(self) -> None:
        self.world.trace.note(self.name, "start")
        self._context.run(self.world.loop.create_task, self._live())

    def start(self, coro: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that belongs to this process, whoever asks for it."""
        return self._context.copy().run(self.world.loop.create_task, coro)

    def leading(self) -> QueueService:
        """What a broker offers while it leads."""
        assert self.broker is not None
        return self.broker.service()

    async def _live(self) -> None:
        try:
            if self.world.layout.ring and KEY not in self.world.bucket.objects:
                # The first ones make it, perhaps at the same time.
                await self.builder().create(self.rng.choice((1, 2, 3)))
            if self.broker is None:
                await self.queue.__aenter__()
            else:
                self.start(self.broker.run())
            if isinstance(self.small, BrokerQueue) and not self.world.layout.ring:
                await self.small.__aenter__()
        except CasqueError as error:
            self.world.trace.note(self.name, f"could not open: {error}")
            self.world.loop.call_soon(self.node.crash)
            return
        except Exception as error:  # noqa: BLE001  a bug: nobody waits for this task
            self.world.found(Invariant.EXPECTED, f"{self.name} could not open: {error!r}")
            return
        self._opened = True
        if self.world.layout.followed and not self.world.healed and self.rng.random() < FOLLOWED:
            self.start(Tailer(self).run())
        self._crew.begin()
        if self._employee is not None:
            self.start(self._employee.run())

    def begin_close(self) -> None:
        if self._opened and not self.closing:
            self.closing = True
            self.world.trace.note(self.name, "close")
            self._context.run(self.world.loop.create_task, self._close())

    async def _close(self) -> None:
        if self.rng.random() < 0.5:
            self._crew.dismiss()
        await self._crew.leave()
        if self._employee is not None:
            await self._employee.stop()
        if self.broker is None:
            await self.queue.__aexit__(None, None, None)
        else:
            await self.broker.stop()
            if self._remote is not None and self.world.layout.served:
                await self._remote.close()
        if isinstance(self.small, BrokerQueue) and not self.world.layout.ring:
            await self.small.__aexit__(None, None, None)
        self.world.trace.note(self.name, "closed")
        self.world.loop.call_soon(self.node.crash)

    def kill(self) -> None:
        """No code of this life reaches the store, a timer or a caller's answer any more; what is left unwinds."""
        self.dead = True
        self._held.clear()
        for stream in list(self.streams):
            stream.client_died()
        for stream in list(self.served):
            stream.peer_died()
        for task in list(self.tasks):
            task.cancel()

    def stop_if_dead(self) -> None:
        if self.dead:
            raise asyncio.CancelledError

    def own(self, task: asyncio.Task[Any]) -> None:
        """It dies with this life. Finished ones are dropped now and then: a callback for each would double the work."""
        self.tasks[task] = None
        if len(self.tasks) > self._room:
            self.tasks = {one: None for one in self.tasks if not one.done()}
            self._room = 2 * len(self.tasks) + TASKS_FEW

    # --- Whatever reaches the process comes through here ---

    def deliver(self, callback: Callable[[], object]) -> None:
        """Replies and timers. A stopped process gets them when it goes on, a dead one never."""
        if self.dead:
            return
        if self._stopped:
            self._held.append(callback)
        else:
            callback()

    def leave_when_written(self, call: asyncio.Task[Any], *, rounds: int) -> None:
        """This call is cancelled so many rounds of the loop after the reply to the next write."""
        self._leaving.append((call, rounds))

    def written(self) -> None:
        leaving, self._leaving = self._leaving, []
        for call, rounds in leaving:
            self._leave_in(call, rounds)

    def die_when_told(self, *, rounds: int) -> None:
        """The process dies this many rounds of the loop after the reply to some request: between two awaits."""
        self._ending = (self.node.crash, rounds)

    def close_when_told(self, *, rounds: int) -> None:
        """As on SIGTERM, likewise between two awaits."""
        self._ending = (self.begin_close, rounds)

    def told(self) -> None:
        """A reply has come."""
        if self._ending is not None:
            (end, rounds), self._ending = self._ending, None
            self._end_in(end, rounds)

    def _end_in(self, end: Callable[[], None], rounds: int) -> None:
        if self.dead:
            return
        if rounds:
            self.world.loop.call_soon(self._end_in, end, rounds - 1)
        else:
            end()

    def _leave_in(self, call: asyncio.Task[Any], rounds: int) -> None:
        if rounds:
            self.world.loop.call_soon(self._leave_in, call, rounds - 1)
        else:
            call.cancel()

    @property
    def stopped(self) -> bool:
        return self._stopped

    def sleep_over_a_write(self) -> None:
        """The process is stopped when its next write has arrived, before it hears of that."""
        self._sleepy = True

    def arrived(self) -> None:
        """A write has reached the store."""
        if self._sleepy and not self._stopped and not self.world.healed:
            self._sleepy = False
            self.stop()
            self._sleep_on(self.world.history.position, self.world.loop.time() + SLEEP_MAX_S)

    def _sleep_on(self, position: int, until: float) -> None:
        if self.world.loop.time() >= until or self.world.layout.collected(self.world.bucket.objects) > position:
            self.go_on()
        else:
            self.world.loop.call_later(0.25, self._sleep_on, position, until)

    def stop(self) -> None:
        """As by SIGSTOP."""
        self._stopped = True
        self.world.trace.note(self.name, "stop")

    def go_on(self) -> None:
        if self._stopped:
            self._stopped = False
            self.world.trace.note(self.name, "go on")
            held, self._held = self._held, []
            for callback in held:
                self.world.loop.call_soon(self.deliver, callback)

    # --- What its code believes ---

    def watch(self, committer: Committer, worker: str | None, history: History) -> Committer:
        """Every state that it accepts is held against the history."""
        self.writers[committer.writer] = worker
        self._committers.append(committer)
        commit, refresh, load, lead = committer.commit, committer.refresh, committer.open, committer.lead
        hold = committer.hold

        async def watched_commit(decide: Decide) -> None:
            landed = history.changed
            try:
                await commit(decide)
            except CasqueError as error:
                self.failed_at[committer.writer] = self.world.loop.time()
                if not isinstance(error, UnknownOutcomeError):
                    raise
                self.in_doubt.add((committer.writer, committer._batches))  # noqa: SLF001  the one it tried last
                raise
            # Also if nothing was written: a leader that answers from memory knows all that had landed.
            self._accepted(history, committer.state, landed)

        async def watched_refresh() -> None:
            landed = history.position
            await refresh()
            self._accepted(history, committer.state, landed, read=True)

        async def watched_hold() -> None:
            await hold()
            if committer.known is not None:
                self._accepted(history, committer.known)

        async def watched_open() -> None:
            if committer.known is None:
                landed = history.position
                await load()
                self._accepted(history, committer.state, landed)

        async def watched_lead(owner: Owner, *, lease_ms: int, seen: Sighting | None) -> bool:
            leads = await lead(owner, lease_ms=lease_ms, seen=seen)
            if leads:
                self.world.trace.note(self.name, f"leads epoch {committer.sighting().epoch}")
                self._accepted(history, committer.state)
            return leads

        committer.lead = watched_lead  # type: ignore[method-assign]
        committer.commit = watched_commit  # type: ignore[method-assign]
        committer.refresh = watched_refresh  # type: ignore[method-assign]
        committer.hold = watched_hold  # type: ignore[method-assign]
        committer.open = watched_open  # type: ignore[method-assign]
        return committer

    @property
    def trusts_its_memory(self) -> bool:
        """Whether it leads, as far as it knows, and would answer without asking the store."""
        return any(one.leads and one.sole for one in self._committers)

    def may_have_tried(self, writer: str, since: float) -> bool:
        """Whether it is giving a claim back, or may have tried: `DirectQueue` tries once, when its turn comes."""
        if self.direct is None or self.writers[writer] is not None:
            return False
        return bool(self.direct._giving) or self.failed_at.get(writer, -1.0) >= since  # noqa: SLF001

    def _accepted(self, history: History, state: State, landed: int = 0, *, read: bool = False) -> None:
        """Some code of this process believes that this is the queue; it had landed so far when that code asked.
        `read`: it has only looked, and carried out nothing."""
        if self.dead:
            return
        stored = history.states.get(state.position)
        with self.world.watching():
            history.demand(
                landed <= state.position <= history.state.position,
                Invariant.CURRENT,
                lambda: f"{self.name} sees position {state.position}, and {landed} had landed when it asked",
            )
            # What it believed before at this position it believes still, unless a refused call has changed something.
            self._compared += 1
            again = self._looked.get(state) == state.position and self._compared % COMPARED
            history.demand(
                bool(again) or stored is None or same_state(state, stored),
                Invariant.SAME_STATE,
                lambda: f"{self.name} holds another state of position {state.position} than the store",
            )
            if state.events or self._looked.get(state) == state.position:
                return
            decoded = read and state not in self._looked
            self._looked[state] = state.position
            # What was just restored knows nothing of who holds it: one of each position is enough.
            unknown = state.position not in history.restored
            history.restored.add(state.position)
            # Claiming all of a copy is dear, and a wrong index stays wrong for a while: every third position is enough.
            if (unknown or not decoded) and state.position % 3 == 0:
                problem = unclaimable(state, self.clock.wall_ms(), restored_too=unknown)
                history.demand(problem is None, Invariant.CLAIMABLE, lambda: f"{self.name}: {problem}")


class Visitor:
    """Satisfies `Through` with a queue of its own."""

    def __init__(self, life: Life, number: int) -> None:
        name = f"visitor{number}"
        parts = _WatchedParts(life, life.line, name, life.name)
        self.queue = Queue(parts, BytesCodec(), worker=life.name)
        if life.world.layout.led:
            remote = remote_queue(life, name) if life.world.layout.served else followed(life, name)
            around = Environment(parts.settings, parts.clock, parts.rng)
            self.queue = Queue(around, BytesCodec(), remote=remote, worker=life.name)
        self.small = life.small
        self.clock = life.clock
        self.staging = life.staging
        self.builder = life.builder


class _WatchedParts(Parts):
    """The real parts, with an eye on what their committers believe."""

    def __init__(self, life: Life, store: Store, name: str, worker: str | None, history: History | None = None) -> None:
        rng = Random(f"{life.world.seed}/{life.name}/{name}")
        super().__init__(store, _settings(life, name), clock=life.clock, rng=rng, **life.world.layout.parts)
        self._life = life
        self._name = name
        self._worker = worker
        self._history = history or life.world.history

    def committer(self) -> Committer:
        return self._life.watch(super().committer(), self._worker, self._history)

    def shard(self, token: int) -> Parts:
        ring = self._history
        assert isinstance(ring, RingHistory)
        below = PrefixedStore(self.store, shard_prefix(token))
        # Whoever opens it several times is several writers.
        name = f"{self._name}/{token}/{self.rng.getrandbits(32)}"
        return _WatchedParts(self._life, below, name, self._worker, ring.shard(token))


def _settings(life: Life, name: str) -> QueueSettings:
    """Those of the weather. Where forms of the archive are mixed, every writer has its own; nothing is drawn for that
    which others draw from."""
    settings, formats = life.world.profile.settings, life.world.layout.formats
    if not formats:
        return settings
    return replace(settings, archive_format=Random(f"{life.world.seed}/{life.name}/{name}/form").choice(formats))
