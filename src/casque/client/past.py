"""Read-only access to a queue as it was at an earlier time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from casque import checks
from casque.client.opening import Parts
from casque.engine.operation import Look
from casque.errors import InvalidInputError, ReadOnlyError
from casque.journal.log.past import Moment, Past
from casque.ring.service import RingService
from casque.ring.shards import OwnShard, Shard
from casque.state import AdoptRing, Command, State
from casque.types import Reach


class PastExecutor:
    """Answers reads from one fixed state, and refuses everything else."""

    def __init__(self, moment: Moment) -> None:
        self._state: State = moment.state
        self._at_ms = moment.at_ms

    async def execute(self, command: Command, reach: Reach | None = None) -> Any:  # noqa: ARG002
        raise ReadOnlyError(self._state.position)

    async def look(self, look: Look) -> Any:
        # Evaluate at the time of that state: jobs delayed then are shown as delayed.
        return look(self._state, self._at_ms)


class PastShard:
    """A shard as it was at a time, for a ring. A shard that did not exist yet is empty."""

    def __init__(self, parts: Parts, token: int, as_of: datetime) -> None:
        self._parts = parts
        self._token = token
        self._as_of = as_of
        self._past: PastExecutor | None = None

    async def start(self) -> None:
        moment = await past_of(self._parts).at_time(checks.moment_ms("as_of", self._as_of))
        if moment.state.ring is None:
            moment.state.execute(AdoptRing(0, 0, self._token), moment.at_ms)
        self._past = PastExecutor(moment)

    async def stop(self) -> None:
        """Nothing to stop."""

    async def execute(self, command: Command, reach: Reach | None = None) -> Any:
        assert self._past is not None
        return await self._past.execute(command, reach)

    async def look(self, look: Look) -> Any:
        assert self._past is not None
        return await self._past.look(look)


def past_ring(parts: Parts, as_of: int | datetime) -> RingService:
    """All shards as they were at a time.

    Raises:
        InvalidInputError: `as_of` is a position; positions differ between shards.
    """
    if not isinstance(as_of, datetime):
        raise InvalidInputError(
            "this queue is a ring of shards, and each of them has positions of its own: say a time as as_of, or open "
            "one of them, URL/shards/0000"
        )

    def opener(token: int) -> Shard:
        below = parts.shard(token)
        engine = PastShard(below, token, as_of)
        return OwnShard(token, engine, below.shard_service(token, engine, below.history()))

    return parts.ring(opener)


def past_of(parts: Parts) -> Past:
    """The history of a queue, to read its state at any commit that is kept."""
    return Past(parts.store, parts)


async def open_past(parts: Parts, as_of: int | datetime) -> PastExecutor:
    """
    Raises:
        NoHistoryError: the queue has the document layout.
        HistoryGoneError: that is further back than the queue remembers.
        InvalidInputError: that is in the future, or there is no queue.
    """
    past = past_of(parts)
    if isinstance(as_of, datetime):
        return PastExecutor(await past.at_time(checks.moment_ms("as_of", as_of)))
    return PastExecutor(await past.at_position(checks.position("as_of", as_of)))
