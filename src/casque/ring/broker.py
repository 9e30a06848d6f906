"""One broker of a ring: leads its share of the shards, and answers for all of them.

Each shard has its own leader, elected as for any queue. This module decides which broker tries: the live brokers divide
the shards by a rule that all of them know, and divide them again when one comes, leaves or dies. If they disagree for a
while, two try to lead one shard, and the shard decides; or none does, and its callers wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from casque.codec.ring import SHARDS_MAX
from casque.engine.reporting import Reporting
from casque.environment import Environment
from casque.errors import CasqueError, InvalidInputError, NoLeaderError
from casque.ring.members import Members
from casque.ring.service import RingService, summed
from casque.ring.shares import next_in_line, shares
from casque.service import QueueService, Role, ShardService, Standing, Stats
from casque.settings import BrokerSettings, milliseconds
from casque.telemetry import logger

log = logger("ring")

MISSING_LEASES = 3
"""How many leases a shard may be without a leader although its broker lives; then another one tries."""


class Seat(Protocol):
    """This broker's candidacy and leadership in one shard: `casque.broker.broker.Broker`."""

    def service(self) -> QueueService: ...

    def standing(self) -> Standing: ...

    async def changed(self) -> Standing: ...

    async def settled(self) -> None: ...

    async def run(self) -> None: ...

    def doubt(self) -> None: ...

    def stop(self) -> None: ...


class RingBroker(Reporting):
    """Satisfies `RingHost`. Run it as a task; `stop` ends it."""

    def __init__(
        self,
        members: Members,
        service: RingService,
        seat: Callable[[int], Seat],
        env: Environment,
        *,
        address: str,
        settings: BrokerSettings,
    ) -> None:
        """`seat` makes a candidacy in a shard, to be run; its service is a `ShardService`."""
        super().__init__(env.clock, log)
        self._members = members
        self._ring = service
        self._make_seat = seat
        self._address = address
        self._settings = settings
        self._rng = env.rng
        self._seats: dict[int, _Taken] = {}
        self._shards = 0
        self._beat_ms: int | None = None
        self._missing: dict[int, int] = {}
        """Shards without a leader, and since when, by this process's clock."""
        self._instead: set[int] = set()
        """Other brokers' shards that this broker leads, or tries to, as long as the set of brokers is the same and no
        other one leads them."""
        self._unled: dict[int, str] = {}
        """Shards of this broker that cannot be led, and why."""
        self._known: frozenset[str] = frozenset()
        self._shared: tuple[frozenset[str], int] | None = None
        self._mine: set[int] = set()
        self._of_others: dict[int, str] = {}
        self._stopping = False
        self._closing = False
        self._looked = asyncio.Event()

    # --- What a server asks ---

    def service(self) -> QueueService:
        if self._closing or self._role is Role.STARTING:
            raise NoLeaderError("this broker is stopping" if self._closing else "this broker has just started")
        return self._ring

    def shard(self, token: int) -> ShardService:
        """
        Raises:
            QueueLedError: another broker leads it; nothing was done.
            NoLeaderError: it has no leader, as far as this broker knows; nothing was done.
        """
        taken = self._seats.get(token)
        if taken is None:
            if token >= SHARDS_MAX:
                raise InvalidInputError(f"there is no shard {token}: a ring has at most {SHARDS_MAX}")
            # This broker may not have read the newest ring yet, so it can only say that it does not lead an unknown
            # shard now.
            raise NoLeaderError(f"this broker does not lead shard {token}")
        return cast(ShardService, taken.seat.service())  # the seats of this broker serve shards

    def standing(self) -> Standing:
        return Standing(
            self._role,
            leader=self._address if self._role is Role.LEADER else None,
            problem=self._problem or self._trouble_of_seats(),
            shards=self._shards,
            led=len(self.led()),
            members=1 + len(self._members.alive()),
        )

    def led(self) -> tuple[int, ...]:
        """The shards that this broker leads."""
        return tuple([token for token, taken in sorted(self._seats.items()) if taken.leads])

    async def led_stats(self) -> Stats:
        stats = await asyncio.gather(*(self.shard(token).stats() for token in self.led()))
        return summed(stats)

    async def settled(self) -> None:
        """Wait until every shard of this broker's share has a leader that it knows."""
        await self._looked.wait()
        await asyncio.gather(*(taken.seat.settled() for taken in self._seats.values()))

    def _trouble_of_seats(self) -> str | None:
        # Ask now: failing commits do not wake anyone up.
        found = {token: taken.seat.standing().problem for token, taken in self._seats.items()}
        standing = {token: problem for token, problem in found.items() if problem is not None}
        troubles = self._unled | standing
        if not troubles:
            return None
        token = min(troubles)
        others = f", and {len(troubles) - 1} other shards" if len(troubles) > 1 else ""
        return f"shard {token}{others}: {troubles[token]}"

    # --- Life ---

    async def open(self) -> None:
        """Read the ring for the first time, and announce this broker.

        Raises:
            StoreAccessError: the bucket does not exist, or the credentials are wrong.
            InvalidInputError: there is no ring.
        """
        await self._ring.start()
        self._shards = (await self._ring.refresh()).shards
        await self._members.beat()
        self._beat_ms = self._clock.monotonic_ms()

    async def run(self) -> None:
        """Run until `stop`."""
        try:
            self._become(Role.LEADER)
            while not self._stopping:
                await self._round()
                self._looked.set()
                await self._pause(self._settings.heartbeat.total_seconds() * self._rng.uniform(0.8, 1.0))
        finally:
            await self._end()

    def stop(self) -> None:
        """Hand the shards over to the others, and finish accepted calls. `run` returns when that is done."""
        self._stopping = True
        self._wake.set()

    async def _round(self) -> None:
        """Read the other brokers, renew this one's entry, and take its shards."""
        try:
            await self._show_life()
            self._shards = max(self._shards, (await self._ring.refresh()).shards)
            await self._members.look()
        except CasqueError as error:
            self._trouble(str(error))
            return
        if self._members.has_twin():
            self._trouble(
                f"--advertise: another broker that is alive advertises {self._address} too. Give each broker an "
                "address of its own: what is for the other one may come here"
            )
        else:
            self._well()
        self._share()

    async def _show_life(self) -> None:
        now_ms, before_ms = self._clock.monotonic_ms(), self._beat_ms
        await self._members.beat(self.led())
        self._beat_ms = now_ms
        if before_ms is not None and now_ms - before_ms > self._members.late_ms:
            # The others may have declared this broker dead, and taken its shards.
            for taken in self._seats.values():
                taken.seat.doubt()

    def _share(self) -> None:
        alive = self._members.alive()
        known = frozenset((*alive, self._members.id))
        if known != self._known:
            self._known = known
            self._instead.clear()
            self._missing.clear()
            self._changed.set()
            log.info("%d brokers share %d shards", len(known), self._shards)
        if self._shared != (known, self._shards):
            self._shared = known, self._shards
            led = shares(known, self._shards)
            self._mine = {token for token, member in led.items() if member == self._members.id}
            self._of_others = {token: member for token, member in led.items() if member != self._members.id}
        self._step_in(token for member in alive.values() for token in member.leads)
        wanted = self._mine | self._instead
        for token in wanted - self._seats.keys():
            self._take(token)
        self._unled = {token: why for token, why in self._unled.items() if token in wanted}
        for token in self._seats.keys() - wanted:
            self._seats[token].seat.stop()

    def _step_in(self, led_by_others: Iterable[int]) -> None:
        """A live broker may fail to lead one of its shards: then the next in line tries."""
        now_ms = self._clock.monotonic_ms()
        led_there, led_here = {*led_by_others}, {*self.led()}
        self._instead -= led_there - led_here
        led = led_there | led_here
        self._missing = {token: self._missing.get(token, now_ms) for token in self._of_others if token not in led}
        for token, since_ms in self._missing.items():
            late = now_ms - since_ms >= MISSING_LEASES * milliseconds(self._settings.lease)
            if late and next_in_line(self._known, token, after=self._of_others[token]) == self._members.id:
                log.warning("shard %d has no leader; this broker tries to lead it", token)
                self._instead.add(token)

    # --- Seats ---

    def _take(self, token: int) -> None:
        taken = self._seats[token] = _Taken(self._make_seat(token))
        taken.task = asyncio.create_task(self._sit(token, taken), name=f"casque shard {token}")

    async def _sit(self, token: int, taken: _Taken) -> None:
        watching = asyncio.create_task(self._watch(token, taken))
        try:
            await taken.seat.run()
        except CasqueError as error:
            if token not in self._unled:
                log.error("shard %d cannot be led, and is tried again: %s", token, error)
            self._unled[token] = str(error)
        except Exception as error:
            log.exception("shard %d cannot be led because of an unexpected error; trying again", token)
            self._unled[token] = repr(error)
        finally:
            watching.cancel()
            del self._seats[token]
            self._changed.set()

    async def _watch(self, token: int, taken: _Taken) -> None:
        while True:
            standing = await taken.seat.changed()
            taken.leads = standing.role is Role.LEADER
            if taken.leads:
                self._unled.pop(token, None)
            self._changed.set()

    # --- The end ---

    async def _end(self) -> None:
        try:
            await self._hand_over()
        finally:
            self._closing = True
            self._become(Role.STOPPING)
            self._looked.set()
            for taken in self._seats.values():
                taken.seat.stop()
            await asyncio.gather(*(taken.task for taken in self._seats.values() if taken.task is not None))
            await self._ring.stop()

    async def _hand_over(self) -> None:
        """Announce the departure first: the others then stand by when this broker resigns, and callers wait only for
        the
        takeover."""
        try:
            await self._members.leave()
        except CasqueError as error:
            log.warning("could not announce the departure; the others take over when this broker seems dead: %s", error)
            return
        if self._members.alive() and self._stopping and self.led():
            await self._clock.sleep(self._settings.heartbeat.total_seconds() * 1.25)


class _Taken:
    """A running seat."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.task: asyncio.Task[None] | None = None
        self.leads = False
