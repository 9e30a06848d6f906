"""A ring's record of an admission while it is carried out, shard by shard: which rows go where, decided once.

    <root>/admissions/<source>.json           the last batch of a source, and while it is not done its shares
    <root>/admissions/<source>/<batch>-<...>  the share of each row, immutable

The jobs themselves stay in the parts staged next to the ring until the batch is done. So any process can complete a
batch that was begun, however much later and whatever has happened to the ring.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable

import msgspec

from casque.clock import new_nonce
from casque.codec.archive import hour_of
from casque.codec.blobs import BLOBS, blob_hour
from casque.codec.head import UNREADABLE
from casque.codec.staged import STAGED, StagedJobs, staged_hour
from casque.engine.blobs import Blobs
from casque.engine.staging import Staging
from casque.environment import Environment
from casque.errors import CasqueError, CorruptQueueError
from casque.journal.sweeper import AGE_MS, Suspects
from casque.journal.tries import Tries
from casque.storage.port import Outcome, Read, Store, Stored, Won
from casque.types import JobRecord, JobSpec, JobState, StagedPart

ADMISSIONS = "admissions/"
SHARE_BYTES_MAX = 9
"""Size of an integer, and of the length of a list, in MessagePack."""
SWEEP_MS = 6 * 3600 * 1000
"""Between sweeps for parts that will never be admitted."""
NOWHERE = -1
"""The share of a row that is skipped."""


class Share(msgspec.Struct, frozen=True):
    """Rows that one shard admits together."""

    number: int
    """At first, that of the shard; a share that was reassigned gets the next free number."""
    shard: int
    generation: int
    """Generation of the ring by which it was decided: creating a zone requires the newest one."""


class Batch(msgspec.Struct, frozen=True):
    """A batch of a source. Stored: new fields always have defaults."""

    source: str
    batch: int
    writer: str = ""
    """Two writers must never produce the same bytes."""
    done: bool = False
    parts: tuple[StagedPart, ...] = ()
    assigned: str = ""
    """The object that names the share of each row."""
    shares: tuple[Share, ...] = ()
    jobs: int = 0
    """Number of added jobs, once it is done."""
    skipped: int = 0
    """Number of skipped jobs: until it is done, those that are in no share."""
    refused: int = -1
    """A later batch that was refused before it was begun. Concurrent attempts at it find this version of the book
    instead
    of the one that they read, and end as well."""

    def name(self, share: Share) -> str:
        """The name of this source in a shard. The same for every batch: shards remember a limited number of names."""
        return f"{self.source}#{share.number}"


class Found(msgspec.Struct, frozen=True):
    batch: Batch
    etag: str


class Books:
    """The ring's records of admissions, next to its root."""

    def __init__(self, store: Store, beside: Callable[[int], Staging], env: Environment) -> None:
        """`beside` writes parts next to a shard, whichever broker leads it."""
        self._store = store
        self._beside = beside
        self._env = env
        self._clock = env.clock
        self._staging = Staging(store, env)
        self._blobs = Blobs(store, env)
        self._sweep_at_ms = env.clock.monotonic_ms()
        self._suspects = Suspects(env.clock)

    async def read(self, source: str) -> Found | None:
        key = _key(source)
        read = await self._get(key)
        return Found(_decoded(key, read.body), read.etag) if isinstance(read, Stored) else None

    async def write(self, batch: Batch, known: Found | None) -> bool:
        """Replace the known version; False if another process was faster."""
        key, body = _key(batch.source), _encode(msgspec.structs.replace(batch, writer=new_nonce(self._env.rng)))
        tries = Tries(f"the change of {key}", self._env.patience)
        while True:
            outcome = await tries.attempt(lambda: self._put(key, body, known))
            if isinstance(outcome, Won):
                return True
            if outcome is not None:
                read = await self._get(key)
                return isinstance(read, Stored) and read.body == body

    async def _put(self, key: str, body: bytes, known: Found | None) -> Outcome:
        if known is None:
            return await self._store.create(key, body)
        return await self._store.replace(key, body, expected=known.etag)

    # --- Rows ---

    async def assign(self, batch: Batch, assigned: list[list[int]]) -> str:
        """Store the share of each row of each part."""
        key = f"{_folder(batch)}{batch.batch}-{new_nonce(self._env.rng)}"
        body = zlib.compress(msgspec.msgpack.encode(assigned), 1)
        tries = Tries(f"the creation of {key}", self._env.patience)
        while await tries.attempt(lambda: self._store.create(key, body)) is None:
            pass
        return key

    async def assigned(self, batch: Batch) -> list[list[int]]:
        read = await self._get(batch.assigned)
        if not isinstance(read, Stored):
            raise CorruptQueueError(batch.assigned, "a batch that was begun names it, and it is gone. Restore it")
        return _shares(batch, read.body)

    async def columns(self, parts: tuple[StagedPart, ...], *, begun: bool = False) -> list[StagedJobs]:
        """The jobs of staged parts. Those of a batch that was begun are kept, however old they are."""
        return await self._staging.columns(parts, however_old=begun)

    async def stage(self, shard: int, jobs: StagedJobs) -> StagedPart:
        """Stage jobs next to the shard that admits them."""
        return await self._beside(shard).put(await self._filled(jobs), "ring")

    async def _filled(self, jobs: StagedJobs) -> StagedJobs:
        """The same with their large payloads, which belong next to the shard."""
        if jobs.blobs is None or not any(jobs.blobs):
            return jobs
        sizes = jobs.blob_bytes if isinstance(jobs.blob_bytes, list) else [jobs.blob_bytes] * len(jobs)
        payloads = list(jobs.payloads) if isinstance(jobs.payloads, list) else [jobs.payloads] * len(jobs)
        large = [row for row, blob in enumerate(jobs.blobs) if blob is not None]
        specs = [JobSpec(jobs.ids[row], "", b"", blob=jobs.blobs[row], blob_bytes=sizes[row]) for row in large]
        found = await self._blobs.fetch([JobRecord(spec, 0, 0, JobState.READY, 0) for spec in specs])
        for row, record in zip(large, found, strict=True):
            if isinstance(record, CasqueError):
                raise record
            payloads[row] = record.spec.payload
        return msgspec.structs.replace(jobs, payloads=payloads, blobs=None, blob_bytes=0)

    # --- Afterwards ---

    async def tidy(self, batch: Batch, columns: list[StagedJobs]) -> None:
        """Delete objects that are no longer needed: those of a finished batch, and now
        and then those never admitted."""
        blobs = [blob for jobs in columns for blob in jobs.blobs or () if blob is not None]
        # Only those of this batch: another process may have begun the next one.
        assigned = [key async for key in self._store.list(f"{_folder(batch)}{batch.batch}-")]
        await self._blobs.drop([*(part.key for part in batch.parts), *blobs, *assigned])
        if self._clock.monotonic_ms() >= self._sweep_at_ms:
            self._sweep_at_ms = self._clock.monotonic_ms() + SWEEP_MS
            await self._sweep()

    async def _sweep(self) -> None:
        """As shards do with their own parts, and only while no batch is under way that may need them."""
        async for key in self._store.list(ADMISSIONS):
            if key.endswith(".json"):
                read = await self._get(key)
                if isinstance(read, Stored) and not _decoded(key, read.body).done:
                    return
        begins = hour_of(self._clock.wall_ms() - AGE_MS)
        old = await self._older(STAGED, staged_hour, begins) + await self._older(BLOBS, blob_hour, begins)
        await self._blobs.drop(self._suspects.convicted(old))

    async def _older(self, prefix: str, hour: Callable[[str], str], begins: str) -> list[str]:
        found: list[str] = []
        async for key in self._store.list(prefix):
            if hour(key) >= begins:
                break
            found.append(key)
        return found

    async def _get(self, key: str) -> Read:
        return await self._env.patience().insist(lambda: self._store.get(key))


def _shares(batch: Batch, body: bytes) -> list[list[int]]:
    """The share of each row. A few bytes could unpack to any number of rows: stop at the number of rows needed."""
    rows = [part.jobs for part in batch.parts]
    most = sum(rows) * SHARE_BYTES_MAX + len(rows) * SHARE_BYTES_MAX + SHARE_BYTES_MAX
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(body, most)
        if not unpacking.eof:
            raise CorruptQueueError(batch.assigned, "it unpacks to more than the batch has rows, or is cut. Restore it")
        assigned = msgspec.msgpack.decode(unpacked, type=list[list[int]])
    except (zlib.error, msgspec.DecodeError) as error:
        raise CorruptQueueError(batch.assigned, f"these are no shares of rows ({error}). Restore it") from error
    if [len(shares) for shares in assigned] != rows:
        raise CorruptQueueError(batch.assigned, "it is not about the rows of its batch. Restore it")
    return assigned


def _hash(source: str) -> str:
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _folder(batch: Batch) -> str:
    return f"{ADMISSIONS}{_hash(batch.source)}/"


def _key(source: str) -> str:
    return f"{ADMISSIONS}{_hash(source)}.json"


def _encode(batch: Batch) -> bytes:
    return msgspec.json.format(msgspec.json.encode(batch), indent=1) + b"\n"


def _decoded(key: str, body: bytes) -> Batch:
    try:
        return msgspec.json.decode(body, type=Batch)
    except UNREADABLE as error:
        raise CorruptQueueError(key, f"this is no batch of a source ({error}). Restore it from a backup") from error
