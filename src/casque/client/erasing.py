"""Erase finished jobs from a queue's archive, and list what was erased."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from casque.client.head import require_head
from casque.client.opening import Parts
from casque.environment import Environment
from casque.errors import InvalidInputError
from casque.journal.erasing import Eraser, Erasure, Progress, erasures_of, new_erasure
from casque.scan.bucket import Bucket
from casque.scan.shards import shard_store
from casque.settings import QueueSettings
from casque.storage.port import Store

__all__ = ["Erasing", "Erasure", "Found", "list_erasures"]


class Found(msgspec.Struct, frozen=True):
    """Jobs that an erasure is about, by where they are."""

    archived: int
    """Finishes in the archive, which can be erased."""
    ranges: int
    """Hours and ranges of commits that hold them."""
    waiting: int
    """Finishes that are not archived yet: later."""
    queued: int
    """Jobs that are in the queue, dead ones included: cancel and purge them first."""


class Erasing:
    """One request to erase, in all shards of a queue."""

    def __init__(
        self,
        store: Store,
        *,
        by: str,
        zone: str | None = None,
        ids: Iterable[str] = (),
        env: Environment | None = None,
        progress: Progress | None = None,
    ) -> None:
        """
        Raises:
            InvalidInputError: neither a zone nor an id is named.
        """
        self._store = store
        self._env = env or Environment()
        self._progress = progress
        self._asked = new_erasure(self._env, by=by, zone=zone, ids=ids)
        if zone is None and not self._asked.ids:
            raise InvalidInputError("name what to erase: --zone ZONE, or --id ID, which may be repeated")

    async def find(self) -> Found:
        """Reads only."""
        archived = ranges = waiting = queued = 0
        for store in await _stores(self._store):
            upto = await self._archived(store)
            jobs, places = await self._eraser(store).count(self._asked, upto)
            archived, ranges = archived + jobs, ranges + places
            state = await Parts(store, QueueSettings(), clock=self._env.clock).read()
            waiting += sum(self._is_asked(one.job.id, one.job.spec.zone) for one in state.finished)
            queued += sum(self._is_asked(job.id, job.spec.zone) for job in state.jobs.values())
        return Found(archived, ranges, waiting, queued)

    async def erase(self) -> Erasure:
        """Raises as `Eraser.erase`. Repeating it completes what broke off."""
        jobs = objects = 0
        for store in await _stores(self._store):
            done = await self._eraser(store).erase(self._asked, await self._archived(store))
            jobs, objects = jobs + done.jobs, objects + done.objects
        return msgspec.structs.replace(self._asked, jobs=jobs, objects=objects, done=True)

    def _eraser(self, store: Store) -> Eraser:
        return Eraser(store, self._env, self._progress)

    async def _archived(self, store: Store) -> int:
        return (await Bucket(store, self._env).extent()).archived

    def _is_asked(self, job_id: str, zone: str | None) -> bool:
        return job_id in self._asked.ids or (self._asked.zone is not None and zone == self._asked.zone)


async def list_erasures(store: Store) -> list[Erasure]:
    """All that were recorded, of a ring by each shard, oldest first.

    Raises:
        InvalidInputError: there is no queue.
    """
    found = [one for part in await _stores(store) for one in await erasures_of(part, Environment().patience)]
    return sorted(found, key=lambda one: one.at)


async def _stores(store: Store) -> list[Store]:
    shards = (await require_head(store)).shards
    return [store] if shards is None else [shard_store(store, shard) for shard in range(shards)]
