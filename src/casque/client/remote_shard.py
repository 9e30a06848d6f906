"""A shard of a ring that brokers lead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

from casque.client.remote import ASKED_AGAIN, SETTLED, Errors, RemoteQueue, RemoteService
from casque.errors import CasqueError, NoLeaderError, UnknownOutcomeError
from casque.ring.shards import Shard
from casque.service import QueueService, ShardService
from casque.service.requests import Enqueue, Request
from casque.types import JobRecord, Reach

A = TypeVar("A")
R = TypeVar("R")

AWAY_MS = 300
"""How long to wait after a search found no leader before searching again."""


class RemoteShard(RemoteQueue, ShardService):
    """Satisfies `ShardService` through the current leader of the shard; its connections are to shards."""

    _away_until_ms = 0

    def call(self, request: Request[A]) -> Awaitable[A]:
        if type(request) is Enqueue and request.request_id is None:
            return cast("Awaitable[A]", self._enqueue_once(request))
        return super().call(request)

    async def _enqueue_once(self, request: Enqueue) -> Sequence[JobRecord]:
        """Do not make up a request id: it would decide which shard the jobs belong to. Without one, a call that may
        have been carried out is not repeated."""

        async def add(broker: QueueService) -> Sequence[JobRecord] | UnknownOutcomeError:
            try:
                return await broker.call(request)
            except UnknownOutcomeError as error:
                return error

        added = await self._ask(add)
        if isinstance(added, UnknownOutcomeError):
            raise added
        return added

    def within(self, reach: Reach) -> RemoteShard:
        return _RemoteWithin(self, reach)

    # --- Without waiting for a leader ---

    @property
    def away(self) -> bool:
        """True if it had no leader a moment ago."""
        return self._clock.monotonic_ms() < self._away_until_ms

    async def at_once(self, call: Callable[[ShardService], Awaitable[R]]) -> R:
        """Call the leader, or its successor if it answers with a hint, without waiting for an election.

        Raises:
            NoLeaderError, or another of `ASKED_AGAIN`: it cannot be called now.
        """
        if self.away:
            raise NoLeaderError("this shard had no leader a moment ago")
        known = self._leader
        if known is not None:
            try:
                return await call(cast(ShardService, known))
            except ASKED_AGAIN as error:
                self._drop(known)
                if isinstance(error, UnknownOutcomeError):
                    raise self._gone(error) from None
        try:
            found = self._connect(await self._finder.find()) if self._leader is None else self._leader
            asked = self._agreed(found)
            return await call(cast(ShardService, asked))
        except ASKED_AGAIN as error:
            raise self._gone(error) from None

    def _agreed(self, found: RemoteService) -> RemoteService:
        """Several callers may have searched at the same time: all use the first result."""
        self._leader = self._leader or found
        return self._leader

    def _drop(self, leader: RemoteService) -> None:
        if self._leader is leader:
            self._leader = None
            self._behind.start(leader.close())

    def _gone(self, error: CasqueError) -> CasqueError:
        self._away_until_ms = self._clock.monotonic_ms() + AWAY_MS
        return error


class _RemoteWithin(RemoteShard):
    """The same shard over the same connections, for a caller limited to some of its jobs."""

    def __init__(self, shard: RemoteShard, reach: Reach) -> None:
        self._shard = shard
        self._reach = reach
        self._env = shard._env  # noqa: SLF001  another view of the same shard

    async def _ask(self, call: Callable[[QueueService], Awaitable[R]], settled: Errors = SETTLED) -> R:
        scoped = self._shard._ask  # noqa: SLF001  another view of the same shard
        return await scoped(lambda broker: call(cast(ShardService, broker).within(self._reach)), settled)


class LedShard(Shard):
    """A shard that brokers lead, as part of a ring. While it has no leader, calls that can do without it go on."""

    can_be_missed = True

    def __init__(self, token: int, remote: RemoteShard) -> None:
        super().__init__(token, remote)
        self._remote = remote

    async def stop(self) -> None:
        await self._remote.close()

    @property
    def away(self) -> bool:
        return self._remote.away

    def is_away(self, error: BaseException) -> bool:
        return isinstance(error, ASKED_AGAIN)

    async def at_once(self, call: Callable[[ShardService], Awaitable[R]]) -> R:
        return await self._remote.at_once(call)
