"""Merges the archives of many shards."""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from datetime import datetime

from casque.ring.numbers import archived_of
from casque.service import ArchivedJob


async def merged(archives: Mapping[int, AsyncGenerator[ArchivedJob]]) -> AsyncGenerator[ArchivedJob]:
    """Finished jobs of all shards in the order in which they finished, as far as their writers' clocks agree; those of
    each shard in its own order."""
    async with AsyncExitStack() as stack:
        firsts: list[tuple[datetime, int, ArchivedJob]] = []
        for shard, archive in archives.items():
            await stack.enter_async_context(aclosing(archive))
            if (job := await anext(archive, None)) is not None:
                firsts.append((job.finished_at, shard, job))
        heapq.heapify(firsts)
        while firsts:
            _, shard, job = firsts[0]
            yield archived_of(job, shard)
            following = await anext(archives[shard], None)
            if following is None:
                heapq.heappop(firsts)
            else:
                heapq.heapreplace(firsts, (following.finished_at, shard, following))
