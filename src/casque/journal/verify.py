"""Reads a whole queue and verifies it: every object is valid, and all of them fit together.

Works while the queue is in use, and never writes.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable

import msgspec

from casque.codec import parquet
from casque.codec.archive import (
    ARCHIVE,
    Form,
    archive_key,
    form_of,
    holds,
    parse_key,
)
from casque.codec.blobs import BLOBS
from casque.codec.digest import state_digest
from casque.codec.document import LAYOUT as DOCUMENT
from casque.codec.document import DocumentCodec
from casque.codec.head import KEY, RING, read_layout
from casque.codec.log import LAYOUT as LOG
from casque.codec.log import LogHead, Tip, segment_key, segment_position
from casque.codec.ring import RingHead, decode_ring, shard_prefix
from casque.codec.snapshot import snapshot_of
from casque.environment import Environment
from casque.errors import CorruptQueueError, InvalidInputError, StorageError
from casque.journal.archive_check import RESTORE, check_end, expected, ranges_of
from casque.journal.cleanup import SEGMENTS, SNAPSHOTS
from casque.journal.erasing import ERASURES, holds_the_rest
from casque.journal.log.reader import READ_AHEAD, Reader
from casque.journal.log.register import HeadRegister
from casque.journal.walk import LIMITS, Walk, flaw
from casque.state import Limits, State
from casque.storage.port import Store, Stored, locate
from casque.storage.prefixed import PrefixedStore
from casque.types import Finished

Progress = Callable[[str, int, int], None]

PASSES_MAX = 10
"""How often the check restarts because the queue was collected meanwhile."""


class Verdict(msgspec.Struct, frozen=True):
    """The result for an undamaged queue."""

    layout: str
    position: int
    jobs: int
    digest: str
    """Digest of everything the queue holds."""
    segments: int = 0
    snapshots: int = 0
    replayed: int = 0
    """Snapshots that were compared with a replay of the segments before them."""
    fences: int = 0
    archived: int = 0
    """Objects of the archive."""
    notes: tuple[str, ...] = ()
    """Harmless findings."""
    shards: int = 0
    """For a ring; all other numbers are sums over its shards."""


class Verifier:
    """Checks one queue, in any layout."""

    def __init__(self, store: Store, env: Environment, *, progress: Progress | None = None) -> None:
        self._store = store
        self._env = env
        self._progress = progress or (lambda _what, _done, _total: None)
        self._head = HeadRegister(store, env.patience)
        self._reader = Reader(store, env.patience)
        self._unread = 0
        """Objects of the archive that could not be compared, because pyarrow is not installed."""
        self.shard_of: int | None = None
        """The shard's index if this is a shard of a ring, once it is verified."""
        self.zones: tuple[str, ...] = ()
        """The zones that have jobs in it."""

    async def verify(self) -> Verdict:
        """
        Raises:
            CorruptQueueError: the queue is damaged; `key` is the first bad object, the text says what to do.
        """
        read = await self._reader.get(KEY)
        if not isinstance(read, Stored):
            async for key in self._store.list(SEGMENTS):
                raise CorruptQueueError(
                    KEY, f"is missing although there is {key}: it was deleted. Restore it from a backup"
                )
            raise InvalidInputError(f"there is no queue here: {KEY} is missing")
        match read_layout(KEY, read.body, locate(self._store, KEY)).layout:
            case "document":
                return await self._document(read.body)
            case "log":
                return await self._log()
            case "ring":
                return await self._ring(decode_ring(read.body))
            case layout:
                raise CorruptQueueError(KEY, f"the layout {layout!r} is none that this release knows. Upgrade casque")

    async def _document(self, body: bytes) -> Verdict:
        self._progress("reading the document", 0, 1)
        state = DocumentCodec(KEY, "").decode(body, Limits())
        if (problem := flaw(state)) is not None:
            raise CorruptQueueError(KEY, f"{problem}: it was edited by hand. Restore an older version")
        left = [key async for key in self._keys(SEGMENTS)] + [key async for key in self._keys(SNAPSHOTS)]
        notes: tuple[str, ...] = (f"{len(left)} objects of an earlier log; its fences stay for ever",) if left else ()
        notes += await self._blobs(state)
        self._progress("reading the document", 1, 1)
        archive = [key async for key in self._keys(ARCHIVE) if not key.startswith(ERASURES)]
        later = await self._reader.get(KEY)  # a range archived meanwhile was claimed in this head before
        end = DocumentCodec(KEY, "").decode(later.body, Limits()).position if isinstance(later, Stored) else 0
        check_end(ranges_of(archive), end)
        return Verdict(
            DOCUMENT, state.position, len(state.jobs), state_digest(state), archived=len(archive), notes=notes
        )

    async def _ring(self, ring: RingHead) -> Verdict:
        """Verify every shard, one after the other, and that no zone is in two of them."""
        verdicts: list[Verdict] = []
        zones: Counter[str] = Counter()
        for token in range(ring.shards):
            prefix = shard_prefix(token)
            verifier = Verifier(PrefixedStore(self._store, prefix), self._env)
            self._progress("checking the shards", token, ring.shards)
            try:
                verdict = await verifier.verify()
            except InvalidInputError as error:
                raise CorruptQueueError(f"{prefix}/{KEY}", "is missing: it was deleted. Restore it") from error
            except CorruptQueueError as error:
                raise CorruptQueueError(f"{prefix}/{error.key}", error.problem) from error
            if verifier.shard_of != token:
                raise CorruptQueueError(
                    f"{prefix}/{KEY}", f"this is not shard {token} of a ring: it was moved or replaced"
                )
            verdicts.append(verdict)
            zones.update(verifier.zones)
        # A zone that ran empty in one shard may have come back in another between two reads.
        twice = tuple(
            f"the zone {zone!r} was seen in {count} shards, if it was not emptied meanwhile: look again"
            for zone, count in zones.items()
            if count > 1
        )
        return Verdict(
            RING,
            sum(one.position for one in verdicts),
            sum(one.jobs for one in verdicts),
            hashlib.sha256("".join(one.digest for one in verdicts).encode()).hexdigest(),
            sum(one.segments for one in verdicts),
            sum(one.snapshots for one in verdicts),
            sum(one.replayed for one in verdicts),
            sum(one.fences for one in verdicts),
            sum(one.archived for one in verdicts),
            tuple(f"{shard_prefix(token)}: {note}" for token, one in enumerate(verdicts) for note in one.notes) + twice,
            ring.shards,
        )

    async def _log(self) -> Verdict:
        for _ in range(PASSES_MAX):
            head = await self._head.read()
            try:
                return await self._pass(head)
            except CorruptQueueError:
                later = await self._head.read()
                # A missing object may have been collected meanwhile: then start again, from where the queue begins now.
                if _shape(later) == _shape(head):
                    raise
        raise StorageError("the queue was collected faster than it could be read; try again, or stop its processes")

    async def _pass(self, head: LogHead) -> Verdict:
        walk = Walk(head)
        found = [key async for key in self._keys(SEGMENTS)]
        listed = [key for key in found if segment_position(key) is not None]
        end = max(walk.reaches, head.floor, *(segment_position(key) or 0 for key in listed[-1:]))
        total = end - head.floor + len(walk.refs) + 1
        await self._checkpoints(walk, total)
        while walk.position < end:
            first = walk.position + 1
            slots = range(first, min(first + READ_AHEAD, end + 1))
            reads = await asyncio.gather(*(self._reader.get(segment_key(slot)) for slot in slots))
            bodies = [read.body for read in reads if isinstance(read, Stored)]
            staged = await self._reader.staged(bodies)
            for slot, read in zip(slots, reads, strict=True):
                if not isinstance(read, Stored):
                    raise CorruptQueueError(
                        segment_key(slot),
                        "the segment is missing, and others build on it. Restore it from a backup or an older version",
                    )
                walk.step(read.body, staged)
                if walk.ref is not None and walk.ref.position == slot:
                    await self._checkpoints(walk, total)
            self._progress("replaying segments", walk.steps, total)
        state, tip = walk.finish()
        await self._fences(head, tip)
        archive = await self._archive(head, walk)
        self._progress("done", total, total)
        self.shard_of = None if state.ring is None else state.ring.token
        self.zones = tuple(state.zone_jobs.keys() | state.zone_leases.keys())
        return Verdict(
            LOG,
            state.position,
            len(state.jobs),
            state_digest(state),
            segments=end - head.floor,
            snapshots=len(walk.refs),
            replayed=walk.replayed,
            fences=len(tip.fences),
            archived=archive,
            notes=await self._notes(head, tip, listed) + _foreign(found) + await self._blobs(state),
        )

    async def _checkpoints(self, walk: Walk, total: int) -> None:
        """Check every snapshot of this position. Those below the floor, if any, are only read."""
        while (ref := walk.ref) is not None and ref.position <= walk.position:
            self._progress("reading snapshots", walk.steps, total)
            restored = await self._reader.restore(ref, queue_id=self._head.queue_id, limits=LIMITS)
            if restored is None:
                raise await self._reader.missing_of(ref, queue_id=self._head.queue_id)
            walk.checkpoint(*restored)

    async def _fences(self, head: LogHead, tip: Tip) -> None:
        """Check the fences below the floor; those above it were part of the walk."""
        collected = [position for position in tip.fences if position <= head.floor]
        for start in range(0, len(collected), READ_AHEAD):
            slots = collected[start : start + READ_AHEAD]
            reads = await asyncio.gather(*(self._reader.get(segment_key(slot)) for slot in slots))
            for slot, read in zip(slots, reads, strict=True):
                if not isinstance(read, Stored):
                    raise CorruptQueueError(
                        segment_key(slot),
                        "this fence is missing: a process that held the queue before it, and slept since, could write "
                        "here and believe it. Restore it from a backup, or make sure that every process from before "
                        "it has ended",
                    )

    async def _archive(self, head: LogHead, walk: Walk) -> int:
        """Check the archive's names, and the objects that the kept log covers. Returns the number of objects."""
        self._progress("checking the archive", walk.steps, walk.steps)
        keys = [key async for key in self._keys(ARCHIVE) if not key.startswith(ERASURES)]
        later = await self._head.read()  # a range archived meanwhile was claimed in this head before
        ranges = ranges_of(keys)
        check_end(ranges, max(later.archived_to, later.archiving or 0))
        there, self._unread = set(keys), 0
        kept = [hour for hour, _ in filter(None, map(parse_key, keys))]
        for hour, range_, some in expected(ranges, walk.finished, after=walk.knows_from or 0, end=head.archived_to):
            if hour < min(kept):
                continue  # expired
            names = [archive_key(hour, range_, form) for form in Form]
            listed = [key for key in names if key in there] or names  # a listing proves nothing
            found = [await self._compare(key, some) for key in self._readable(listed)]
            if not any(found):
                raise CorruptQueueError(listed[0], f"this part of the archive is missing. {RESTORE}")
        return len(keys)

    def _readable(self, keys: list[str]) -> list[str]:
        """Those that can be compared here: lines are enough where Parquet cannot be read."""
        lines = [key for key in keys if form_of(key) is Form.LINES]
        if parquet.is_installed() or not lines:
            return keys
        self._unread += len(keys) - len(lines)
        return lines

    async def _compare(self, key: str, finished: list[Finished]) -> bool:
        """False if there is no such object.

        Raises:
            CorruptQueueError: it does not hold what the log says.
            NotInstalledError: it is Parquet, and pyarrow is not installed.
        """
        read = await self._reader.get(key)
        if not isinstance(read, Stored):
            return False
        if not holds(key, read.body, finished) and not await holds_the_rest(
            self._store, self._env.patience, key, read.body, finished
        ):
            raise CorruptQueueError(key, f"this part of the archive is not what the log says. {RESTORE}")
        return True

    async def _notes(self, head: LogHead, tip: Tip, listed: list[str]) -> tuple[str, ...]:
        fences = {segment_key(position) for position in tip.fences}
        waiting = [key for key in listed if key <= segment_key(head.floor) and key not in fences]
        named = {ref.key for ref in Walk(head).refs}
        unnamed = [key async for key in self._keys(SNAPSHOTS) if snapshot_of(key) not in named]
        notes = []
        if waiting:
            notes.append(f"{len(waiting)} segments up to the floor are yet to be deleted")
        if self._unread:
            notes.append(f"{self._unread} objects of the archive are Parquet, and only their lines were read")
        if unnamed:
            notes.append(f"{len(unnamed)} snapshots that the head does not name are yet to be deleted")
        return tuple(notes)

    async def _blobs(self, state: State) -> tuple[str, ...]:
        """Check large payloads. A missing one may have gone with its job meanwhile: only a second run can say."""
        needed = {job.spec.blob: job for job in state.jobs.values() if job.spec.blob is not None}
        there = {key async for key in self._keys(BLOBS)}
        notes = [
            f"{key} is missing: the payload of job {job.id}, unless that was finished while this ran"
            for key, job in needed.items()
            if key not in there
        ]
        if spare := there - needed.keys():
            notes.append(f"{len(spare)} objects below {BLOBS} belong to no job, and are swept when they are old")
        return tuple(notes)

    async def _keys(self, prefix: str) -> AsyncIterator[str]:
        async for key in self._store.list(prefix):
            yield key


def _foreign(found: list[str]) -> tuple[str, ...]:
    return tuple(f"{key} is no segment: another program put it there" for key in found if segment_position(key) is None)


def _shape(head: LogHead) -> tuple[object, ...]:
    return head.floor, head.kept, head.snapshot, head.epoch
