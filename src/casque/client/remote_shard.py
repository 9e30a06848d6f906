"""A shard of a ring that brokers lead, wherever its leader is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from casque.client.remote import RemoteQueue
from casque.errors import UnknownOutcomeError
from casque.ring.shards import Shard
from casque.service import Known, QueueService, ShardService
from casque.types import JobRecord, JobSpec


class RemoteShard(RemoteQueue):
    """Satisfies `ShardService` through whichever broker leads the shard; what it connects to are shards."""

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

    async def adopt(self, generation: int, size: int) -> int:
        return await self._ask(lambda broker: cast(ShardService, broker).adopt(generation, size))

    async def known(self, job_ids: Sequence[str], *, request_id: str | None = None) -> Known:
        return await self._ask(lambda broker: cast(ShardService, broker).known(job_ids, request_id=request_id))

    async def has_due(self, entrypoints: tuple[str, ...] | None, zones: tuple[str, ...] | None) -> bool:
        return await self._ask(lambda broker: cast(ShardService, broker).has_due(entrypoints, zones))


class LedShard(Shard):
    """A shard that brokers lead, as a ring knows it."""

    def __init__(self, token: int, remote: RemoteShard) -> None:
        super().__init__(token, remote)
        self._remote = remote

    async def stop(self) -> None:
        await self._remote.close()
