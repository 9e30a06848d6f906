"""Archiving for both layouts: when it is worth it, and how a range of positions is written to the archive."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from casque.clock import yield_once
from casque.codec import parquet
from casque.codec.archive import (
    ARCHIVE,
    FORMS,
    HOUR_MS,
    Form,
    Range,
    agree,
    archive_key,
    archived_bytes,
    archived_pieces,
    encode_lines,
    holds,
    hour_of,
    parse_key,
)
from casque.codec.blobs import is_blob
from casque.environment import Environment, Patience
from casque.errors import CorruptQueueError, StorageError
from casque.journal.erasing import holds_the_rest
from casque.journal.tries import Tries
from casque.settings import milliseconds
from casque.state import State
from casque.state.staged import position_of
from casque.storage.port import Store, Stored, Won
from casque.telemetry import logger
from casque.types import Finished, JobState

R = TypeVar("R")

log = logger("journal")

ARCHIVE_JOBS = 5_000
ARCHIVE_BYTES = 4 * 1024 * 1024
"""This many finished jobs, or this much in payloads and results, do not wait for the interval."""
RETENTION_MS = 10 * 60 * 1000
"""How often an archiving process looks for expired hours."""
DAY_MS = 24 * HOUR_MS
DELETED_AT_ONCE = 16

_at_ms = attrgetter("at_ms")


class ArchivePace:
    """Measures the finished jobs that are not archived yet, of all writers."""

    def __init__(self, env: Environment, *, jobs_max: int | None = None) -> None:
        self._clock = env.clock
        self._rng = env.rng
        self._interval_ms = milliseconds(env.settings.archive_interval)
        self._jobs_max = jobs_max
        self._since_ms: int | None = None
        self._slack = 1.0
        self._weighed = 0
        self._jobs = 0
        self._bytes = 0
        self.hurried = False
        """The queue is about to be closed: archive everything now."""

    def observe(self, state: State) -> None:
        finished = state.finished
        if not finished:
            self._since_ms = None
            self._jobs = self._bytes = 0
            return
        if self._since_ms is None:
            self.restart()
        if finished[-1].position > self._weighed:
            self._weigh(finished)

    def restart(self) -> None:
        """A pass begins, or was tried: measure the rest from here."""
        self._since_ms = self._clock.monotonic_ms()
        # Writers that share a queue see the same jobs finish: they must not all start at once.
        self._slack = 1 + self._rng.random() / 4
        self._jobs = self._bytes = 0

    @property
    def is_due(self) -> bool:
        due_ms = self.due_ms()
        return due_ms is not None and (self.hurried or self._clock.monotonic_ms() >= due_ms)

    def due_ms(self) -> int | None:
        """When, on the monotonic clock, there is something to archive."""
        if self._since_ms is None:
            return None
        if self._are_many or self._bytes >= ARCHIVE_BYTES:
            return self._since_ms
        return self._since_ms + int(self._interval_ms * self._slack)

    @property
    def _are_many(self) -> bool:
        """Enough by number, whatever their size."""
        return self._jobs >= (self._jobs_max or ARCHIVE_JOBS)

    def _weigh(self, finished: Sequence[Finished]) -> None:
        """A commit adds a few jobs to many: weigh only the new ones."""
        first = bisect_right(finished, self._weighed, key=position_of)
        self._jobs += len(finished) - first
        if not self._are_many:
            self._bytes += archived_bytes(finished[first:])
        self._weighed = finished[-1].position


class ArchiveRetention:
    """Deletes expired hours of an archive, now and then.

    A clock that is far ahead must not empty the archive. Within the life of this process, time is what the monotonic
    clock says has passed. Hours archived before it began are deleted only if the wall clock at its start is confirmed:
    by an hour that others archived within a day before, or by a day without a correction of the clock.
    """

    def __init__(self, store: Store, env: Environment) -> None:
        self._store = store
        self._clock = env.clock
        span = env.settings.archive_retention
        self._span_ms = None if span is None else milliseconds(span)
        self._next_ms = 0
        self._began_ms = env.clock.monotonic_ms()
        self._began_wall_ms = env.clock.wall_ms()
        self._borne_out = False

    async def apply(self) -> None:
        """
        Raises:
            StorageError: the store failed. What is left is for the next time.
        """
        if self._span_ms is None or self._clock.monotonic_ms() < self._next_ms:
            return
        self._next_ms = self._clock.monotonic_ms() + RETENTION_MS
        oldest = hour_of(self._now_ms() - self._span_ms)
        since = None if await self._is_borne_out() else f"{ARCHIVE}{hour_of(self._began_wall_ms)}"
        doomed: list[str] = []
        async for key in self._store.list(ARCHIVE, after=since):
            if (parsed := parse_key(key)) is None:
                continue
            if parsed[0] >= oldest:
                break
            doomed.append(key)
            if len(doomed) == DELETED_AT_ONCE:
                await asyncio.gather(*map(self._store.delete, doomed))
                doomed.clear()
        await asyncio.gather(*map(self._store.delete, doomed))

    def _now_ms(self) -> int:
        """Not later than a clock without steps would say."""
        passed_ms = self._clock.monotonic_ms() - self._began_ms
        return min(self._clock.wall_ms(), self._began_wall_ms + passed_ms)

    async def _is_borne_out(self) -> bool:
        if self._borne_out:
            return True
        if self._clock.monotonic_ms() - self._began_ms >= DAY_MS:
            self._borne_out = True
            return True
        began = hour_of(self._began_wall_ms)
        async for key in self._store.list(ARCHIVE, after=f"{ARCHIVE}{hour_of(self._began_wall_ms - DAY_MS)}"):
            if (parsed := parse_key(key)) is not None:
                self._borne_out = parsed[0] < began
                break
        return self._borne_out


def forms_of(env: Environment) -> tuple[Form, ...]:
    """The forms in which this process archives.

    Raises:
        NotInstalledError: Parquet is one of them, and pyarrow is not installed.
    """
    asked = env.settings.archive_format
    if Form.PARQUET in FORMS[asked] and env.settings.archive:
        parquet.require(f"archive_format is {asked!r}")
    return FORMS[asked]


async def write_range(
    store: Store,
    patience: Callable[[], Patience],
    range_: Range,
    finished: Sequence[Finished],
    forms: Sequence[Form] = (Form.LINES,),
) -> None:
    """Write the jobs finished in this range to the archive, and delete their large payloads; `finished` may hold more.

    Other processes that do the same write the same jobs to the same names, so it may be done any number of times. Those
    that write another form leave objects beside these, which hold the same jobs.

    Raises:
        CorruptQueueError: an object with other jobs exists.
        UnknownOutcomeError, StorageError: the store failed for too long. Try again later.
    """
    over = _between(finished, range_)
    for hour, some in _by_hour(over):
        bodies = await _encoded(hour, range_, some, forms)
        if Form.PARQUET in forms and await _was_erased_from(store, patience, hour, range_, some, bodies):
            continue
        for key, body in bodies.items():
            if not await _create(store, patience, key, body, some):
                break  # erased jobs must not come back in another form
    # Delete their large payloads, except those of dead jobs: these stay in the queue, and may be retried.
    named = [one.job.spec.blob for one in over if one.state is not JobState.DEAD]
    blobs = [key for key in named if key is not None and is_blob(key)]
    for start in range(0, len(blobs), DELETED_AT_ONCE):
        await asyncio.gather(*map(store.delete, blobs[start : start + DELETED_AT_ONCE]))


def _between(finished: Sequence[Finished], range_: Range) -> Sequence[Finished]:
    """The jobs of a range, from a list in the order in which they finished."""
    first = bisect_left(finished, range_.first, key=position_of)
    return finished[first : bisect_right(finished, range_.last, first, key=position_of)]


def _by_hour(finished: Iterable[Finished]) -> list[tuple[str, list[Finished]]]:
    """Clocks differ, so an hour may appear more than once."""
    found: dict[int, list[Finished]] = {}
    for at_ms, some in groupby(finished, _at_ms):  # jobs of one commit
        found.setdefault(at_ms // HOUR_MS, []).extend(some)
    return [(hour_of(hour * HOUR_MS), some) for hour, some in found.items()]


async def _encoded(hour: str, range_: Range, finished: Sequence[Finished], forms: Sequence[Form]) -> dict[str, bytes]:
    """The objects of an hour by name. Commits go on in between: a piece takes about two milliseconds, and the rest of
    Parquet is done in a thread."""
    lines: list[bytes] = []
    batches: list[object] = []
    as_lines, as_parquet = Form.LINES in forms, Form.PARQUET in forms
    for jobs in archived_pieces(finished):
        if as_lines:
            lines.append(encode_lines(jobs))
            await yield_once()
        for start in range(0, len(jobs) if as_parquet else 0, parquet.PIECE_JOBS):
            await yield_once()
            try:
                batches.append(parquet.batch_of(hour, jobs[start : start + parquet.PIECE_JOBS]))
            except (ValueError, OverflowError) as error:
                # Edited by hand, for example: a line takes any number. Readers take either form.
                log.warning("%s is archived as lines, for Parquet cannot hold it: %s", range_, error)
                return await _encoded(hour, range_, finished, [Form.LINES])
    bodies = {archive_key(hour, range_): b"".join(lines)} if as_lines else {}
    if as_parquet:
        bodies[archive_key(hour, range_, Form.PARQUET)] = await aside(lambda: parquet.file_of(batches))
    return bodies


async def aside(work: Callable[[], R]) -> R:
    """Run this in a thread, while the loop goes on."""
    return await asyncio.to_thread(work)


async def _was_erased_from(
    store: Store,
    patience: Callable[[], Patience],
    hour: str,
    range_: Range,
    finished: Sequence[Finished],
    bodies: Iterable[str],
) -> bool:
    """Whether another form lacks jobs that were erased: they must not come back in this one.

    Raises:
        CorruptQueueError: a name that is free in one form holds other jobs in another, which readers would pass over.
    """
    for key in {archive_key(hour, range_, form) for form in Form} - set(bodies):
        read = await patience().insist(lambda: store.get(key))  # noqa: B023
        if isinstance(read, Stored) and not holds(key, read.body, finished):
            if await holds_the_rest(store, patience, key, read.body, finished):
                return True
            raise _in_the_way(key)
    return False


def _in_the_way(key: str) -> CorruptQueueError:
    return CorruptQueueError(
        key,
        "there is something else in the place of what has to be archived: another queue was here before, or an "
        "old queue.json was put back. Move archive/ away; until then nothing is archived, and nothing is lost",
    )


async def _create(
    store: Store, patience: Callable[[], Patience], key: str, body: bytes, finished: Sequence[Finished]
) -> bool:
    """False if it exists and jobs were erased from it."""
    tries = Tries(f"the creation of {key}", patience)
    while True:
        outcome = await tries.attempt(lambda: store.create(key, body))
        if outcome is None:
            continue
        if isinstance(outcome, Won):
            return True
        # The object exists, perhaps from an earlier attempt of our own: it must be the same, but for what was erased.
        read = await patience().insist(lambda: store.get(key))
        if isinstance(read, Stored):
            if agree(key, read.body, body):
                return True
            if await holds_the_rest(store, patience, key, read.body, finished):
                return False
            raise _in_the_way(key)
        await tries.pause(StorageError(f"{key} is neither there nor free"))
