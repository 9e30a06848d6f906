"""Reads segments and snapshots, and finds how far they form a chain. Decides nothing: only the head shows whether they
are the history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec

from casque.clock import yield_once
from casque.codec.admission import Staged, expanded, named_parts
from casque.codec.log import Segment, SnapshotRef, Tip, decode_segment, digest, segment_key
from casque.codec.snapshot import Restoring
from casque.codec.staged import StagedJobs, decode_columns, missing_part
from casque.environment import Patience
from casque.errors import CorruptQueueError
from casque.journal.staged import specs_of
from casque.state import Limits, State
from casque.storage.port import Read, Store, Stored
from casque.types import JobSpec, StagedPart

READ_AHEAD = 32
"""Segments fetched at once when a whole tail has to be read."""
PARTS_AT_ONCE = 8


class Placed(msgspec.Struct, frozen=True):
    """A segment in its slot."""

    segment: Segment
    body: bytes
    digest: str

    @property
    def size(self) -> int:
        """Size of everything to read for it."""
        return len(self.body) + sum(part.bytes for part in named_parts(self.body))


class Tail(msgspec.Struct):
    """The segments found after a position, in order, and where they ended."""

    found: list[Placed]
    broken: CorruptQueueError | None = None
    """The next slot holds an object that does not belong there."""
    gap: int | None = None
    """The next slot is empty, but a later one is not."""


class Bodies(msgspec.Struct):
    """The bytes of the slots after a position, up to the first empty one."""

    bodies: list[bytes]
    gap: int | None = None
    staged: Staged = {}
    """The staged jobs that they name."""


class Reader:
    """Retries every read by itself: of many at once, one or other always fails on a bad day."""

    def __init__(self, store: Store, patience: Callable[[], Patience]) -> None:
        self._store = store
        self._patience = patience

    async def tail(self, queue_id: str, position: int, chain: str, *, ahead: int = 1) -> Tail:
        return linked(queue_id, position, chain, await self.bodies(position, ahead=ahead))

    async def bodies(self, position: int, *, ahead: int = 1) -> Bodies:
        """Reads more at once the more there are."""
        bodies: list[bytes] = []
        staged: Staged = {}
        while True:
            some = await self.window(position + len(bodies), ahead)
            bodies += some.bodies
            staged = {**staged, **some.staged}
            if len(some.bodies) < ahead:
                return Bodies(bodies, some.gap, staged)
            ahead = min(ahead * 2, READ_AHEAD)

    async def end(self, low: int) -> int:
        """The last full slot, starting from a full one or the floor: above the floor there are no gaps, so a few reads
        find it in a log of any length."""
        step = 1
        while await self._is_full(low + step):
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if await self._is_full(middle) else (low, middle)
        return low

    async def _is_full(self, slot: int) -> bool:
        return isinstance(await self.get(segment_key(slot)), Stored)

    async def window(self, position: int, count: int) -> Bodies:
        """`count` slots after a position, fetched at once, with the jobs that they name."""
        read = await self.slots(position, count)
        read.staged = await self.staged(read.bodies)
        return read

    async def slots(self, position: int, count: int) -> Bodies:
        """The same without the jobs."""
        first = position + 1
        reads = await asyncio.gather(*(self.get(segment_key(first + n)) for n in range(count)))
        bodies: list[bytes] = []
        for read in reads:
            if not isinstance(read, Stored):
                later = any(isinstance(read, Stored) for read in reads[len(bodies) :])
                gap = first + len(bodies) if later else None
                return Bodies(bodies, gap)
            bodies.append(read.body)
        return Bodies(bodies)

    async def staged(self, bodies: Iterable[bytes]) -> Staged:
        """The jobs that these segments name. Blocks other tasks for one object at most."""
        staged: dict[str, Sequence[JobSpec] | CorruptQueueError] = {}
        parts = [part for body in bodies for part in named_parts(body)]
        for start in range(0, len(parts), PARTS_AT_ONCE):
            some = parts[start : start + PARTS_AT_ONCE]
            reads = await asyncio.gather(*(self.get(part.key) for part in some))
            for part, read in zip(some, reads, strict=True):
                await yield_once()
                columns = _columns(part, read)
                staged[part.key] = columns if isinstance(columns, CorruptQueueError) else await specs_of(columns)
        return staged

    async def restore(self, ref: SnapshotRef, *, queue_id: str, limits: Limits) -> tuple[State, Tip] | None:
        """The state in a snapshot; None if any of its objects is missing.

        Raises:
            CorruptQueueError: an object has other contents.
        """
        read = await self.get(ref.key)
        if not isinstance(read, Stored):
            return None
        restoring = Restoring(ref, read.body, queue_id=queue_id)
        del read
        for start in range(0, len(restoring.parts), PARTS_AT_ONCE):
            parts = restoring.parts[start : start + PARTS_AT_ONCE]
            reads = await asyncio.gather(*(self.get(part.key) for part in parts))
            for part, found in zip(parts, reads, strict=True):
                if not isinstance(found, Stored):
                    return None
                restoring.add(part, found.body)
        return restoring.finished(limits)

    async def missing_of(self, ref: SnapshotRef, *, queue_id: str) -> CorruptQueueError:
        """The error for a snapshot that could not be restored: names the missing object."""
        read = await self.get(ref.key)
        for part in Restoring(ref, read.body, queue_id=queue_id).parts if isinstance(read, Stored) else ():
            if not isinstance(await self.get(part.key), Stored):
                return CorruptQueueError(
                    part.key, f"this part of the snapshot {ref.key} is missing. Restore it from a backup"
                )
        return CorruptQueueError(ref.key, "the snapshot that the head names is missing. Restore it from a backup")

    async def get(self, key: str) -> Read:
        return await self._patience().insist(lambda: self._store.get(key))


def _columns(part: StagedPart, read: Read) -> StagedJobs | CorruptQueueError:
    """A bad object counts only if its segment turns out to be part of the history."""
    if not isinstance(read, Stored):
        return missing_part(part.key)
    try:
        return decode_columns(part, read.body)
    except CorruptQueueError as error:
        return error


def lost(position: int) -> CorruptQueueError:
    """The error for an empty slot that must be full."""
    return CorruptQueueError(
        segment_key(position), "the segment is missing while later ones are there. Restore it from a backup"
    )


def linked(queue_id: str, position: int, chain: str, read: Bodies) -> Tail:
    """The bodies that form a chain starting from `chain`."""
    tail = Tail([], gap=read.gap)
    for number, body in enumerate(read.bodies, position + 1):
        try:
            segment = decode_segment(body, queue_id=queue_id, position=number, prev=chain)
            segment = expanded(segment, read.staged)
        except CorruptQueueError as error:
            tail.broken, tail.gap = error, None
            return tail
        chain = digest(body)
        tail.found.append(Placed(segment, body, chain))
    return tail
