"""Copies a queue to another location while it is in use, as of one moment.

The source is read like by any reader, and never written. The target gets the state as one snapshot (or one document),
the separate payloads and the archive up to the same moment, and `queue.json` last: an interrupted copy is no queue. The
copy has its own id and no leader, so that clients of the original cannot confuse the two. It leaves out the history of
the log, which only the original has.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from casque.clock import new_id, new_nonce
from casque.codec.archive import ARCHIVE, parse_key
from casque.codec.blobs import BLOBS
from casque.codec.digest import state_digest
from casque.codec.document import LAYOUT as DOCUMENT
from casque.codec.document import DocumentCodec
from casque.codec.head import FORMAT, KEY, RING, read_layout
from casque.codec.log import LAYOUT as LOG
from casque.codec.log import LogHead, Tip, View, decode_head, digest, encode_head
from casque.codec.ring import RingHead, decode_ring, encode_ring, shard_prefix
from casque.codec.staged import STAGED
from casque.environment import Environment
from casque.errors import (
    CorruptQueueError,
    InvalidInputError,
    QueueReplacedError,
    StorageError,
    UnsafeStoreError,
)
from casque.journal.erasing import ERASURES
from casque.journal.log import LogJournal
from casque.journal.log.reader import Reader
from casque.journal.log.snapshots import SnapshotWriter
from casque.journal.tries import Tries
from casque.state import Limits, State
from casque.storage.port import Store, Stored, Won, locate
from casque.storage.prefixed import PrefixedStore

Progress = Callable[[str, int, int], None]

LIMITS = Limits(finished=True)
PASSES_MAX = 20
"""How often reading restarts because objects were removed, or moved, meanwhile."""
LIFT = 1_000_000_000
"""A queue restored in its old location skips this many positions: a process that still has the lost queue open would
otherwise put its next commit where the restored one expects its own. This way the commit falls below the floor, and the
process learns from the head that its queue is gone."""
AT_ONCE = 16
SHARDS_AT_ONCE = 8
ADMISSIONS = "admissions/"
WRITERS = "writers/"
"""The checkpoints under which Spark streams enqueue."""


class Copied(msgspec.Struct, frozen=True):
    """A copied queue, read back and compared."""

    layout: str
    position: int
    jobs: int
    digest: str
    """Digest of everything it holds: the same in the original at that moment."""
    objects: int
    """Payloads, parts of the archive and other separate objects."""
    shards: int = 0
    """For a ring; all other numbers are sums over its shards."""


class _Moment(msgspec.Struct, frozen=True):
    """A queue at one moment, and where its archive ended then."""

    layout: str
    state: State
    archived: int
    archiving: int | None

    @property
    def blobs(self) -> set[str]:
        return {job.spec.blob for job in self.state.jobs.values() if job.spec.blob is not None}


class Copier:
    """Copies one queue, in any layout, to an empty location."""

    def __init__(
        self,
        source: Store,
        target: Store,
        env: Environment,
        *,
        progress: Progress | None = None,
        lift: int = 0,
    ) -> None:
        """`lift`: positions that the log of the copy skips, see `LIFT`."""
        self._source = source
        self._lift = lift
        self._target = target
        self._env = env
        self._progress = progress or (lambda _what, _done, _total: None)
        self._copied: set[str] = set()
        self._missed: set[str] = set()
        """Payloads that an earlier pass did not find."""
        self._shards: dict[int, Copier] = {}

    async def copy(self) -> Copied:
        """
        Raises:
            InvalidInputError: there is no queue, or something is at the target.
            CorruptQueueError: the source is damaged. What was written at the target is no queue.
            StorageError: a store failed, or the source changed too fast.
        """
        layout = read_layout(KEY, (await self._read()).body, locate(self._source, KEY)).layout
        async for key in self._target.list():
            raise InvalidInputError(
                f"{locate(self._target, key)} is in the way: a queue is copied to a place where nothing is. Name "
                "another one, or remove what is there if it is left from a copy that was interrupted"
            )
        return await (self._copy_ring() if layout == RING else self._copy_single())

    # --- One queue ---

    async def _copy_single(self) -> Copied:
        self._progress("reading the queue", 0, 1)
        moment = await self._caught()
        await self.copy_beside(moment)
        self._progress("writing the queue", 0, 1)
        result = await self.write(moment)
        self._progress("done", 1, 1)
        return result

    async def _caught(self) -> _Moment:
        """A moment whose payloads are all copied: a job that ends meanwhile takes its payload with it."""
        for _ in range(PASSES_MAX):
            moment = await self.load()
            if await self.copy_blobs(moment):
                return moment
        raise _too_fast()

    async def load(self) -> _Moment:
        """The queue as it is now, with the end of its archive at the same moment."""
        for _ in range(PASSES_MAX):
            before = await self._read()
            head = read_layout(KEY, before.body, locate(self._source, KEY))
            if head.layout == DOCUMENT:
                state = DocumentCodec(KEY, "").decode(before.body, LIMITS)
                return _Moment(DOCUMENT, state, state.archived, state.archiving)
            if head.layout != LOG:
                raise CorruptQueueError(KEY, f"the layout {head.layout!r} is none that this release knows")
            try:
                journal = LogJournal(self._source, self._env, limits=LIMITS)
                state = await self._env.patience().insist(journal.load)
            except (CorruptQueueError, QueueReplacedError):
                # The queue may have been converted or collected during the read; otherwise it is damaged.
                if (await self._read()).etag == before.etag:
                    raise
                continue
            first, then = decode_head(KEY, before.body), await self._read()
            if read_layout(KEY, then.body).queue_id != head.queue_id:
                continue
            last = decode_head(KEY, then.body)
            if (first.archived_to, first.archiving) == (last.archived_to, last.archiving):
                state.shed(last.archived_to)
                return _Moment(LOG, state, last.archived_to, last.archiving)
        raise _too_fast()

    async def copy_blobs(self, moment: _Moment) -> bool:
        """True if all of them existed. A payload may go with its job after the moment.

        Raises:
            CorruptQueueError: one was missing before the moment already, whose job is in the queue all the same.
        """
        missing = await self._copy_all(sorted(moment.blobs), "copying payloads")
        lost = self._missed.intersection(missing)
        for job in moment.state.jobs.values() if lost else ():
            if job.spec.blob in lost:
                raise CorruptQueueError(
                    job.spec.blob,
                    f"the payload of job {job.id} is missing: it was deleted. Restore the object, or cancel or purge "
                    "the job, and copy the queue again",
                )
        self._missed.update(missing)
        return not missing

    async def copy_beside(self, moment: _Moment) -> None:
        """Copy objects that may disappear without harm: expired parts of the archive, staged jobs."""
        archive = [key async for key in self._source.list(ARCHIVE)]
        kept = [
            key
            for key in archive
            if key.startswith(ERASURES)
            or ((parsed := parse_key(key)) is not None and parsed[1].last <= moment.archived)
        ]
        await self._copy_all(kept, "copying the archive")
        for folder in (STAGED, WRITERS):
            await self._copy_all([key async for key in self._source.list(folder)], f"copying {folder}")

    async def write(self, moment: _Moment) -> Copied:
        """Write the state, and `queue.json` last."""
        state = moment.state
        before, finished = state_digest(state), tuple(state.finished)
        if moment.layout == DOCUMENT:
            queue_id = new_id(self._env.rng)
            codec = DocumentCodec(KEY, queue_id)
            codec.touch(job.spec.id for job in state.listed())
            body = codec.encode(state, version=state.position, writers=state.writers, archiving=moment.archiving)
            after = DocumentCodec(KEY, "").decode(body, LIMITS)
        else:
            body, after = await self._as_log(moment)
        if (state_digest(after), tuple(after.finished)) != (before, finished):
            raise UnsafeStoreError("what was written at the target does not read back; run `casque doctor` on it")
        await self._put(KEY, body)
        return Copied(moment.layout, state.position, len(state.jobs), before, len(self._copied))

    async def _as_log(self, moment: _Moment) -> tuple[bytes, State]:
        state, queue_id = moment.state, new_id(self._env.rng)
        state.position = max(state.position, 1) + self._lift  # a floor of 0 would mean that the log starts empty
        state.unname(state.position)  # the jobs are in the snapshot
        view = View.of(state, Tip(chain=digest(queue_id.encode())))
        ref = await SnapshotWriter(self._target, self._env).write(queue_id, view)
        if ref is None:
            raise StorageError("the target did not take the snapshot; what is there is no queue. Try again")
        restored = await Reader(self._target, self._env.patience).restore(ref, queue_id=queue_id, limits=LIMITS)
        if restored is None:
            raise UnsafeStoreError(f"{ref.key} was written at the target and is not there; run `casque doctor` on it")
        head = LogHead(
            format=FORMAT,
            queue_id=queue_id,
            version=1,
            writer=new_nonce(self._env.rng),
            snapshot=ref,
            floor=ref.position,
            archived=moment.archived,
            archiving=moment.archiving,
        )
        return encode_head(head), restored[0]

    # --- A ring ---

    async def _copy_ring(self) -> Copied:
        # Before the shards: an admission under way can then be completed in the copy, shard by shard.
        for folder in (ADMISSIONS, STAGED, BLOBS, WRITERS):
            await self._copy_all([key async for key in self._source.list(folder)], f"copying {folder}")
        for _ in range(PASSES_MAX):
            ring = decode_ring((await self._read()).body)
            shards = [self._shard(token) for token in range(ring.shards)]  # the same ones in every pass
            moments = await self._load_shards(shards)
            complete = [await shard.copy_blobs(moment) for shard, moment in zip(shards, moments, strict=True)]
            after = decode_ring((await self._read()).body)
            if all(complete) and _sizes(after) == _sizes(ring) and not _twice(moments):
                return await self._write_ring(ring, shards, moments)
        raise _too_fast()

    async def _load_shards(self, shards: list[Copier]) -> list[_Moment]:
        """All at about the same time: a zone that ran empty in one shard may come back in another."""
        moments: list[_Moment] = []
        for start in range(0, len(shards), SHARDS_AT_ONCE):
            self._progress("reading the shards", start, len(shards))
            moments += await asyncio.gather(*(shard.load() for shard in shards[start : start + SHARDS_AT_ONCE]))
        return moments

    async def _write_ring(self, ring: RingHead, shards: list[Copier], moments: list[_Moment]) -> Copied:
        copies = []
        for token, (shard, moment) in enumerate(zip(shards, moments, strict=True)):
            self._progress("writing the shards", token, len(shards))
            await shard.copy_beside(moment)
            copies.append(await shard.write(moment))
        head = msgspec.structs.replace(ring, queue_id=new_id(self._env.rng), version=1, writer=new_nonce(self._env.rng))
        await self._put(KEY, encode_ring(head))
        self._progress("done", 1, 1)
        return Copied(
            RING,
            sum(one.position for one in copies),
            sum(one.jobs for one in copies),
            hashlib.sha256("".join(one.digest for one in copies).encode()).hexdigest(),
            len(self._copied) + sum(one.objects for one in copies),
            ring.shards,
        )

    def _shard(self, token: int) -> Copier:
        if token not in self._shards:
            prefix = shard_prefix(token)
            self._shards[token] = Copier(
                PrefixedStore(self._source, prefix),
                PrefixedStore(self._target, prefix),
                self._env,
                lift=self._lift,
            )
        return self._shards[token]

    # --- Objects ---

    async def _copy_all(self, keys: Iterable[str], what: str) -> list[str]:
        """Copy these objects; returns those that no longer exist."""
        wanted = [key for key in keys if key not in self._copied]
        missing: list[str] = []
        for start in range(0, len(wanted), AT_ONCE):
            self._progress(what, start, len(wanted))
            some = wanted[start : start + AT_ONCE]
            for key, there in zip(some, await asyncio.gather(*map(self._copy_one, some)), strict=True):
                if there:
                    self._copied.add(key)
                else:
                    missing.append(key)
        return missing

    async def _copy_one(self, key: str) -> bool:
        read = await self._env.patience().insist(lambda: self._source.get(key))
        if not isinstance(read, Stored):
            return False
        await self._put(key, read.body)
        return True

    async def _put(self, key: str, body: bytes) -> None:
        tries = Tries(f"the copy of {key}", self._env.patience)
        while (outcome := await tries.attempt(lambda: self._target.create(key, body))) is None:
            pass
        if isinstance(outcome, Won):
            return
        # An earlier attempt of our own, or an object that appeared after the first check.
        read = await self._env.patience().insist(lambda: self._target.get(key))
        if not isinstance(read, Stored) or read.body != body:
            raise InvalidInputError(f"{locate(self._target, key)} was written by another program meanwhile")

    async def _read(self) -> Stored:
        read = await self._env.patience().insist(lambda: self._source.get(KEY))
        if not isinstance(read, Stored):
            raise InvalidInputError(f"there is no queue here: {locate(self._source, KEY)} is missing")
        return read


def _sizes(ring: RingHead) -> tuple[object, ...]:
    return ring.queue_id, ring.generation, ring.sizes, ring.shards


def _twice(moments: list[_Moment]) -> bool:
    """True if a zone was seen in two shards: it moved between two reads."""
    zones = Counter(
        zone for moment in moments for zone in moment.state.zone_jobs.keys() | moment.state.zone_leases.keys()
    )
    return any(count > 1 for count in zones.values())


def _too_fast() -> StorageError:
    return StorageError("the queue changed faster than it could be read; try again when it is less busy")
