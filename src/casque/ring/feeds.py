"""Merges the feeds of many shards. Each event has its shard, and the numbers of the ring."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from datetime import datetime
from typing import TypeAlias

import msgspec

from casque.clock import Clock
from casque.errors import InvalidInputError
from casque.ring.numbers import outer
from casque.ring.shards import LOOK_MS
from casque.service import EventKind, QueueEvent

Begin: TypeAlias = int | Mapping[int, int] | None
"""A position in each shard; 0 for the beginning of all, None for now."""
FeedOf: TypeAlias = Callable[[int, int | None, bool], AsyncGenerator[QueueEvent]]
"""The feed of a shard: after which position, and whether to follow."""

AHEAD_MAX = 1_000
"""Events that are read ahead."""
_NUMBERS = ("sequence", "token", "first")


async def merged_feed(
    count: Callable[[], Awaitable[int]], feed_of: FeedOf, begin: Begin, *, follow: bool, clock: Clock
) -> AsyncGenerator[QueueEvent]:
    """The events of each shard in order. Without `follow`, merged by time, as far as writers' clocks agree; otherwise
    as
    they come, including shards that are created meanwhile."""
    shards = await count()
    begins = {shard: begin_of(begin, shard, shards) for shard in range(shards)}
    feed = _following(count, feed_of, begins, clock) if follow else _by_time(feed_of, begins)
    async with aclosing(feed) as events:
        async for event in events:
            yield event


def begin_of(begin: Begin, shard: int, of: int) -> int | None:
    """
    Raises:
        InvalidInputError: it does not say where to begin in this shard.
    """
    if isinstance(begin, Mapping):
        if strange := [one for one in begin if not 0 <= one < of]:
            raise InvalidInputError(f"this ring of shards has {of}, and none with number {strange[0]}")
        return begin.get(shard, 0)
    if begin and of > 1:
        raise InvalidInputError(
            f"this queue is a ring of shards, and each of the {of} has positions of its own: begin with 0, or with "
            "one for each shard, as {0: 41, 1: 7}"
        )
    return begin


def of_ring(event: QueueEvent, shard: int) -> QueueEvent:
    if event.kind is EventKind.RINGED:  # its token is the shard itself
        return msgspec.structs.replace(event, shard=shard)
    fields = {name: outer(value, shard) if name in _NUMBERS else value for name, value in event.fields.items()}
    return msgspec.structs.replace(event, shard=shard, fields=fields)


async def _by_time(feed_of: FeedOf, begins: Mapping[int, int | None]) -> AsyncGenerator[QueueEvent]:
    async with AsyncExitStack() as stack:
        feeds = {shard: feed_of(shard, begin, False) for shard, begin in begins.items()}
        firsts: list[tuple[datetime, int, QueueEvent]] = []
        for shard, feed in feeds.items():
            await stack.enter_async_context(aclosing(feed))
            if (event := await anext(feed, None)) is not None:
                firsts.append((event.at, shard, event))
        # No two have the same shard, so events themselves are never compared.
        heapq.heapify(firsts)
        while firsts:
            _, shard, event = firsts[0]
            yield of_ring(event, shard)
            following = await anext(feeds[shard], None)
            if following is None:
                heapq.heappop(firsts)
            else:
                heapq.heapreplace(firsts, (following.at, shard, following))


async def _following(
    count: Callable[[], Awaitable[int]], feed_of: FeedOf, begins: Mapping[int, int | None], clock: Clock
) -> AsyncGenerator[QueueEvent]:
    merged: asyncio.Queue[QueueEvent | Exception] = asyncio.Queue(AHEAD_MAX)
    tasks: list[asyncio.Task[None]] = []

    async def pump(shard: int, begin: int | None) -> None:
        async with aclosing(feed_of(shard, begin, True)) as events:
            async for event in events:
                await merged.put(of_ring(event, shard))

    async def look_for_more() -> None:
        known = len(begins)
        while True:
            await clock.sleep(LOOK_MS / 1000)
            for shard in range(known, await count()):
                tasks.append(
                    asyncio.create_task(_reporting_errors(pump(shard, 0), merged), name=f"casque feed {shard}")
                )
                known = shard + 1

    for shard, begin in begins.items():
        tasks.append(asyncio.create_task(_reporting_errors(pump(shard, begin), merged), name=f"casque feed {shard}"))
    tasks.append(asyncio.create_task(_reporting_errors(look_for_more(), merged), name="casque feed of a ring"))
    try:
        while True:
            event = await merged.get()
            if isinstance(event, Exception):
                raise event
            yield event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _reporting_errors(work: Awaitable[None], merged: asyncio.Queue[QueueEvent | Exception]) -> None:
    """Pass an error on to the reader."""
    try:
        await work
    except Exception as error:  # noqa: BLE001  raised again in the reader
        await merged.put(error)
