"""The history of a ring, read from its shards in the store without entering the queue."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from casque.client.opening import Parts
from casque.errors import InvalidInputError
from casque.ring.archives import merged
from casque.ring.feeds import merged_feed
from casque.service import ArchivedJob, ArchiveFilter, QueueEvent


def ring_events(local: Parts | None, begin: int | dict[int, int] | None, *, follow: bool) -> AsyncGenerator[QueueEvent]:
    if local is None:
        raise InvalidInputError("positions by shard are those of a ring that is opened by the URL of its store")
    root = local.root()

    async def count() -> int:
        return (await root.read()).shards

    def feed_of(token: int, begin: int | None, wait: bool) -> AsyncGenerator[QueueEvent]:
        return local.shard(token).history().events(from_position=begin, follow=wait)

    return merged_feed(count, feed_of, begin, follow=follow, clock=local.clock)


async def ring_archive(local: Parts, asked: ArchiveFilter) -> AsyncGenerator[ArchivedJob]:
    shards = range((await local.root().read()).shards)
    return merged({token: local.shard(token).history().archive(**asked) for token in shards})
