"""The life of one broker: it stands by, leads, loses the lead and stands by again, until it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import msgspec

from casque.broker.election import Elected, Election, OtherLeader
from casque.clock import new_id
from casque.codec.head import Owner
from casque.engine.blobs import Blobs
from casque.engine.committer import Committer
from casque.engine.embedded import EmbeddedService
from casque.engine.group import GroupCommit
from casque.engine.history import History
from casque.engine.reporting import Reporting
from casque.engine.staging import Staging
from casque.environment import Environment
from casque.errors import CasqueError, CorruptQueueError, InvalidInputError, NoLeaderError, QueueLedError, StorageError
from casque.service import QueueService, Role, Standing
from casque.settings import BrokerSettings
from casque.state import State
from casque.telemetry import logger

log = logger("broker")

SURE = 0.5
"""The part of a lease for which a leader answers from memory after a confirmation: see journal/leader_lease.py."""
APART = 1.1
"""Allowance for clocks that run at different speeds."""


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What differs for a broker of a ring, which may lead many shards and has one heartbeat for all of them."""

    id: str
    """The broker's id: the same in all shards."""
    gone: Callable[[str], bool]
    """True for brokers that have been silent for a lease."""
    lives: Callable[[str], bool]
    """True for live brokers that say that they lead this shard."""
    idle: timedelta
    """Interval of heartbeats in a shard without commits. Its silence alone is no reason to depose a live broker that
    says
    that it leads: two that both want the shard would depose each other for ever."""
    serving: Callable[[GroupCommit, History | None], QueueService]
    check: Callable[[State], object]
    """Raises CorruptQueueError if the state is not this shard. The first broker creates a queue, but never a shard."""


class Broker(Reporting):
    """Satisfies `casque.service.Host`. Run it as a task; `stop` ends it."""

    def __init__(
        self,
        committer: Committer,
        env: Environment,
        history: History | None = None,
        *,
        address: str,
        settings: BrokerSettings,
        blobs: Blobs | None = None,
        staging: Staging | None = None,
        shared: Shared | None = None,
        place: Callable[[], Awaitable[str | None]] | None = None,
    ) -> None:
        """`place` distinguishes the location of this queue from copies of it, see `casque.storage.port.place_of`."""
        super().__init__(env.clock, log)
        self._committer = committer
        self._find_place = place
        self._knows_place = place is None
        self._history = history
        self._blobs = blobs
        self._staging = staging
        self._address = address
        self._settings = settings
        self._env = env
        self._shared = shared
        self._beat_s = (settings.heartbeat if shared is None else shared.idle).total_seconds()
        self._in_doubt = False
        self.election = Election(
            committer,
            env,
            name=new_id(env.rng) if shared is None else shared.id,
            address=address,
            settings=settings,
            **({} if shared is None else {"gone": shared.gone, "lives": shared.lives}),
        )
        self._service: QueueService | None = None
        self._damage: CorruptQueueError | None = None
        self._stopping = False
        self._settled = asyncio.Event()
        committer.on_lost = self._wake.set

    # --- Called by a server ---

    def service(self) -> QueueService:
        service = self._service
        if service is not None:
            return service
        if self._damage is not None and not self._stopping:
            # No election can end this: callers need not wait for one, nor ask the broker that led.
            raise CorruptQueueError(self._damage.key, self._damage.problem)
        leader = self._leader_elsewhere()
        if self._stopping or leader is None:
            raise NoLeaderError("this broker is stopping" if self._stopping else "the brokers are electing one")
        raise QueueLedError(leader)

    def standing(self) -> Standing:
        known = self._committer.known
        if known is None:
            return Standing(self._role, problem=self._problem)
        seen = self._committer.sighting()
        leader = seen.owner.address if seen.owner is not None and self._leads_here(seen.owner) else None
        problem = self._problem or (self._committer.failure if self._role is Role.LEADER else None)
        return Standing(self._role, seen.epoch, leader, known.position, problem)

    async def settled(self) -> None:
        """Wait until it leads, or knows the leader, or knows what prevents both."""
        await self._settled.wait()

    def _leader_elsewhere(self) -> str | None:
        if self._committer.known is None or (owner := self._committer.sighting().owner) is None:
            return None
        return owner.address if owner.id != self.election.id and self._leads_here(owner) else None

    def _leads_here(self, owner: Owner) -> bool:
        """False for the leader of the original if this is, or may be, a copy: callers must not be sent there."""
        return owner.place is None or (self._knows_place and self.election.place in (None, owner.place))

    # --- Life ---

    async def open(self) -> None:
        """Read the queue for the first time.

        Raises:
            StoreAccessError: the bucket does not exist, or the credentials are wrong.
            CorruptQueueError: the stored object is not a queue. A running broker waits for both to end instead.
        """
        await self._committer.open()
        if self._find_place is not None:
            self.election.place = await self._find_place()
            self._knows_place = True
        if self._shared is not None:
            self._shared.check(self._committer.state)
        elif self._committer.state.ring is not None:
            # Its leader sends heartbeats next to the ring's root, which a broker of a single queue does not read.
            raise InvalidInputError("this is a shard of a ring: serve the ring, by its own URL")

    async def run(self) -> None:
        """Run until `stop`."""
        try:
            await self.open()
            while not self._stopping:
                if await self._stand_by():
                    await self._lead()
        finally:
            self._become(Role.STOPPING)
            self._settled.set()

    def doubt(self) -> None:
        """This process may have been suspended: check now whether it still leads."""
        self._in_doubt = True
        self._wake.set()

    def stop(self) -> None:
        """Accept no more calls, finish those under way, resign. `run` returns when that is done."""
        self._stopping = True
        self._wake.set()

    async def _stand_by(self) -> bool:
        """Wait for a chance to lead; True if this broker leads now."""
        self._become(Role.STANDBY)
        leader: OtherLeader | None = None
        while not self._stopping:
            try:
                result = await self.election.try_elect()
            except CasqueError as error:
                self._damage = error if isinstance(error, CorruptQueueError) else None
                self._trouble(str(error))
            else:
                self._damage = None
                self._well()
                if isinstance(result, Elected):
                    log.info("leads as %s, epoch %d", self._address, result.epoch)
                    if self.election.moved or (self.election.evicted and self._shared is not None):
                        await self._let_memories_fade()
                    return True
                if isinstance(result, OtherLeader) and result != leader:
                    leader = result
                    log.info("stands by: %s leads", result.leader.address)
                    self._changed.set()
                self._warn_of_twin()
            self._settled.set()
            await self._pause(self._until_next_look_s())
        return False

    def _until_next_look_s(self) -> float:
        poll_s = self._settings.poll.total_seconds() * self._env.rng.uniform(0.5, 1.0)
        # A budget of requests slows it down, within a quarter of the lease: it is to notice that a leader is gone.
        return max(poll_s, min(self._env.budget.poll_spacing_ms() / 1000, self._settings.lease.total_seconds() / 4))

    async def _let_memories_fade(self) -> None:
        """The previous leader may have been confirmed just before this one took the lead, and answer from memory for a
        while: by a commit that landed while the head was being claimed, or in a shard, which has not been watched for a
        lease. Commit nothing before that time has passed."""
        ends_ms = self._clock.monotonic_ms() + self._settings.lease.total_seconds() * 1000 * SURE * APART
        while not self._is_over() and (left_ms := ends_ms - self._clock.monotonic_ms()) > 0:
            await self._pause(left_ms / 1000)

    async def _lead(self) -> None:
        group = GroupCommit(self._committer, self._env)
        await group.start()
        history = None if self._history is None else self._history.at_pulse(group.pulse)
        if self._shared is not None:
            self._service = self._shared.serving(group, history)
        else:
            self._service = EmbeddedService(
                group, self._env.settings, history, blobs=self._blobs, staging=self._staging
            )
        self._become(Role.LEADER)
        self._settled.set()
        try:
            await self._show_life(group)
        finally:
            self._service = None
            if self._stopping:
                self._become(Role.STOPPING)
            await group.stop()
            await self._resign()

    async def _show_life(self, group: GroupCommit) -> None:
        """Commits count as heartbeats; without any, write one to the head. Ends with the leadership."""
        committer = self._committer
        while not self._is_over():
            position = committer.state.position
            await self._pause(self._beat_s)
            if self._is_over():
                break
            doubt, self._in_doubt = self._in_doubt, False
            try:
                if committer.state.position == position or not committer.sole or doubt:
                    await group.beat()
            except StorageError as error:
                # No reason to resign: if another broker takes over, the next commit fails.
                self._trouble(str(error))
            except CasqueError as error:
                log.warning("leads no more: %s", error)
                break
            else:
                self._well()

    def _is_over(self) -> bool:
        return self._stopping or not self._committer.leads

    async def _resign(self) -> None:
        if not self._committer.leads:
            return
        try:
            await self._committer.resign()
            log.info("resigned")
        except CasqueError as error:
            log.warning("could not resign; others take over when the lease ends: %s", error)

    def _warn_of_twin(self) -> None:
        if self.election.twin is not None:
            self._trouble(
                f"--advertise: another broker that is alive advertises {self._address} too. Give each broker an "
                "address of its own: callers who are sent to the leader may come here"
            )
