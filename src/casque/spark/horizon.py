"""How far a pipeline can read: up to which position archive and log of a queue are complete.

Finished jobs reach the archive a little after they finish. So everything is read as of the last position before the
first finish that is not archived yet: up to there every finished job is in the archive, every other job in the queue,
and none in both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import msgspec

from casque.client.scan import ArchiveObject
from casque.client.scan.bucket import Bucket
from casque.codec.archive import HOUR_MS
from casque.codec.document import DocumentCodec
from casque.codec.head import KEY, check_single, read_layout
from casque.codec.log import LAYOUT, decode_head, decode_segment, previous, segment_key
from casque.codec.ring import decode_ring, shard_prefix
from casque.codec.stored import to_ms
from casque.environment import Environment, Patience
from casque.errors import InvalidInputError, RingError
from casque.journal.log.reader import READ_AHEAD, Reader
from casque.spark.store_ref import body_of
from casque.state import Limits
from casque.state.events import Acked, Cancelled, Died
from casque.storage.port import Store
from casque.storage.prefixed import PrefixedStore

LOOKED_AT_MAX = 4_096
"""Segments above the archive that one call scans. A queue that only fills up has many, and the next call continues
from there."""
AT_ONCE = 16
"""Shards that are scanned at the same time."""
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
        alone = await look(store, known(None))
    except RingError:
        head = decode_ring(await body_of(store, KEY) or b"")
        assert head.queue_id is not None
    else:
        return Sight(alone.queue_id, {None: alone})
    room = asyncio.Semaphore(AT_ONCE)

    async def one(shard: int) -> Horizon:
        async with room:
            below = PrefixedStore(store, shard_prefix(shard))
            found = await look(below, known(shard))
            return msgspec.structs.replace(found, at_ms=await _time(below, found))

    return Sight(head.queue_id, dict(enumerate(await asyncio.gather(*map(one, range(head.shards))))))


async def _time(store: Store, horizon: Horizon) -> int:
    if horizon.position <= horizon.floor:
        return 0  # unknown; another shard's is as good
    body = await body_of(store, segment_key(horizon.position))
    if body is None:
        return 0
    return decode_segment(body, queue_id=horizon.queue_id, position=horizon.position, prev=previous(body)).at


async def look(store: Store, known: int) -> Horizon:
    """`known` is where the last scan ended: nothing up to there is read again.

    Raises:
        InvalidInputError: there is no queue.
        CorruptQueueError: the queue cannot be read.
    """
    body = await body_of(store, KEY)
    if body is None:
        raise InvalidInputError(f"there is no queue here: {KEY} is missing")
    head = check_single(read_layout(KEY, body))
    if head.layout != LAYOUT:
        state = DocumentCodec(KEY, head.queue_id or "").decode(body, Limits(finished=True))
        waiting = [one.position for one in state.finished if one.position > state.archived]
        return Horizon(head.queue_id or "", False, min(waiting) - 1 if waiting else state.position)
    log = decode_head(KEY, body)
    assert log.queue_id is not None
    reader = Reader(store, _patience)
    start = position = max(log.archived_to, known)
    while position - start < LOOKED_AT_MAX:
        bodies = (await reader.slots(position, READ_AHEAD)).bodies
        for segment in bodies:
            decoded = decode_segment(segment, queue_id=log.queue_id, position=position + 1, prev=previous(segment))
            if any(isinstance(event, Acked | Died | Cancelled) for event in decoded.events):
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
    bucket = Bucket(store, Environment())
    return await bucket.archive_objects(after=after, upto=upto, since_ms=since_ms)


def _patience() -> Patience:
    return Environment().patience()
