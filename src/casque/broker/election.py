"""Who leads: a broker tries to, and learns what came of it.

Nothing that another machine wrote is compared with a clock here. Another leader counts as alive as long as something
about it changes: its epoch, the version of the head, the end of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from casque.clock import Clock, Random, new_nonce
from casque.codec.head import Owner
from casque.engine.committer import Committer
from casque.errors import StorageError
from casque.journal.port import Sighting
from casque.settings import BrokerSettings, milliseconds


class Elected(msgspec.Struct, frozen=True, tag="elected"):
    """This broker leads from now on."""

    epoch: int


class AlreadyLeader(msgspec.Struct, frozen=True, tag="already_leader"):
    """This broker leads, and did so before."""


class OtherLeader(msgspec.Struct, frozen=True, tag="other_leader"):
    """Another broker leads, and shows signs of life."""

    leader: Owner


class Conflict(msgspec.Struct, frozen=True, tag="conflict"):
    """Nobody was seen to lead, and somebody else was faster."""


ElectionResult: TypeAlias = Elected | AlreadyLeader | OtherLeader | Conflict


class Election:
    """One broker's candidacy. Its id is made anew at every start; its address is only where it can be reached."""

    def __init__(
        self,
        committer: Committer,
        *,
        name: str,
        address: str,
        settings: BrokerSettings,
        clock: Clock,
        rng: Random,
        gone: Callable[[str], bool] = lambda _leader: False,
        lives: Callable[[str], bool] = lambda _leader: False,
    ) -> None:
        """What is known of a leader otherwise, by its id. `gone`: it has been silent for a lease. `lives`: it leads and
        shows signs of life, so that the silence of this queue is no reason to depose it."""
        self.id = name
        self.place: str | None = None
        """Of the queue that it wants to lead, if the store can tell. Set before the first attempt."""
        self._committer = committer
        self._address = address
        self._lease_ms = milliseconds(settings.lease)
        self._clock = clock
        self._rng = rng
        self._gone = gone
        self._lives = lives
        self._seen: Sighting | None = None
        self._since_ms = 0
        self.evicted = False
        """Whether somebody else led until this broker did, and had not resigned."""
        self.moved = False
        """Whether it committed something after this broker had looked at it last, and before it was deposed."""
        self.twin: Owner | None = None
        """Another broker that shows signs of life under this broker's address."""

    async def try_elect(self) -> ElectionResult:
        """Look, and lead if nobody else does.

        Raises:
            StorageError: the store did not answer.
            CorruptQueueError: what it holds is not this queue.
        """
        if self._committer.leads:
            return AlreadyLeader()
        try:
            await self._committer.refresh()
        except StorageError:
            self._seen = None  # who sees nothing has not seen that nothing changes
            raise
        seen, leader = self._look(), self._committer.sighting().owner
        others = leader is not None and leader.id != self.id
        if leader is not None and others and not self._may_depose(leader):
            return OtherLeader(leader)
        owner = Owner(self.id, new_nonce(self._rng), self._address, self.place)
        if await self._committer.lead(owner, lease_ms=self._lease_ms, seen=seen):
            self._seen = self.twin = None
            self.evicted = others
            # The fence of this lead would be the next commit after what was seen.
            self.moved = others and self._committer.state.position > seen.position + 1
            return Elected(self._committer.sighting().epoch)
        self._seen = None
        return Conflict()

    def _look(self) -> Sighting:
        seen, before = self._committer.sighting(), self._seen
        if seen != before:
            self._seen, self._since_ms = seen, self._clock.monotonic_ms()
            # One that died under this address is ordinary: this broker was started again. One that moves is not.
            if before is not None and seen.owner is not None and seen.owner == before.owner:
                self.twin = seen.owner if seen.owner.address == self._address else None
        return seen

    def _may_depose(self, leader: Owner) -> bool:
        return self._gone(leader.id) or (self._is_silent() and not self._lives(leader.id))

    def _is_silent(self) -> bool:
        """Whether nothing has changed for a lease, by this machine's own clock."""
        return self._clock.monotonic_ms() - self._since_ms >= self._lease_ms
