"""One run from the first process to the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from casque.client.new_jobs import NewJob
from casque.client.opening import Parts
from casque.client.queue import DEFAULTS, Queue
from casque.clock import Random, SystemClock, system_random
from casque.codec.head import KEY, Owner
from casque.environment import Environment
from casque.errors import CasqueError, NoLeaderError, QueueLedError
from casque.journal.verify import Verifier
from casque.service import ArchivedJob, Stats
from casque.storage.port import Store, Stored
from casque.storage.url import open_store
from casque.transport.grpc.client import GrpcService
from casque.types import JobState
from simulation.chaos.actor import Orders, open_queue
from simulation.chaos.caller import ATTEMPTS, ENTRYPOINT, Caller, Place, claim_of
from simulation.chaos.chronicle import Chronicle
from simulation.chaos.fleet import ActorMember, BrokerMember, Fleet, Health, Kind, Member, serve_arguments
from simulation.chaos.ledger import Ledger
from simulation.chaos.shifted_clock import RANGE_S
from simulation.chaos.tormentor import Tormentor
from simulation.chaos.verdict import judge
from simulation.history import Outcome, Recorder, check
from simulation.history.call import Claim
from simulation.history.recorder import SUFFIX

_CLOCK = SystemClock()
RETENTION_S = 60.0
"""Of the log while it runs: short, so that it is collected, and longer than whoever follows it falls behind."""
ARCHIVE_S = 1.0
CALM_S = 90.0
"""How long the queue may take to finish one job when the faults are over. How many are left depends on the machine."""
TICK_S = 0.25
LANES = 6
"""Callers at the same time in each producer and worker."""
SHARDS = 4
SHARDS_MAX = 6
"""A ring is resized to anything up to this."""
SCHEDULE = "every-minute"
TRACEBACK = b"Traceback (most recent call last)"
CUT_OFF = re.compile(
    rb"Traceback \(most recent call last\):\n.*aio/server\.pyx.*_schedule_rpc_coro\n"
    rb"asyncio\.exceptions\.CancelledError\n"
)
"""What gRPC prints when a caller is killed in the very moment in which its broker ends: it does not wait for it."""


class Way(StrEnum):
    """How the processes of a run reach the queue."""

    BROKERS = "brokers"
    EMBEDDED = "embedded"
    """Each has the queue in itself, and no broker leads."""
    RING = "ring"
    """Brokers share the shards of a ring."""
    EMBEDDED_RING = "embedded-ring"
    """Each has the whole ring in itself."""

    @property
    def is_ring(self) -> bool:
        return self in (Way.RING, Way.EMBEDDED_RING)

    @property
    def has_brokers(self) -> bool:
        return self in (Way.BROKERS, Way.RING)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is to be."""

    url: str
    folder: Path
    """Where records and outputs go."""
    options: Mapping[str, str] = field(default_factory=dict)
    way: Way = Way.BROKERS
    layout: str = "log"
    clocks: bool = True
    """Whether the processes' wall clocks differ, and step."""
    seconds: float = 20.0
    brokers: int = 3
    workers: int = 6
    producers: int = 2
    rate: float = 100.0
    """Jobs per second, from all producers together."""
    every_s: float = 1.0
    """Between two faults, on average."""
    heartbeat_s: float = 0.3
    lease_s: float = 1.2
    job_lease_s: float = 2.0
    seed: int = 1

    @property
    def has_history(self) -> bool:
        """Whether there is one log, kept for long enough to be followed: a clock that is ahead ends its retention."""
        return not self.way.is_ring and self.layout == "log" and not self.clocks


class Phase(StrEnum):
    STARTING = "starting"
    FIRE = "under fire"
    RESTING = "coming to rest"
    LEAVING = "leaving"
    JUDGING = "judging"


class Head(msgspec.Struct):
    """What `queue.json` says about the lead, in either layout."""

    epoch: int = 0
    owner: Owner | None = None
    broker: str | None = None
    mode: str | None = None

    @property
    def leader(self) -> str | None:
        return self.broker if self.owner is None else self.owner.address


@dataclass
class Report:
    """What came of it."""

    plan: Plan
    problems: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    leaders_hit: int = 0
    leaderships: int = 0
    jobs: int = 0
    commits: int = 0
    seconds: float = 0.0
    calm_s: float = 0.0
    """From the last fault until the queue was empty."""
    longest_silence_s: float = 0.0
    longest_call_s: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)
    succeeded: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    calls: int = 0
    unknown: int = 0
    """Calls whose callers never learned what became of them."""


class Chaos:
    """A run, as it goes."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = Random(plan.seed)
        self.fleet = Fleet(_members(plan))
        self.ledger = Ledger(plan.folder)
        self.chronicle = Chronicle()
        self.head = Head()
        self._enter(Phase.STARTING)
        self.report = Report(plan)
        self.tormentor = Tormentor(
            self.fleet,
            self.rng,
            every_s=plan.every_s,
            stop_s=max(plan.lease_s, plan.job_lease_s),
            leader=lambda: self.head.leader,
        )

    async def run(self, tick: Callable[[Chaos], object] = lambda _chaos: None) -> Report:
        plan, report = self.plan, self.report
        plan.folder.mkdir(parents=True, exist_ok=True)
        store = open_store(plan.url, options=plan.options)
        try:
            with self.fleet.running():
                await self._start(store)
                async with self._watching(store, tick):
                    self._enter(Phase.FIRE)
                    await self.tormentor.run(plan.seconds)
                    report.seconds = (_CLOCK.monotonic_ms() - self.phase_ms) / 1000
                    self._enter(Phase.RESTING)
                    await self._come_to_rest()
                    if plan.way is Way.BROKERS:
                        await self._one_leads()
                    self._enter(Phase.LEAVING)
                    await self._leave(store)
            self._enter(Phase.JUDGING)
            tick(self)
            await self._judge(store)
        finally:
            await store.close()
        return report

    def _enter(self, phase: Phase) -> None:
        self.phase, self.phase_ms = phase, _CLOCK.monotonic_ms()

    # --- Acts ---

    async def _start(self, store: Store) -> None:
        if self.plan.way.is_ring:
            await Parts(store, DEFAULTS).builder().create(SHARDS)
        for broker in self.fleet.brokers:
            broker.start()
        for broker in self.fleet.brokers:
            await broker.ready()
        async with self._queue() as queue:
            while await self._stats(queue) is None:
                self._check_deserters()
                if self.report.problems:
                    raise RuntimeError("\n".join(self.report.problems))
                await _CLOCK.sleep(TICK_S)
            # The job of a tick says which it is; clocks that step make many ticks due, and none may come twice.
            await queue.set_schedule(
                SCHEDULE, "* * * * *", NewJob(ENTRYPOINT, b"", max_attempts=ATTEMPTS), missed="all"
            )
        for member in self.fleet.actors:
            member.start()
            await member.ready()

    def _queue(self) -> Queue[bytes]:
        """For the run itself, by the way its processes go."""
        via = "broker" if self.plan.way.has_brokers else None
        return open_queue(self.plan.url, via, self.plan.options, settings=_settings(self.plan))

    async def _come_to_rest(self) -> None:
        """No more faults, no more jobs: what is there has to be finished."""
        began_ms = _CLOCK.monotonic_ms()
        callers = [*self.fleet.of(Kind.PRODUCER), *self.fleet.managers]
        for caller in callers:
            caller.ask_to_leave()
        for caller in callers:
            await self._has_left(caller, CALM_S)
        self.ledger.read_on()
        async with self._queue() as queue:
            await queue.drop_schedule(SCHEDULE)
            await self._open_the_gate(queue)
            for member in self.fleet.members:
                if member not in callers:
                    member.settle_clock()
            ended, ended_ms = -1, _CLOCK.monotonic_ms()
            while (stats := await self._stats(queue)) is None or _unfinished(stats):
                if stats is not None and (now := stats.totals.done + stats.totals.cancelled) != ended:
                    ended, ended_ms = now, _CLOCK.monotonic_ms()
                if _CLOCK.monotonic_ms() - ended_ms > CALM_S * 1000:
                    self.report.problems.append(f"no job has ended for {CALM_S:.0f} s: {stats}")
                    return
                await _CLOCK.sleep(TICK_S)
            self.report.jobs = stats.totals.enqueued
            self.report.commits = stats.position
        self.report.calm_s = (_CLOCK.monotonic_ms() - began_ms) / 1000

    async def _open_the_gate(self, queue: Queue[bytes]) -> None:
        """As whoever closed it left it. Recorded, because what is claimed afterwards is claimed rightly."""
        place = Place(self.plan.url, self.plan.options, whole=False)
        caller = Caller(queue, Recorder(self.plan.folder / f"run{SUFFIX}"), place, asyncio.Event())
        if await caller.insist(lambda: caller.set_gate("open", request="the end")) is not Outcome.OK:
            self.report.problems.append("the gate could not be opened in the end")

    async def _stats(self, queue: Queue[bytes]) -> Stats | None:
        try:
            return await queue.stats()
        except CasqueError:
            return None

    async def _one_leads(self) -> None:
        """Exactly one broker answers, and all others send callers to it."""
        until_ms = _CLOCK.monotonic_ms() + max(3 * self.plan.lease_s, 10) * 1000
        while True:
            said = [await _ask(broker) for broker in self.fleet.brokers]
            leaders = {address for address, leads in said if leads}
            if len(leaders) == 1 and all(address in leaders for address, _ in said):
                return
            if _CLOCK.monotonic_ms() > until_ms:
                self.report.problems.append(f"the brokers do not agree who leads: {said}")
                return
            await _CLOCK.sleep(TICK_S)

    async def _leave(self, store: Store) -> None:
        """Workers first, then brokers: a clean stop of all of them, which leaves the queue to nobody."""
        for kind in (Kind.WORKER, Kind.BROKER):
            for member in self.fleet.of(kind):
                member.ask_to_leave()
            for member in self.fleet.of(kind):
                await self._has_left(member, 40)
        if self.plan.way.is_ring:
            return
        if (leader := (await self._look(store)).leader) is not None:
            self.report.problems.append(f"all brokers have left, and {leader} is still said to lead")

    async def _has_left(self, member: Member, within_s: float) -> None:
        code = await member.ended(within_s)
        if code != 0:
            self.report.problems.append(
                f"{member.name} was asked to leave and ended with {code}: {member.last_words()}"
            )

    async def _judge(self, store: Store) -> None:
        plan, report = self.plan, self.report
        queue = Queue.open(store)
        if plan.has_history:
            events = queue.events(from_position=max(self.chronicle.position - 1, 0), follow=False)
            await self.chronicle.follow(events)
        self.ledger.read_on()
        archive: list[ArchivedJob] = [job async for job in queue.archive()]
        async with Queue.open(store) as opened:
            left = await opened.jobs()
        dead = [job.id for job in left if job.state is JobState.DEAD]
        report.problems += judge(self.chronicle if plan.has_history else None, archive, dead)
        # A death is archived, and its job goes on being in the queue.
        over = [job for job in archive if job.state is not JobState.DEAD]
        self._check_the_record([*map(claim_of, left), *map(claim_of, over)])
        report.problems += self.tormentor.problems
        report.problems += [f"{m.name} stumbled: {m.last_words()}" for m in self.fleet.members if _stumbled(m)]
        if not plan.way.is_ring:
            verifier = Verifier(store, Environment(clock=_CLOCK, rng=system_random()))
            try:
                await verifier.verify()
            except CasqueError as error:
                report.problems.append(f"the queue is not whole: {error}")
        report.faults = dict(self.tormentor.counts)
        report.leaders_hit = self.tormentor.leaders_hit
        report.leaderships = self.head.epoch
        report.longest_silence_s = self.ledger.longest_silence_ms / 1000
        report.longest_call_s = self.ledger.longest_call_ms / 1000
        report.refused = dict(self.ledger.errors)
        report.succeeded = dict(self.ledger.succeeded)
        report.events = {kind.value: count for kind, count in self.chronicle.kinds.items()}

    def _check_the_record(self, final: Sequence[Claim]) -> None:
        """Hold what callers were answered against what a fresh reader finds, by the record alone."""
        verdict = check(self.ledger.calls(), final, ended_ms=Recorder.now_ms())
        self.report.problems += verdict.problems
        self.report.problems += [f"job {job} is too tangled to decide" for job in verdict.undecided]
        self.report.calls, self.report.unknown = verdict.calls, verdict.unknown
        if self.plan.way.is_ring:
            self.report.jobs = verdict.jobs

    # --- Watching ---

    @contextlib.asynccontextmanager
    async def _watching(self, store: Store, tick: Callable[[Chaos], object]) -> AsyncIterator[None]:
        async def look() -> None:
            while True:
                await self._look(store)
                self.ledger.read_on()
                self._check_deserters()
                tick(self)
                await _CLOCK.sleep(TICK_S)

        async def follow() -> None:
            await self.chronicle.follow(Queue.open(store).events(from_position=0))

        watchers = [asyncio.create_task(look())]
        if self.plan.has_history:
            watchers.append(asyncio.create_task(follow()))
        try:
            yield
        finally:
            for watcher in watchers:
                watcher.cancel()
            for ended in await asyncio.gather(*watchers, return_exceptions=True):
                if isinstance(ended, Exception):
                    self.report.problems.append(f"the onlooker failed: {ended!r}")

    async def _look(self, store: Store) -> Head:
        with contextlib.suppress(CasqueError):
            read = await store.get(KEY)
            if isinstance(read, Stored):
                self.head = msgspec.json.decode(read.body, type=Head)
        return self.head

    def _check_deserters(self) -> None:
        for member in self.fleet.deserters():
            member.health = Health.DOWN
            self.report.problems.append(f"{member.name} ended by itself with {member.exit_code}: {member.last_words()}")


def _settings(plan: Plan) -> dict[str, float]:
    """Of whoever has the queue in its own process."""
    return {} if plan.way.has_brokers else {"retention": RETENTION_S, "archive_interval": ARCHIVE_S}


def _members(plan: Plan) -> list[Member]:
    brokers = _brokers(plan)
    addresses = "grpc://" + ",".join(broker.address for broker in brokers)
    rng = Random(f"{plan.seed}/clocks")

    def actor(kind: Kind, number: int) -> ActorMember:
        url, via = plan.url, None
        if brokers:
            # Half of them know the brokers, the other half ask the bucket.
            url, via = (addresses, None) if number % 2 else (plan.url, "broker")
        orders = Orders(
            f"{kind.value}-{number}",
            record="",
            seed=str(plan.seed),
            url=url,
            via=via,
            store=plan.url,
            options=dict(plan.options),
            settings=_settings(plan),
            lanes=_lanes(plan, kind),
            per_second=plan.rate / plan.producers / LANES,
            job_lease_s=plan.job_lease_s,
            stages=plan.layout == "log",
            shards_max=SHARDS_MAX if plan.way.is_ring else 0,
        )
        return ActorMember(kind, orders, plan.folder)

    members = [
        *brokers,
        *(actor(Kind.WORKER, number) for number in range(plan.workers)),
        *(actor(Kind.PRODUCER, number) for number in range(plan.producers)),
        actor(Kind.OPERATOR, 0),
        actor(Kind.STEWARD, 0),
    ]
    if plan.clocks:
        for member in members:
            member.clock_s = rng.randint(-RANGE_S, RANGE_S)
    return members


def _lanes(plan: Plan, kind: Kind) -> int:
    if kind is Kind.STEWARD:
        return 3 if plan.way.is_ring else 2
    return 1 if kind is Kind.OPERATOR else LANES


def _brokers(plan: Plan) -> list[BrokerMember]:
    if not plan.way.has_brokers:
        return []
    arguments = serve_arguments(
        plan.url,
        plan.options,
        heartbeat_s=plan.heartbeat_s,
        lease_s=plan.lease_s,
        layout=None if plan.way.is_ring else plan.layout,
        settings={"retention": RETENTION_S, "archive_interval": ARCHIVE_S},
    )
    return [BrokerMember(f"broker-{number}", plan.folder, arguments) for number in range(plan.brokers)]


def _unfinished(stats: Stats) -> bool:
    totals = stats.totals
    return totals.ready + totals.delayed + totals.running > 0


def _stumbled(member: Member) -> bool:
    """An exception that nobody expected, although the process went on."""
    said = member.said.read_bytes() if member.said.exists() else b""
    return TRACEBACK in CUT_OFF.sub(b"", said)


async def _ask(broker: BrokerMember) -> tuple[str | None, bool]:
    """Who leads according to this one, and whether that is itself."""
    service = GrpcService(broker.address)
    try:
        await service.stats()
    except QueueLedError as led:
        return led.address, False
    except (NoLeaderError, CasqueError):
        return None, False
    finally:
        await service.close()
    return broker.address, True
