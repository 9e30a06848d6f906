"""Reads the archive: objects in the order of their names, which is by hour and then by position."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from casque.clock import yield_once
from casque.codec.archive import ARCHIVE, OnePerRange, decode_pieces, hour_of, parse_hour
from casque.environment import Patience
from casque.service import ArchivedJob
from casque.storage.port import Read, Store, Stored

READ_AHEAD = 4
"""Objects fetched at once. Each is held whole in memory; writers limit them to some megabytes."""


async def read_archive(
    store: Store, patience: Callable[[], Patience], *, since_ms: int | None, until_ms: int | None
) -> AsyncGenerator[ArchivedJob]:
    """Every job of the hours between the two times; the caller filters the first and last hour.

    Raises:
        CorruptQueueError: an object is not an archive object.
        NotInstalledError: one is only there as Parquet, and pyarrow is not installed.
    """
    async with aclosing(_objects(store, patience, since_ms=since_ms, until_ms=until_ms)) as objects:
        async for key, body in objects:
            for number, some in enumerate(decode_pieces(key, body)):
                if number:
                    await yield_once()  # decoding blocks the event loop
                for job in some:
                    yield job


async def _objects(
    store: Store, patience: Callable[[], Patience], *, since_ms: int | None, until_ms: int | None
) -> AsyncGenerator[tuple[str, bytes]]:
    ahead: deque[tuple[str, asyncio.Task[Read]]] = deque()
    try:
        async for key in _keys(store, since_ms, until_ms):
            ahead.append((key, asyncio.create_task(_get(store, patience, key))))
            if len(ahead) < READ_AHEAD:
                continue
            first, reading = ahead.popleft()
            if isinstance(read := await reading, Stored):
                yield first, read.body
        while ahead:
            first, reading = ahead.popleft()
            # An object that was listed and is gone by now was past retention.
            if isinstance(read := await reading, Stored):
                yield first, read.body
    finally:
        for _, reading in ahead:
            reading.cancel()
        await asyncio.gather(*(reading for _, reading in ahead), return_exceptions=True)


async def _keys(store: Store, since_ms: int | None, until_ms: int | None) -> AsyncIterator[str]:
    after = None if since_ms is None else f"{ARCHIVE}{hour_of(since_ms)}/"
    last = None if until_ms is None else hour_of(until_ms)
    one_per_range = OnePerRange()
    async for key in store.list(ARCHIVE, after=after):
        if not one_per_range.takes(key):
            continue
        if last is not None and parse_hour(key) > last:
            return
        yield key


async def _get(store: Store, patience: Callable[[], Patience], key: str) -> Read:
    return await patience().insist(lambda: store.get(key))
