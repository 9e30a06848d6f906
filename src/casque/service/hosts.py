"""The interface between a server and the broker behind it, which may or may not lead a queue."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, runtime_checkable

import msgspec

from casque.service.answers import Stats
from casque.service.queue import QueueService, ShardService


class Role(StrEnum):
    """The current role of a broker."""

    STARTING = "starting"
    STANDBY = "standby"
    LEADER = "leader"
    STOPPING = "stopping"


class Standing(msgspec.Struct, frozen=True):
    """A broker's status: for health checks, metrics and people."""

    role: Role
    epoch: int = 0
    leader: str | None = None
    """The address of the leader, as far as this broker knows."""
    position: int = 0
    problem: str | None = None
    """What keeps it from working, if anything does."""
    shards: int = 0
    """Number of shards of a ring. 0 for a queue without shards."""
    led: int = 0
    """Number of shards that this broker leads."""
    members: int = 0
    """Number of brokers that share the shards, including this one, as far as it knows."""


class Host(Protocol):
    """A queue behind a server, led here or elsewhere."""

    def service(self) -> QueueService:
        """The queue.

        Raises:
            QueueLedError: it is led by the broker at `address`; nothing was done.
            NoLeaderError: it has no leader just now; nothing was done.
        """
        ...

    def standing(self) -> Standing: ...


@runtime_checkable
class RingHost(Host, Protocol):
    """A host of a ring: other brokers call it for the shards that it leads."""

    def shard(self, token: int) -> ShardService:
        """
        Raises:
            QueueLedError: another broker leads it; nothing was done.
            NoLeaderError: it has no leader just now; nothing was done.
            InvalidInputError: this is no ring, or it has no such shard.
        """
        ...

    async def led_stats(self) -> Stats:
        """Stats of the shards that this broker leads: the sums over all brokers are those of the ring."""
        ...
