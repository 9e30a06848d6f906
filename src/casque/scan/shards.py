"""Read-only access to the shards of a ring: each is a queue in its own bucket, below the ring's root.

A queue is first read as if there were no rings; only one that refuses because it is a ring is then read as such.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import msgspec

from casque import checks
from casque.codec.head import KEY, RING, read_layout
from casque.codec.ring import SHARDS_MAX, RingHead, decode_ring, shard_prefix
from casque.environment import Environment
from casque.errors import InvalidInputError, RingError
from casque.scan.bucket import Bucket
from casque.scan.planning import SPLITS
from casque.scan.splits import Extent
from casque.storage.port import Store
from casque.storage.prefixed import PrefixedStore

R = TypeVar("R")

Positions: TypeAlias = Mapping[int, int]
"""A position in each shard of a ring. A shard that is not named has had no commit."""
Point: TypeAlias = int | datetime | Positions
"""A point in a history."""

AT_ONCE = 16
"""Shards that are read at the same time."""


class Share(msgspec.Struct, frozen=True):
    """One shard's part of a request to the whole queue; a queue without shards has all of it."""

    shard: int | None = None
    of: int = 1

    def splits(self, splits: int | None) -> int | None:
        """This shard's part of the number of splits."""
        return splits if self.shard is None else max(1, (splits or SPLITS) // self.of)

    def point(self, name: str, point: Point | None) -> int | datetime | None:
        """A point of the whole queue as a point of this shard.

        Raises:
            InvalidInputError: it does not cover this shard, or does not fit this queue.
        """
        if isinstance(point, Mapping):
            if self.shard is None:
                raise InvalidInputError(f"{name}: this queue has no shards, and one position: say which")
            if strange := [shard for shard in point if not 0 <= shard < self.of]:
                raise InvalidInputError(f"{name}: this ring has {self.of} shards, and none with number {strange[0]}")
            return point.get(self.shard, 0)
        if isinstance(point, int) and self.of > 1:
            raise InvalidInputError(
                f"{name}: each of the {self.of} shards of this ring has positions of its own: say a time, or all of "
                'them, as {"0000": 41, "0001": 7}'
            )
        return point

    def position(self, name: str, point: Point | None) -> int | None:
        """
        Raises:
            InvalidInputError: it is a time, or does not fit this queue.
        """
        if isinstance(point, datetime):
            raise InvalidInputError(f"{name} takes a position here: finished jobs are chosen by since and until")
        found = self.point(name, point)
        assert not isinstance(found, datetime)
        return found


def shard_store(store: Store, shard: int | None) -> Store:
    """The store of one shard of a ring; a queue without shards has all of it."""
    return store if shard is None else PrefixedStore(store, shard_prefix(shard))


def shard_key(shard: int, key: str) -> str:
    """The key of a shard's object below the root of its ring.

    >>> shard_key(3, "queue.json")
    'shards/0003/queue.json'
    """
    return f"{shard_prefix(shard)}/{key}"


class Buckets:
    """The bucket of a queue, and those of its shards if it is a ring."""

    def __init__(self, store: Store, env: Environment) -> None:
        self._store = store
        self._made: dict[int | None, Bucket] = {}
        self._env = env
        self._is_ring = False

    def of(self, shard: int | None) -> Bucket:
        bucket = self._made.get(shard)
        if bucket is None:
            bucket = self._made[shard] = Bucket(shard_store(self._store, shard), self._env)
        return bucket

    async def ring(self) -> RingHead:
        """The current root."""
        return decode_ring((await self.of(None).find()).body)

    async def each(self, ask: Callable[[Bucket, Share], Awaitable[R]]) -> dict[int | None, R]:
        """The queue's answer under None; or the answers of its shards. Includes shards that are no longer part of the
        ring: their history is the ring's."""
        if not self._is_ring:
            try:
                return {None: await ask(self.of(None), Share())}
            except RingError:
                self._is_ring = True
            except InvalidInputError:
                # Positions of shards do not fit a queue, and nothing has been read yet: it may be a ring.
                self._is_ring = await self._is_one()
                if not self._is_ring:
                    raise
        head = await self.ring()
        room = asyncio.Semaphore(AT_ONCE)

        async def one(shard: int) -> R:
            async with room:
                return await ask(self.of(shard), Share(shard, head.shards))

        return dict(enumerate(await asyncio.gather(*map(one, range(head.shards)))))

    async def _is_one(self) -> bool:
        return read_layout(KEY, (await self.of(None).find()).body).layout == RING

    async def extents(self) -> tuple[str | None, dict[int | None, Extent]]:
        """The id of the queue, and the extent of each shard's history."""
        found = await self.each(lambda bucket, _: bucket.extent())
        return found[None].queue_id if None in found else (await self.ring()).queue_id, found


def positions(name: str, value: Mapping[str, Any]) -> dict[int, int]:
    """Parse positions from JSON, in the form of a stream's offsets.

    >>> positions("from", {"0000": 41, "0003": 7})
    {0: 41, 3: 7}
    """
    found: dict[int, int] = {}
    for shard, position in value.items():
        if not (shard.isascii() and shard.isdecimal()):
            raise InvalidInputError(f"{name} names shards as {shard_name(0)!r}, not as {checks.shown(shard)}")
        found[int(shard)] = checks.position(name, position)
    return found


def shard_name(shard: int) -> str:
    """The shard's directory below the root of its ring.

    >>> shard_name(3)
    '0003'
    """
    return f"{shard:04d}"


def with_ring_numbers(batch: Any, shard: int) -> Any:
    """A shard's rows with the ring's numbers: the shard's index added, and sequence numbers and tokens made unique."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def numbered(own: Any) -> Any:
        # 0 means none; see `casque.ring.numbers`.
        return pc.if_else(pc.equal(own, 0), 0, pc.add(pc.multiply(own, SHARDS_MAX), shard)).cast(own.type)

    for at, field in enumerate(batch.schema):
        if field.name == "_object":
            prefix = pa.scalar(shard_key(shard, ""))
            batch = batch.set_column(at, field, pc.binary_join_element_wise(prefix, batch.column(at), ""))
        elif field.name in ("shard", "_shard"):
            batch = batch.set_column(at, field, pa.repeat(pa.scalar(shard, field.type), batch.num_rows))
        elif field.name in ("sequence", "token"):
            batch = batch.set_column(at, field, numbered(batch.column(at)))
        elif field.name == "tries" and batch.column(at).null_count < batch.num_rows:
            tries = batch.column(at)
            parts = [
                numbered(part) if one.name == "token" else part
                for one, part in zip(tries.type.value_type, tries.values.flatten(), strict=True)
            ]
            values = pa.StructArray.from_arrays(parts, fields=list(tries.type.value_type))
            lists = pa.ListArray.from_arrays(tries.offsets, values, type=tries.type, mask=tries.is_null())
            batch = batch.set_column(at, field, lists)
    return batch
