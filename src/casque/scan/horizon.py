"""How far a pipeline can read: up to which position archive and log of a queue are complete.

Finished jobs reach the archive a little after they finish. So everything is read as of the last position before the
first finish that is not archived yet: up to there every finished job is in the archive, every other job in the queue,
and none in both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from casque.codec.archive import HOUR_MS
from casque.codec.document import DocumentCodec
from casque.codec.head import KEY, check_single, read_layout
from casque.codec.log import LAYOUT, Segment, decode_segment, previous, segment_key
from casque.codec.ring import decode_ring
from casque.environment import Environment
from casque.errors import HistoryGoneError, RingError, StorageError
from casque.journal.log.past import Past
from casque.journal.log.reader import READ_AHEAD
from casque.scan.ahead import read_ahead
from casque.scan.bucket import Bucket
from casque.scan.shards import AT_ONCE, shard_store
from casque.scan.splits import ArchiveObject
from casque.state import Limits
from casque.state.job_life import FINISHING
from casque.storage.port import Store, Stored
from casque.types import JobRecord, to_ms

LOOKED_AT_MAX = 4_096
"""Segments above the archive that one call scans. A queue that only fills up has many, and the next call continues
from there."""
OBJECTS_AHEAD = 8
"""Objects that a task reads ahead."""
CLOCKS_DIFFER_HOURS = 48
"""Archive objects are filed by the hour of their writer. Late jobs are found if clocks differ by up to this."""


class Horizon(msgspec.Struct, frozen=True):
    """What can be read now."""

    queue_id: str
    has_log: bool
    position: int
    floor: int = 0
    """Segments up to here may be deleted."""
    is_end: bool = True
    """False if the scan stopped early and there is more."""
    at_ms: int = 0
    """Time of the position. Only set for shards, whose jobs are read as of the latest time of all shards."""


class Sight(msgspec.Struct, frozen=True):
    """The horizon of a queue, under None; or of each shard of a ring."""

    queue_id: str
    shards: Mapping[int | None, Horizon]

    @property
    def position(self) -> int:
        """For a ring the sum of all shards, which rises with every commit to any of them."""
        return sum(one.position for one in self.shards.values())

    @property
    def is_end(self) -> bool:
        return all(one.is_end for one in self.shards.values())


async def look_around(store: Store, known: Callable[[int | None], int]) -> Sight:
    """`known` returns where the last scan of a shard ended.

    Raises:
        InvalidInputError: there is no queue.
        CorruptQueueError: the queue cannot be read.
    """
    try:
        alone = await _look(_bucket(store), known(None))
    except RingError:
        head = decode_ring((await _bucket(store).find()).body)
        assert head.queue_id is not None
    else:
        return Sight(alone.queue_id, {None: alone})
    room = asyncio.Semaphore(AT_ONCE)

    async def one(shard: int) -> Horizon:
        async with room:
            bucket = _bucket(shard_store(store, shard))
            found = await _look(bucket, known(shard))
            return msgspec.structs.replace(found, at_ms=await _time(bucket, found))

    return Sight(head.queue_id, dict(enumerate(await asyncio.gather(*map(one, range(head.shards))))))


async def _time(bucket: Bucket, horizon: Horizon) -> int:
    if horizon.position <= horizon.floor:
        return 0  # unknown; another shard's is as good
    read = await bucket.get(segment_key(horizon.position))
    return _decoded(read.body, horizon.queue_id, horizon.position).at if isinstance(read, Stored) else 0


async def _look(bucket: Bucket, known: int) -> Horizon:
    """`known` is where the last scan ended: nothing up to there is read again."""
    found = await bucket.find()
    head = check_single(read_layout(KEY, found.body))
    if head.layout != LAYOUT:
        state = DocumentCodec(KEY, head.queue_id or "").decode(found.body, Limits(finished=True))
        waiting = [one.position for one in state.finished if one.position > state.archived]
        return Horizon(head.queue_id or "", False, min(waiting) - 1 if waiting else state.position)
    log = bucket.head.adopt(found)
    assert log.queue_id is not None
    start = position = max(log.archived_to, known)
    while position - start < LOOKED_AT_MAX:
        bodies = (await bucket.reader.slots(position, READ_AHEAD)).bodies
        for body in bodies:
            segment = _decoded(body, log.queue_id, position + 1)
            if any(isinstance(event, FINISHING) for event in segment.events):
                return Horizon(log.queue_id, True, position, log.floor)
            position += 1
        if len(bodies) < READ_AHEAD:
            return Horizon(log.queue_id, True, position, log.floor)
    return Horizon(log.queue_id, True, position, log.floor, is_end=False)


async def archived_between(store: Store, after: int, upto: int, since_hour: str | None) -> list[ArchiveObject]:
    """The archive's objects of these positions, sorted by position.

    A range counts by its end: it may begin before `after`, with commits that finished nothing. `since_hour` is the
    latest hour seen so far: objects far before it are not listed again.
    """
    since_ms = None
    if since_hour is not None:
        moment = datetime.fromisoformat(f"{since_hour}:00:00").replace(tzinfo=UTC)
        since_ms = max(0, to_ms(moment) - CLOCKS_DIFFER_HOURS * HOUR_MS)
    return await _bucket(store).archive_objects(after=after, upto=upto, since_ms=since_ms)


# --- What a task reads ---


def bodies(store: Store, keys: Sequence[str]) -> AsyncGenerator[tuple[str, bytes | None]]:
    """Objects in this order; None for one that is gone."""
    bucket = _bucket(store)

    async def read(key: str) -> bytes | None:
        found = await bucket.get(key)
        return found.body if isinstance(found, Stored) else None

    return read_ahead(keys, read, ahead=OBJECTS_AHEAD)


async def commits(store: Store, queue_id: str, first: int, last: int) -> AsyncGenerator[Segment | None]:
    """The commits between two positions, each checked by itself; None for one that was collected. `casque queue verify`
    checks that they follow each other."""
    position = first
    async for _, body in bodies(store, [segment_key(at) for at in range(first, last + 1)]):
        yield None if body is None else _decoded(body, queue_id, position)
        position += 1


async def jobs_at(store: Store, position: int, *, has_log: bool) -> tuple[list[JobRecord], int]:
    """The jobs in a queue as of a position, and its time; as of now if that position is gone or there is no log."""
    if not has_log:
        found = await _bucket(store).get(KEY)
        if not isinstance(found, Stored):
            raise StorageError(f"{KEY} is gone")
        jobs = list(DocumentCodec(KEY, "").decode(found.body, Limits()).jobs.values())
        return jobs, max((at for job in jobs for at in (job.created_ms, job.claimed_ms, job.beat_ms) if at), default=0)
    past = Past(store, Environment())
    try:
        moment = await past.at_position(position)
    except HistoryGoneError:
        moment = await past.at_position(None)
    return list(moment.state.jobs.values()), moment.at_ms


def _decoded(body: bytes, queue_id: str, position: int) -> Segment:
    return decode_segment(body, queue_id=queue_id, position=position, prev=previous(body))


def _bucket(store: Store) -> Bucket:
    return Bucket(store, Environment())
