"""Jobs on their way to an admission: written as objects next to the queue, and read back before a commit names them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from casque.clock import yield_once
from casque.codec.archive import HOUR_MS, hour_of
from casque.codec.staged import (
    ADMITTED_BYTES_MAX,
    PART_BYTES_MAX,
    PART_JOBS_MAX,
    StagedJobs,
    checked,
    decode_columns,
    encode_staged,
    expanded_bytes,
    staged_hour,
    staged_key,
    staged_part,
)
from casque.engine.blobs import Blobs
from casque.environment import Environment
from casque.errors import CorruptQueueError, InvalidInputError, StorageError, UnknownOutcomeError
from casque.journal.staged import specs_of
from casque.journal.tries import Tries
from casque.state import Admit
from casque.storage.port import Read, Store, Stored
from casque.types import JobSpec, StagedPart

AGE_MAX_MS = 12 * HOUR_MS
"""Maximum age of parts to be admitted. They are swept at twice this age, to allow for clock differences."""
AT_ONCE = 8
SEVERAL = "stage_all makes several parts of them"


class Staging:
    """Writes and reads parts. Nothing here commits: parts that are never admitted are swept."""

    def __init__(self, store: Store, env: Environment) -> None:
        self._store = store
        self._env = env
        self._blobs = Blobs(store, env)

    async def put(self, jobs: StagedJobs, txn: str) -> StagedPart:
        """Store checked jobs as one part.

        Raises:
            InvalidInputError: they are too many, or too large. Nothing was enqueued.
            StorageError: the store kept failing. Objects already written have no effect.
        """
        if len(jobs) > PART_JOBS_MAX:
            raise InvalidInputError(f"one part holds at most {PART_JOBS_MAX:,} jobs, not {len(jobs):,}; {SEVERAL}")
        jobs = await self._with_blobs(jobs)
        body = encode_staged(jobs)
        if len(body) > PART_BYTES_MAX:
            raise InvalidInputError(f"one part holds at most {PART_BYTES_MAX:,} bytes, not {len(body):,}; {SEVERAL}")
        # A new name for every attempt: the caller of a successful one knows exactly what is stored there.
        key = staged_key(txn, self._env.clock.wall_ms(), self._env.rng)
        tries = Tries(f"the creation of {key}", self._env.patience)
        try:
            while await tries.attempt(lambda: self._store.create(key, body)) is None:
                pass
        except UnknownOutcomeError as error:
            raise StorageError(f"jobs could not be staged, and nothing was enqueued: {error}") from error
        return staged_part(key, jobs, body)

    async def _with_blobs(self, jobs: StagedJobs) -> StagedJobs:
        """The same jobs, with large payloads in separate objects, as in an enqueue."""
        largest = self._env.settings.payload_max
        every = jobs.payloads if isinstance(jobs.payloads, list) else [jobs.payloads] * len(jobs)
        if max(map(len, every)) <= largest:
            return jobs
        large = [row for row, payload in enumerate(every) if len(payload) > largest]
        put = await self._blobs.put([JobSpec(jobs.ids[row], "", every[row]) for row in large])
        payloads: list[bytes] = list(every)
        blobs: list[str | None] = [None] * len(jobs) if jobs.blobs is None else list(jobs.blobs)
        sizes = list(jobs.blob_bytes) if isinstance(jobs.blob_bytes, list) else [jobs.blob_bytes] * len(jobs)
        for row, spec in zip(large, put, strict=True):
            payloads[row], blobs[row], sizes[row] = spec.payload, spec.blob, spec.blob_bytes
        return msgspec.structs.replace(jobs, payloads=payloads, blobs=blobs, blob_bytes=sizes)

    # --- Reading back ---

    async def fetch(self, source: str, batch: int, parts: Sequence[StagedPart], *, skip_known: bool) -> Admit:
        """The command that admits them. An enqueue would accept each of their jobs.

        Raises:
            InvalidInputError: a part is too old, missing, changed, or invalid.
            StorageError: the store kept failing.
        """
        specs: list[JobSpec] = []
        ids: set[str] = set()
        keyed = fifo = False
        async with aclosing(self._each(parts)) as several:
            async for jobs in several:
                ids.update(jobs.ids)
                keyed = keyed or jobs.keys is not None
                fifo = fifo or jobs.fifo is not False
                specs += await specs_of(jobs)
        return Admit(source, batch, tuple(parts), specs, ids, keyed, skip_known, fifo=fifo)

    async def columns(self, parts: Sequence[StagedPart], *, however_old: bool = False) -> list[StagedJobs]:
        """The jobs of parts that another queue will admit.

        Raises:
            InvalidInputError: a part is too old, missing, changed, or invalid.
            StorageError: the store kept failing.
        """
        async with aclosing(self._each(parts, however_old=however_old)) as several:
            return [jobs async for jobs in several]

    async def _each(self, parts: Sequence[StagedPart], *, however_old: bool = False) -> AsyncGenerator[StagedJobs]:
        oldest = "" if however_old else hour_of(self._env.clock.wall_ms() - AGE_MAX_MS)
        for part in parts:
            if staged_hour(part.key) < oldest:
                raise InvalidInputError(
                    f"{part.key} was staged more than {AGE_MAX_MS // HOUR_MS} hours ago, by the hour in its name, and "
                    "may soon be deleted; nothing was admitted. Stage its jobs again"
                )
        expanded = 0
        for start in range(0, len(parts), AT_ONCE):
            some = parts[start : start + AT_ONCE]
            reads = await asyncio.gather(*map(self._get, some))
            for part, read in zip(some, reads, strict=True):
                jobs = _columns(part, read)
                await yield_once()
                _check(part, jobs)
                expanded += expanded_bytes(jobs)
                if expanded > ADMITTED_BYTES_MAX:
                    raise InvalidInputError(
                        f"{part.key}: with the parts before it, its jobs are more than {ADMITTED_BYTES_MAX:,} bytes, "
                        "each row counted by itself; nothing was admitted. Make several batches"
                    )
                await yield_once()
                yield jobs

    async def _get(self, part: StagedPart) -> Read:
        return await self._env.patience().insist(lambda: self._store.get(part.key))


def _columns(part: StagedPart, read: Read) -> StagedJobs:
    if not isinstance(read, Stored):
        raise InvalidInputError(
            f"{part.key} is not there: nothing was staged under this name, or it was deleted; nothing was admitted. "
            "Stage its jobs again"
        )
    try:
        return decode_columns(part, read.body)
    except CorruptQueueError as error:
        raise InvalidInputError(f"{error}; nothing was admitted") from error


def _check(part: StagedPart, jobs: StagedJobs) -> None:
    try:
        checked(jobs)
    except InvalidInputError as error:
        raise InvalidInputError(f"{part.key}: {error}; nothing was admitted") from error
