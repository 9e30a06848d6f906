"""Large payloads are stored next to the queue, each in its own object; the job carries the object's name.

The object is created before the job and deleted after it: a visible job has its payload. An enqueue that fails in
between leaves an orphan, which takes up space until the next sweep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from casque.codec.blobs import blob_key, is_blob, missing_blob
from casque.environment import Environment
from casque.errors import CasqueError, CorruptQueueError, InvalidInputError, StorageError, UnknownOutcomeError
from casque.journal.tries import Tries
from casque.storage.port import Store, Stored
from casque.telemetry import logger
from casque.types import JobRecord, JobSpec

log = logger("blobs")

PASSING = ("staged/", "admissions/")
"""Besides payloads, objects that an admission leaves behind. A name in a job cannot cause any other object to be
deleted."""
AT_ONCE = 8
"""Objects written or read at once. Each is held whole in memory."""


class Blobs:
    """Writes, reads and deletes the payloads of one queue that are too large for its commits."""

    def __init__(self, store: Store, env: Environment, *, tolerant: bool = False) -> None:
        self._store = store
        self.tolerant = tolerant
        """True if jobs may be read without their payloads, by callers that notice the error when they access one."""
        self._env = env
        self._payload_max = env.settings.payload_max

    def concerns(self, specs: Iterable[JobSpec]) -> bool:
        """True if any payload is too large for a commit."""
        largest = self._payload_max
        return any(len(spec.payload) > largest for spec in specs)

    async def put(self, specs: Sequence[JobSpec]) -> tuple[JobSpec, ...]:
        """The same jobs, with large payloads stored and named.

        Raises:
            InvalidInputError: a payload exceeds the limit. Nothing was written.
            StorageError: they could not be stored. Nothing was enqueued.
        """
        for spec in specs:
            if len(spec.payload) > self._env.settings.blob_max:
                raise InvalidInputError(
                    f"payload must be at most {self._env.settings.blob_max:,} bytes, not {len(spec.payload):,}; "
                    "raise blob_max, or keep it elsewhere and enqueue its address"
                )
        put = [self._named(spec) if len(spec.payload) > self._payload_max else spec for spec in specs]
        large = [(named.blob, spec.payload) for named, spec in zip(put, specs, strict=True) if named.blob is not None]
        try:
            for start in range(0, len(large), AT_ONCE):
                await asyncio.gather(*(self._create(key, body) for key, body in large[start : start + AT_ONCE]))
        except CasqueError as error:
            await self.drop(key for key, _ in large)
            if isinstance(error, UnknownOutcomeError):
                raise StorageError(f"a large payload could not be stored, and nothing was enqueued: {error}") from error
            raise
        return tuple(put)

    async def fetch(self, records: Sequence[JobRecord]) -> list[JobRecord | CorruptQueueError | StorageError]:
        """The same jobs with their payloads; an error in the place of a job whose payload is missing, or could not be
        read after all retries."""
        fetched: list[JobRecord | CorruptQueueError | StorageError] = []
        for start in range(0, len(records), AT_ONCE):
            fetched += await asyncio.gather(*map(self._filled, records[start : start + AT_ONCE]))
        return fetched

    async def drop(self, keys: Iterable[str | None]) -> None:
        """Delete these; a later sweep deletes those that fail."""
        doomed = [key for key in keys if key is not None and (is_blob(key) or key.startswith(PASSING))]
        gone = await asyncio.gather(*map(self._store.delete, doomed), return_exceptions=True)
        for key, error in zip(doomed, gone, strict=True):
            if isinstance(error, CasqueError):
                log.warning("%s could not be deleted; a sweep will delete it: %s", key, error)
            elif isinstance(error, Exception):
                # The operation itself has succeeded: no caller may take this for a failure of its call.
                log.error("%s could not be deleted; a sweep will delete it", key, exc_info=error)
            elif error is not None:
                raise error

    def _named(self, spec: JobSpec) -> JobSpec:
        # A new name for every attempt: an object without a job can be deleted without checking for other users.
        key = blob_key(spec.id, self._env.clock.wall_ms(), self._env.rng)
        return msgspec.structs.replace(spec, payload=b"", blob=key, blob_bytes=len(spec.payload))

    async def _create(self, key: str, body: bytes) -> None:
        tries = Tries(f"the creation of {key}", self._env.patience)
        # Won, or lost to an earlier attempt of our own: the name is unique.
        while await tries.attempt(lambda: self._store.create(key, body)) is None:
            pass

    async def _filled(self, record: JobRecord) -> JobRecord | CorruptQueueError | StorageError:
        key = record.spec.blob
        if key is None:
            return record
        if not is_blob(key):
            return missing_blob(record)
        try:
            read = await self._env.patience().insist(lambda: self._store.get(key))
        except StorageError as error:
            return error
        if not isinstance(read, Stored) or len(read.body) != record.spec.blob_bytes:
            return missing_blob(record)
        spec = msgspec.structs.replace(record.spec, payload=read.body, blob=None, blob_bytes=0)
        return msgspec.structs.replace(record, spec=spec)
