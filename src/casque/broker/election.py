"""Elections: a broker tries to lead, and gets the result.

A time written by another machine is never compared with a clock here. Another leader counts as alive as long as
something about it changes: its epoch, the version of the head, the end of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from casque.clock import new_nonce
from casque.codec.head import Owner
from casque.engine.committer import Committer
from casque.environment import Environment
from casque.errors import StorageError
from casque.journal.port import Sighting
from casque.settings import BrokerSettings, milliseconds


class Elected(msgspec.Struct, frozen=True, tag="elected"):
    """This broker leads from now on."""

    epoch: int


class AlreadyLeader(msgspec.Struct, frozen=True, tag="already_leader"):
    """This broker leads, and did so before."""


class OtherLeader(msgspec.Struct, frozen=True, tag="other_leader"):
    """Another broker leads, and is alive."""

    leader: Owner


class Conflict(msgspec.Struct, frozen=True, tag="conflict"):
    """No leader was seen, but another broker was faster."""


ElectionResult: TypeAlias = Elected | AlreadyLeader | OtherLeader | Conflict


class Election:
    """One broker's candidacy. Its id is new at every start; its address only says where to reach it."""

    def __init__(
        self,
        committer: Committer,
        env: Environment,
        *,
        name: str,
        address: str,
        settings: BrokerSettings,
        gone: Callable[[str], bool] = lambda _leader: False,
        lives: Callable[[str], bool] = lambda _leader: False,
    ) -> None:
        """Other knowledge about a leader, by its id. `gone`: it has been silent for a lease. `lives`: it leads and is
        alive,
        so that the silence of this queue is no reason to depose it."""
        self.id = name
        self.place: str | None = None
        """The location of the queue, if the store can identify it. Set before the first attempt."""
        self._committer = committer
        self._address = address
        self._lease_ms = milliseconds(settings.lease)
        self._clock = env.clock
        self._rng = env.rng
        self._gone = gone
        self._lives = lives
        self._seen: Sighting | None = None
        self._since_ms = 0
        self.evicted = False
        """True if another broker led until this one did, and had not resigned."""
        self.moved = False
        """True if that broker committed after this one had last read the queue, and before it was deposed."""
        self.twin: Owner | None = None
        """Another live broker with this broker's address."""

    async def try_elect(self) -> ElectionResult:
        """Read the queue, and take the lead if it is free.

        Raises:
            StorageError: the store did not answer.
            CorruptQueueError: its contents are not this queue.
        """
        if self._committer.leads:
            return AlreadyLeader()
        # What a slow store answers may have changed since: the leader was silent until the question, no longer.
        asked_ms = self._clock.monotonic_ms()
        try:
            await self._committer.refresh()
        except StorageError:
            self._seen = None  # without a read, nothing was seen to stay the same
            raise
        seen, leader = self._look(), self._committer.sighting().owner
        others = leader is not None and leader.id != self.id
        if leader is not None and others and not self._may_depose(leader, asked_ms):
            return OtherLeader(leader)
        owner = Owner(self.id, new_nonce(self._rng), self._address, self.place)
        if await self._committer.lead(owner, lease_ms=self._lease_ms, seen=seen):
            self._seen = self.twin = None
            self.evicted = others
            # The fence of this leadership would be the next commit after what was seen.
            self.moved = others and self._committer.state.position > seen.position + 1
            return Elected(self._committer.sighting().epoch)
        self._seen = None
        return Conflict()

    def _look(self) -> Sighting:
        seen, before = self._committer.sighting(), self._seen
        if seen != before:
            self._seen, self._since_ms = seen, self._clock.monotonic_ms()
            # A dead broker with this address is ordinary: this one was restarted. A live one is not.
            if before is not None and seen.owner is not None and seen.owner == before.owner:
                self.twin = seen.owner if seen.owner.address == self._address else None
        return seen

    def _may_depose(self, leader: Owner, asked_ms: int) -> bool:
        return self._gone(leader.id) or (self._is_silent(asked_ms) and not self._lives(leader.id))

    def _is_silent(self, asked_ms: int) -> bool:
        """True if nothing had changed for a lease when the queue was asked, by this machine's own clock."""
        return asked_ms - self._since_ms >= self._lease_ms
