"""How far a pipeline can read: up to which position archive and log of a queue are complete.

Finished jobs reach the archive a little after they finish. So everything is read as of the last position before the
first finish that is not archived yet: up to there every finished job is in the archive, every other job in the queue,
and none in both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from casque.codec.document import DocumentCodec
from casque.codec.head import KEY, check_single, read_layout
from casque.codec.log import LAYOUT, Segment, decode_segment, previous, segment_key
from casque.codec.ring import decode_ring
from casque.environment import Environment
from casque.errors import RingError
from casque.journal.log.past import refs_of
from casque.journal.log.reader import READ_AHEAD
from casque.scan.bucket import Bucket
from casque.scan.shards import AT_ONCE, shard_store
from casque.state import Limits
from casque.state.job_life import FINISHING
from casque.storage.port import Store, Stored

LOOKED_AT_MAX = 4_096
"""Segments above the archive that one call scans. A queue that only fills up has many, and the next call continues
from there."""


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
    """Time of the position; 0 if it is not known. The jobs of a ring are read as of the latest time of all shards."""


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


Bound = Callable[[int | None], int]
"""A position for each shard."""


async def look_around(store: Store, known: Bound, upto: Bound | None = None) -> Sight:
    """`known` returns where the last scan of a shard ended, `upto` a position that is not passed in a log.

    Raises:
        InvalidInputError: there is no queue.
        CorruptQueueError: the queue cannot be read.
    """
    try:
        bucket = _bucket(store)
        alone = _bounded(await _look(bucket, known(None)), known(None), upto and upto(None))
        alone = msgspec.structs.replace(alone, at_ms=await _time(bucket, alone))
    except RingError:
        head = decode_ring((await _bucket(store).find()).body)
        assert head.queue_id is not None
    else:
        return Sight(alone.queue_id, {None: alone})
    room = asyncio.Semaphore(AT_ONCE)

    async def one(shard: int) -> Horizon:
        async with room:
            bucket = _bucket(shard_store(store, shard))
            found = _bounded(await _look(bucket, known(shard)), known(shard), upto and upto(shard))
            return msgspec.structs.replace(found, at_ms=await _time(bucket, found))

    return Sight(head.queue_id, dict(enumerate(await asyncio.gather(*map(one, range(head.shards))))))


def _bounded(horizon: Horizon, known: int, upto: int | None) -> Horizon:
    """Never back behind what is known, or to what the log has dropped. A document has no earlier positions."""
    if upto is None or not horizon.has_log or horizon.position <= upto:
        return horizon
    position = min(horizon.position, max(known, upto, horizon.floor))
    return msgspec.structs.replace(horizon, position=position, is_end=True)


async def _time(bucket: Bucket, horizon: Horizon) -> int:
    if not horizon.has_log:
        return horizon.at_ms
    if horizon.position <= horizon.floor:
        refs = [ref for ref in refs_of(await bucket.log_head()) if ref.position <= horizon.position]
        return refs[-1].at if refs else 0
    read = await bucket.get(segment_key(horizon.position))
    return _decoded(read.body, horizon.queue_id, horizon.position).at if isinstance(read, Stored) else 0


async def _look(bucket: Bucket, known: int) -> Horizon:
    """`known` is where the last scan ended: nothing up to there is read again."""
    found = await bucket.find()
    head = check_single(read_layout(KEY, found.body))
    if head.layout != LAYOUT:
        state = DocumentCodec(KEY, head.queue_id or "").decode(found.body, Limits(finished=True))
        waiting = [one.position for one in state.finished if one.position > state.archived]
        position = min(waiting) - 1 if waiting else state.position
        jobs = state.jobs.values()
        latest_ms = max((at for job in jobs for at in (job.created_ms, job.claimed_ms, job.beat_ms) if at), default=0)
        return Horizon(head.queue_id or "", False, position, at_ms=latest_ms)
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


def _decoded(body: bytes, queue_id: str, position: int) -> Segment:
    return decode_segment(body, queue_id=queue_id, position=position, prev=previous(body))


def _bucket(store: Store) -> Bucket:
    return Bucket(store, Environment())
