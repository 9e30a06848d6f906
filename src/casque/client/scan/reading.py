"""Reads splits: bytes come in through the bucket, columns go out, a batch at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, assert_never

from casque.client.scan.bucket import Bucket
from casque.client.scan.splits import ArchiveObject, ArchiveSplit, DocumentSplit, EventsSplit, JobsSplit, Split
from casque.client.scan.tables import Table, check_columns
from casque.clock import yield_once
from casque.codec.log import Segment
from casque.errors import StorageError
from casque.storage.port import Read, Stored

BATCH_ROWS = 32_768
"""A batch is closed once it has so many rows. One commit is never taken apart, and may have more."""
OBJECTS_AHEAD = 4


def table_of(split: Split) -> Table:
    match split:
        case EventsSplit():
            return Table.EVENTS
        case ArchiveSplit(table=table):
            return table
        case JobsSplit() | DocumentSplit():
            return Table.JOBS
        case _ as never:
            assert_never(never)


async def read_split(bucket: Bucket, split: Split, columns: Sequence[str] | None) -> AsyncGenerator[Any]:
    """Batches of `pyarrow`, with these columns in this order. Those without a row are left out."""
    names = check_columns(table_of(split), columns)
    batches: AsyncGenerator[Any]
    if isinstance(split, EventsSplit):
        batches = _events(bucket, split, names)
    elif isinstance(split, ArchiveSplit):
        batches = _archive(bucket, split, names)
    else:
        batches = _jobs(bucket, split, names)
    async with aclosing(batches):
        async for batch in batches:
            if batch.num_rows:
                yield batch


async def _events(bucket: Bucket, split: EventsSplit, columns: Sequence[str]) -> AsyncGenerator[Any]:
    # Each kind of table is made with what only its own reader has to load.
    from casque.client.scan.event_columns import EventColumns

    collected = EventColumns(columns)
    commits = bucket.segments(split.queue_id, split.first, split.last)
    async with aclosing(commits):
        async for some in commits:
            for placed in some:
                if _asked_for(split, placed.segment):
                    collected.add(placed.segment)
                if collected.rows >= BATCH_ROWS:
                    yield collected.batch()
    if collected.rows:
        yield collected.batch()


def _asked_for(split: EventsSplit, commit: Segment) -> bool:
    late_enough = split.since_ms is None or commit.at >= split.since_ms
    return late_enough and (split.until_ms is None or commit.at < split.until_ms)


async def _archive(bucket: Bucket, split: ArchiveSplit, columns: Sequence[str]) -> AsyncGenerator[Any]:
    from casque.client.scan.archive_columns import archive_batch
    from casque.client.scan.attempt_columns import attempts_batch

    make = attempts_batch if split.table is Table.ATTEMPTS else archive_batch
    async with aclosing(_objects(bucket, split.objects)) as objects:
        async for one, body in objects:
            yield make(split, one, body, columns)


async def _objects(bucket: Bucket, objects: Sequence[ArchiveObject]) -> AsyncGenerator[tuple[ArchiveObject, bytes]]:
    """One after the other, the next few asked for already."""
    ahead: deque[tuple[ArchiveObject, asyncio.Task[Read]]] = deque()
    left = iter(objects)
    try:
        while True:
            while len(ahead) < OBJECTS_AHEAD and (one := next(left, None)) is not None:
                ahead.append((one, asyncio.create_task(bucket.get(one.key))))
            if not ahead:
                return
            await yield_once()  # the requests are on their way before the next object is decoded
            one, reading = ahead.popleft()
            read = await reading
            if not isinstance(read, Stored):
                raise StorageError(
                    f"{one.key} was there when the query was planned and is gone: `archive_retention`, or a rule of "
                    "the bucket, deleted it. Run the query again; `since` leaves out hours that are about to go"
                )
            yield one, read.body
    finally:
        for _, reading in ahead:
            reading.cancel()
        await asyncio.gather(*(reading for _, reading in ahead), return_exceptions=True)


async def _jobs(bucket: Bucket, split: JobsSplit | DocumentSplit, columns: Sequence[str]) -> AsyncGenerator[Any]:
    from casque.client.scan.job_columns import job_batches
    from casque.client.scan.standing import jobs_at

    for batch in job_batches(await jobs_at(bucket, split), split, columns, rows=BATCH_ROWS):
        yield batch
        await yield_once()
