"""Reads splits: fetches bytes through the bucket and yields columns, a batch at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from typing import Any, assert_never

from casque.codec.log import Segment, segment_key
from casque.codec.snapshot import Part
from casque.errors import StorageError
from casque.scan.ahead import read_ahead
from casque.scan.bucket import Bucket
from casque.scan.splits import ArchiveObject, ArchiveSplit, DocumentSplit, EventsSplit, JobsSplit, Split
from casque.scan.tables import METADATA, Table, arrow_schema, check_columns
from casque.storage.port import Stored
from casque.types import JobRecord

BATCH_ROWS = 8_192
"""A batch ends once it has this many rows. A commit is never split, so it may have more. With larger batches, the data
read first leaves the processor's caches before the last column is built."""
OBJECTS_AHEAD = 4
OBJECT = b"object"
"""Where the schema of a batch names the object that it was read from."""


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
    """`pyarrow` batches with these columns in this order. Empty batches are skipped."""
    names = check_columns(table_of(split), columns)
    needed = names
    if METADATA.keys() & set(names):
        needed = tuple(dict.fromkeys([*(name for name in names if name not in METADATA), "shard", "position"]))
    batches: AsyncGenerator[Any]
    if isinstance(split, EventsSplit):
        batches = _events(bucket, split, needed)
    elif isinstance(split, ArchiveSplit):
        batches = _archive(bucket, split, needed)
    else:
        batches = _jobs(bucket, split, needed)
    async with aclosing(batches):
        async for batch in batches:
            if batch.num_rows:
                yield batch if needed is names else _with_metadata(batch, split, names)


def _with_metadata(batch: Any, split: Split, names: Sequence[str]) -> Any:
    import pyarrow as pa

    found = dict(zip(batch.schema.names, batch.columns, strict=True))
    objects: list[str] | list[None] = [None] * batch.num_rows  # a state is put together from many objects
    if isinstance(split, EventsSplit):
        objects = [segment_key(position) for position in found["position"].to_pylist()]
    elif isinstance(split, ArchiveSplit):
        objects = [batch.schema.metadata[OBJECT].decode()] * batch.num_rows
    found |= {"_shard": found["shard"], "_position": found["position"], "_object": pa.array(objects, pa.string())}
    return pa.RecordBatch.from_arrays([found[name] for name in names], schema=arrow_schema(table_of(split), names))


async def _events(bucket: Bucket, split: EventsSplit, columns: Sequence[str]) -> AsyncGenerator[Any]:
    # Import per table, to load only what its reader needs.
    from casque.scan.event_columns import EventColumns

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
    from casque.scan.archive_columns import archive_batch
    from casque.scan.attempt_columns import attempts_batch

    make = attempts_batch if split.table is Table.ATTEMPTS else archive_batch

    async def read(one: ArchiveObject) -> bytes:
        found = await bucket.get(one.key)
        if isinstance(found, Stored):
            return found.body
        raise StorageError(
            f"{one.key} was there when the query was planned and is gone: `archive_retention`, or a rule of "
            "the bucket, deleted it. Run the query again; `since` leaves out hours that are about to go"
        )

    async with aclosing(read_ahead(split.objects, read, ahead=OBJECTS_AHEAD)) as objects:
        async for one, body in objects:
            yield make(split, one, body, columns).replace_schema_metadata({OBJECT: one.key})


async def _jobs(bucket: Bucket, split: JobsSplit | DocumentSplit, columns: Sequence[str]) -> AsyncGenerator[Any]:
    from casque.scan.job_columns import job_batches
    from casque.scan.replay import inline_jobs, replayed, tail_of, touched_by

    records = await inline_jobs(bucket, split)
    if isinstance(split, JobsSplit):
        tail = await tail_of(bucket, split)
        async with aclosing(_parts(bucket, split, columns, touched_by(tail))) as parts:
            async for batch, changed in parts:
                records += changed
                yield batch
        records = replayed(records, tail, split)
    for batch in job_batches(records, split, columns, rows=BATCH_ROWS):
        yield batch


async def _parts(
    bucket: Bucket, split: JobsSplit, columns: Sequence[str], touched: Collection[str]
) -> AsyncGenerator[tuple[Any, list[JobRecord]]]:
    """Columns of the jobs unchanged since the snapshot, and the changed ones as the snapshot has them."""
    from casque.scan.part_columns import part_columns
    from casque.scan.replay import snapshot_object

    async def read(part: Part) -> bytes:
        return await snapshot_object(bucket, split, part.key)

    async with aclosing(read_ahead(split.parts, read, ahead=OBJECTS_AHEAD)) as parts:
        async for part, body in parts:
            yield part_columns(split, part, body, columns, touched)
