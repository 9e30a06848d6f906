"""Erases finished jobs from an archive: its objects are written again without them, in every form.

Only ranges that the queue calls archived: one that is still being written may get more objects. A process that slept
since may yet try to write an older one. It finds the name taken and loses, so an object is never deleted, and a form
that is missing is written, too; one without jobs stays, empty.

What was asked is recorded first, so that `verify` knows why jobs are missing, after a crash as well. Repeating an
erasure completes it. Two at once take turns by compare-and-set.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime

import msgspec

from casque.clock import new_nonce, yield_once
from casque.codec import parquet
from casque.codec.archive import (
    ARCHIVE,
    Form,
    Range,
    archive_key,
    archived_jobs,
    decode_archived,
    encode_lines,
    holds,
    parse_key,
)
from casque.codec.head import UNREADABLE
from casque.environment import Environment, Patience
from casque.errors import CorruptQueueError, StorageError
from casque.journal.tries import Tries
from casque.service import ArchivedJob
from casque.storage.port import Store, Stored, Won
from casque.types import Finished, from_ms

ERASURES = f"{ARCHIVE}erasures/"
"""Records lie beside the hours: a copy or a listing of the archive meets them without another request."""
EMPTY = b"\n"
"""Lines without a job: an object without a byte would look damaged."""

RACES_MAX = 20

Progress = Callable[[str, int, int], None]
Chooser = Callable[[ArchivedJob], bool]


class Erasure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked to be erased, when and by whom, and what came of it. Never what was erased."""

    at: datetime
    by: str
    zone: str | None = None
    ids: tuple[str, ...] = ()
    jobs: int = 0
    """Finishes that were erased."""
    objects: int = 0
    """Objects of the archive that were written again."""
    done: bool = False
    """False while it goes on, or if it died: ask again to complete it."""

    def chooser(self) -> Chooser:
        """Whether a job is one of those that are asked for."""
        ids, zone = frozenset(self.ids), self.zone
        return lambda job: job.id in ids or (zone is not None and job.zone == zone)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Erasure)


class Eraser:
    """Erases from the archive of one queue, or of one shard."""

    def __init__(self, store: Store, env: Environment, progress: Progress | None = None) -> None:
        self._store = store
        self._env = env
        self._progress = progress or (lambda _what, _done, _total: None)

    async def count(self, asked: Erasure, upto: int) -> tuple[int, int]:
        """How many finishes would be erased from ranges up to a position, and in how many hours and ranges."""
        found = [jobs async for _, _, jobs in self._affected(asked.chooser(), upto)]
        return sum(map(len, found)), len(found)

    async def erase(self, asked: Erasure, upto: int) -> Erasure:
        """
        Raises:
            CorruptQueueError: an object is not one of an archive. What came before it is erased.
            UnknownOutcomeError, StorageError: the store failed. Ask again to complete it.
        """
        key = f"{ERASURES}{asked.at:%Y%m%dT%H%M%S}-{new_nonce(self._env.rng)}.json"
        await self._write(key, None, _encoder.encode(asked))
        jobs = objects = 0
        async for hour, range_, found in self._affected(asked.chooser(), upto):
            objects += await self._rewrite(asked.chooser(), hour, range_)
            jobs += len(found)
        ended = msgspec.structs.replace(asked, jobs=jobs, objects=objects, done=True)
        read = await self._read(key)
        await self._write(key, read.etag if read is not None else None, _encoder.encode(ended))
        return ended

    async def _affected(self, takes: Chooser, upto: int) -> AsyncIterator[tuple[str, Range, set[tuple[str, int]]]]:
        """The hours and ranges that hold such jobs in any form, and these."""
        keys = [key async for key in self._store.list(ARCHIVE)]
        places = sorted({place for key in keys if (place := parse_key(key)) is not None and place[1].last <= upto})
        for number, (hour, range_) in enumerate(places):
            self._progress("reading the archive", number, len(places))
            found: set[tuple[str, int]] = set()
            for form in Form:
                read = await self._read(archive_key(hour, range_, form))
                if read is not None:
                    jobs = decode_archived(archive_key(hour, range_, form), read.body)
                    found |= {(job.id, job.position) for job in jobs if takes(job)}
                    await yield_once()
            if found:
                yield hour, range_, found
        self._progress("reading the archive", len(places), len(places))

    async def _rewrite(self, takes: Chooser, hour: str, range_: Range) -> int:
        """Write every form without these jobs. Returns the number of objects.

        First a form that is not there gets an object, so that no late writer of it brings them back. The others come
        last: as long as one of them holds such a job, repeating the erasure gets here again.
        """
        keys = {form: archive_key(hour, range_, form) for form in Form}
        there = {form: read for form, key in keys.items() if (read := await self._read(key)) is not None}
        if not there:
            return 0  # expired meanwhile
        written = 0
        for form in keys.keys() - there.keys():
            if form is Form.LINES or parquet.is_installed():
                one = next(iter(there))
                rest = [job for job in decode_archived(keys[one], there[one].body) if not takes(job)]
                if await self._write(keys[form], None, _body(form, hour, rest)):
                    written += 1
                else:
                    written += await self._replace(takes, form, hour, keys[form])
        for form in there:
            written += await self._replace(takes, form, hour, keys[form])
        return written

    async def _replace(self, takes: Chooser, form: Form, hour: str, key: str) -> int:
        for _ in range(RACES_MAX):
            if (read := await self._read(key)) is None:
                return 0  # expired meanwhile
            jobs = decode_archived(key, read.body)
            rest = [job for job in jobs if not takes(job)]
            if len(rest) == len(jobs):
                return 0
            if await self._write(key, read.etag, _body(form, hour, rest)):
                return 1
        raise StorageError(f"{key} was changed by others each time; try again")

    async def _read(self, key: str) -> Stored | None:
        read = await self._env.patience().insist(lambda: self._store.get(key))
        return read if isinstance(read, Stored) else None

    async def _write(self, key: str, etag: str | None, body: bytes) -> bool:
        """False if another process was faster. A lost reply is settled by reading back."""
        tries = Tries(f"the write of {key}", self._env.patience)
        while True:
            outcome = await tries.attempt(
                lambda: self._store.create(key, body) if etag is None else self._store.replace(key, body, expected=etag)
            )
            if outcome is not None:
                if isinstance(outcome, Won):
                    return True
                read = await self._read(key)
                return tries.sent and read is not None and read.body == body


def _body(form: Form, hour: str, jobs: list[ArchivedJob]) -> bytes:
    if form is Form.LINES:
        return encode_lines(jobs) or EMPTY
    parquet.require("the archive is Parquet")
    return parquet.file_of([parquet.batch_of(hour, jobs)])


def new_erasure(env: Environment, *, by: str, zone: str | None, ids: Iterable[str]) -> Erasure:
    return Erasure(at=from_ms(env.clock.wall_ms()), by=by, zone=zone, ids=tuple(dict.fromkeys(ids)))


async def erasures_of(store: Store, patience: Callable[[], Patience]) -> list[Erasure]:
    """All that were recorded, oldest first.

    Raises:
        CorruptQueueError: a record cannot be read.
    """
    found = []
    async for key in store.list(ERASURES):
        read = await patience().insist(lambda: store.get(key))  # noqa: B023
        if not isinstance(read, Stored):
            raise StorageError(f"{key} was listed and is not there")
        try:
            found.append(_decoder.decode(read.body))
        except UNREADABLE as error:
            raise CorruptQueueError(
                key, f"this is no record of an erasure ({error}). Restore it from a backup"
            ) from error
    return found


async def holds_the_rest(
    store: Store, patience: Callable[[], Patience], key: str, body: bytes, finished: Sequence[Finished]
) -> bool:
    """Whether an object lacks only those of these jobs that were erased on request."""
    erased = [one.chooser() for one in await erasures_of(store, patience)]
    if not erased:
        return False
    try:
        there = {(job.id, job.position) for job in decode_archived(key, body)}
    except CorruptQueueError:
        return False
    left = [
        one
        for one, job in zip(finished, archived_jobs(finished), strict=True)
        if (job.id, job.position) in there or not any(takes(job) for takes in erased)
    ]
    return holds(key, body, left)
