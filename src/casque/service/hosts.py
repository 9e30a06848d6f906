"""What a server stands in front of: a broker, which may lead a queue or not."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, runtime_checkable

import msgspec

from casque.service.answers import Stats
from casque.service.queue import QueueService, ShardService


class Role(StrEnum):
    """What a broker is just now."""

    STARTING = "starting"
    STANDBY = "standby"
    LEADER = "leader"
    STOPPING = "stopping"


class Standing(msgspec.Struct, frozen=True):
    """How a broker stands: for health checks, metrics and people."""

    role: Role
    epoch: int = 0
    leader: str | None = None
    """Where the leader can be reached, as far as this broker knows."""
    position: int = 0
    problem: str | None = None
    """What keeps it from doing its work, if anything does."""
    shards: int = 0
    """Of a ring: how many there are. 0 for a queue without shards."""
    led: int = 0
    """How many of them this broker leads."""
    members: int = 0
    """How many brokers share them, this one included, as far as it knows."""


class Host(Protocol):
    """What a server stands in front of: a queue that is led here, or elsewhere."""

    def service(self) -> QueueService:
        """The queue.

        Raises:
            QueueLedError: it is led by the broker at `address`; nothing was done.
            NoLeaderError: nobody leads it just now; nothing was done.
        """
        ...

    def standing(self) -> Standing: ...


@runtime_checkable
class RingHost(Host, Protocol):
    """A host of a ring: other brokers come to it for the shards that it leads."""

    def shard(self, token: int) -> ShardService:
        """
        Raises:
            QueueLedError: another broker leads it; nothing was done.
            NoLeaderError: nobody leads it just now; nothing was done.
            InvalidInputError: this is no ring, or it has no such shard.
        """
        ...

    async def led_stats(self) -> Stats:
        """How the shards stand that this broker leads: the sums of several brokers are those of the ring."""
        ...
