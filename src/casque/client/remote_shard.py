"""A shard of a ring that brokers lead, wherever its leader is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

from casque.client.remote import ASKED_AGAIN, RemoteQueue, RemoteService
from casque.errors import CasqueError, NoLeaderError, UnknownOutcomeError
from casque.ring.shards import Shard
from casque.service import Known, Place, QueueService, ShardService
from casque.types import Admission, Gate, JobRecord, JobSpec, Reach, StagedPart, ZoneRules

R = TypeVar("R")

AWAY_MS = 300
"""Whoever did not find a leader need not look again before."""


class RemoteShard(RemoteQueue):
    """Satisfies `ShardService` through whichever broker leads the shard; what it connects to are shards."""

    _away_until_ms = 0

    async def enqueue(
        self, specs: Sequence[JobSpec], *, request_id: str | None = None, generation: int = 0
    ) -> Sequence[JobRecord]:
        """Without a request id none is made up: it would decide which shard the jobs belong to. Then what may have been
        done is not asked for again."""

        async def add(broker: QueueService) -> Sequence[JobRecord] | UnknownOutcomeError:
            shard = cast(ShardService, broker)
            try:
                return await shard.enqueue(specs, request_id=request_id, generation=generation)
            except UnknownOutcomeError as error:
                if request_id is None:
                    return error
                raise

        added = await self._ask(add)
        if isinstance(added, UnknownOutcomeError):
            raise added
        return added

    def within(self, reach: Reach) -> RemoteShard:
        return _RemoteWithin(self, reach)

    async def adopt(self, generation: int, size: int) -> int:
        return await self._ask(lambda broker: cast(ShardService, broker).adopt(generation, size))

    async def admit(
        self,
        source: str,
        batch: int,
        parts: Sequence[StagedPart],
        *,
        skip_known: bool = False,
        generation: int = 0,
    ) -> Admission:
        def admit(broker: QueueService) -> Awaitable[Admission]:
            shard = cast(ShardService, broker)
            return shard.admit(source, batch, parts, skip_known=skip_known, generation=generation)

        return await self._ask(admit)

    async def known(
        self,
        job_ids: Sequence[str] = (),
        *,
        request_id: str | None = None,
        places: Sequence[Place] = (),
        admission: tuple[str, int] | None = None,
    ) -> Known:
        def ask(broker: QueueService) -> Awaitable[Known]:
            shard = cast(ShardService, broker)
            return shard.known(job_ids, request_id=request_id, places=places, admission=admission)

        return await self._ask(ask)

    async def copy_gate(self, gate: Gate, *, entrypoint: str | None, expected: Gate) -> None:
        # Done twice, the second time finds something else than it expects.
        await self._ask(
            lambda broker: cast(ShardService, broker).copy_gate(gate, entrypoint=entrypoint, expected=expected)
        )

    async def copy_zone(self, zone: str, rules: ZoneRules, *, expected: ZoneRules) -> None:
        await self._ask(lambda broker: cast(ShardService, broker).copy_zone(zone, rules, expected=expected))

    async def has_due(self, entrypoints: tuple[str, ...] | None, zones: tuple[str, ...] | None) -> bool:
        return await self._ask(lambda broker: cast(ShardService, broker).has_due(entrypoints, zones))

    # --- Without waiting for a leader ---

    @property
    def away(self) -> bool:
        """Whether nobody led it a moment ago."""
        return self._clock.monotonic_ms() < self._away_until_ms

    async def at_once(self, call: Callable[[ShardService], Awaitable[R]]) -> R:
        """Ask the leader, or the one that has followed it, and nobody else.

        Raises:
            NoLeaderError, or another of `ASKED_AGAIN`: it cannot be asked now.
        """
        if self.away:
            raise NoLeaderError("nobody led this shard a moment ago")
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
        """Several may have looked at the same time: the first one's is everybody's."""
        self._leader = self._leader or found
        return self._leader

    def _drop(self, leader: RemoteService) -> None:
        if self._leader is leader:
            self._leader = None
            self._do_behind(leader.close())

    def _gone(self, error: CasqueError) -> CasqueError:
        self._away_until_ms = self._clock.monotonic_ms() + AWAY_MS
        return error


class _RemoteWithin(RemoteShard):
    """The same shard through the same connections, for a caller who may name only some of its jobs."""

    def __init__(self, shard: RemoteShard, reach: Reach) -> None:
        self._shard = shard
        self._reach = reach
        self._rng = shard._rng  # noqa: SLF001  another view of the same shard

    async def _ask(self, call: Callable[[QueueService], Awaitable[R]]) -> R:
        scoped = self._shard._ask  # noqa: SLF001  another view of the same shard
        return await scoped(lambda broker: call(cast(ShardService, broker).within(self._reach)))


class LedShard(Shard):
    """A shard that brokers lead, as a ring knows it. While it has no leader, those who can do without it do so."""

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
