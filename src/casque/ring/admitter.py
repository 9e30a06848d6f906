"""Admits staged jobs to a ring: each shard its own, in one commit of that shard, and every job once.

The shard of each row is decided once and stored before any shard is called, so that a repeated batch sends the same
rows to the same shards. A shard refuses rows that do not belong there, as it does in an enqueue. It then records in its
history that this share will never come, and the rows are reassigned: so a late attempt cannot add them after all.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from casque.clock import yield_once
from casque.codec.ring import SHARDS_MAX, RingHead
from casque.codec.staged import StagedJobs
from casque.errors import (
    CASConflictError,
    CasqueError,
    CorruptQueueError,
    InvalidInputError,
    QueueDrainingError,
    StorageError,
    UnknownOutcomeError,
    ZoneMovedError,
)
from casque.ring.admissions import NOWHERE, Batch, Books, Found, Share
from casque.ring.shards import Shard, Shards, together
from casque.service import ZoneOrKey
from casque.service.requests import Admit, AskKnown, GetStats
from casque.state import State
from casque.state.adding import check_zones
from casque.state.ring import home
from casque.telemetry import logger
from casque.types import Admission, Gate, StagedPart

T = TypeVar("T")

log = logger("ring")

ROUNDS_MAX = 20
"""How often others, or the ring, may change while one call is under way."""
AT_ONCE = 8
ASKED_MAX = 10_000
"""Ids, zones or keys in one call to a shard, which may be remote."""


class Admitter:
    """One batch at a time: all of its jobs are in memory meanwhile."""

    def __init__(self, shards: Shards, books: Books) -> None:
        self._shards = shards
        self._books = books
        self._one = asyncio.Lock()

    async def admit(self, source: str, batch: int, parts: Sequence[StagedPart], *, skip_known: bool) -> Admission:
        """
        Raises:
            InvalidInputError: a part is missing, changed or too old, or an id is known.
            UnknownOutcomeError: some shards have their jobs, and others do not, or another attempt at this batch is
                under way. The same batch again completes it.
        """
        # Before waiting for the lock: a refusal from now on applies to this attempt, too.
        before = await self._books.read(source)
        waits = self._one.locked()
        async with self._one:
            found = await self._reread(source, batch) if waits else before
            for _ in range(ROUNDS_MAX):
                if found is not None and not found.batch.done:
                    # This batch or the one before it was begun, and has to be completed first.
                    done = await self._complete_or_say_so(found, skip_known)
                elif found is None or batch > found.batch.batch:
                    _check_not_refused(found, before, batch)
                    done = await self._begin(source, batch, tuple(parts), found, skip_known)
                    if done is not None:
                        return Admission(done.jobs, done.skipped)
                else:
                    same = batch == found.batch.batch
                    return Admission(found.batch.jobs if same else 0, found.batch.skipped if same else 0, True)
                found = await self._reread(source, batch)
            raise UnknownOutcomeError(
                f"others keep admitting for {source!r}, or the ring keeps changing: batch {batch} may be admitted or "
                "not. Repeat it: nothing is added twice"
            )

    async def _reread(self, source: str, batch: int) -> Found | None:
        try:
            return await self._books.read(source)
        except StorageError as error:
            raise UnknownOutcomeError(
                f"batch {batch} of {source!r} may be under way elsewhere, and the store does not say: {error}. Repeat "
                "it: nothing is added twice"
            ) from error

    async def _begin(
        self, source: str, batch: int, parts: tuple[StagedPart, ...], found: Found | None, skip_known: bool
    ) -> Batch | None:
        """None if the book or the ring has changed: read again."""
        try:
            columns = await self._books.columns(parts)
            head = await self._shards.refresh()
            known = await self._known(columns)
            passed_over = _passed_over(columns, known, skip_known=skip_known)
            targets = await self._targets(columns, head)
            if targets is None:
                return None
            assigned: list[list[int]] = []
            for jobs, some in zip(columns, passed_over, strict=True):
                assigned.append([NOWHERE if passed else targets(jobs, row) for row, passed in enumerate(some)])
                await yield_once()
            begun = Batch(
                source,
                batch,
                parts=parts,
                shares=tuple(Share(shard, shard, head.generation) for shard in _numbers(assigned)),
                skipped=sum(map(sum, passed_over)),
            )
            begun = msgspec.structs.replace(begun, assigned=await self._books.assign(begun, assigned))
            if not await self._books.write(begun, found):
                return None
        except UnknownOutcomeError:
            raise
        except CasqueError as error:
            if await self._refuse(source, batch, found, error):
                raise
            return None
        written = await self._reread(source, batch)
        if written is None or written.batch.assigned != begun.assigned:
            return None
        return await self._complete_or_say_so(written, skip_known, columns=columns, assigned=assigned)

    async def _refuse(self, source: str, batch: int, found: Found | None, error: CasqueError) -> bool:
        """Make the refusal of a batch final: a concurrent attempt to begin it loses the race for the book, and ends as
        well. False if another process was faster: then the error may come from jobs that it has admitted.

        Raises:
            UnknownOutcomeError: it is unknown whether another attempt goes on.
        """
        last = Batch(source, -1, done=True) if found is None else found.batch
        try:
            return await self._books.write(msgspec.structs.replace(last, refused=batch), found)
        except CasqueError as trouble:
            raise UnknownOutcomeError(
                f"batch {batch} of {source!r} was not begun here ({error}), but another attempt at it may be under "
                f"way, and the store does not say: {trouble}. Repeat it: nothing is added twice"
            ) from error

    async def _complete_or_say_so(
        self,
        found: Found,
        skip_known: bool,
        *,
        columns: list[StagedJobs] | None = None,
        assigned: list[list[int]] | None = None,
    ) -> Batch | None:
        """A batch that was begun is admitted in part, or will be: no error from now on means that it has failed."""
        try:
            return await self._complete(found, skip_known, columns=columns, assigned=assigned)
        except UnknownOutcomeError:
            raise
        except CasqueError as error:
            raise _failed(found.batch, error) from error

    async def _complete(
        self,
        found: Found,
        skip_known: bool,
        *,
        columns: list[StagedJobs] | None = None,
        assigned: list[list[int]] | None = None,
    ) -> Batch | None:
        """Have all shares admitted. None if another process is working on it, or the ring has changed: read again."""
        batch = found.batch
        if columns is None or assigned is None:
            try:
                columns, assigned = (
                    await self._books.columns(batch.parts, begun=True),
                    await self._books.assigned(batch),
                )
            except (InvalidInputError, CorruptQueueError):
                # Another process may have completed it, and tidied up.
                if await self._books.read(batch.source) != found:
                    return None
                raise
        rows = _by_share(assigned)
        room = asyncio.Semaphore(AT_ONCE)

        async def one(share: Share) -> Admission | None:
            async with room:
                mine = [columns[part].chosen(some) for part, some in rows[share.number].items()]
                return await self._admit(batch, share, mine, skip_known)

        answers = await together(one(share) for share in batch.shares)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        admitted = [answer for answer in answers if isinstance(answer, Admission)]
        if failures:
            raise _failed(batch, failures[0], len(admitted)) from failures[0]
        refused = [share for share, answer in zip(batch.shares, answers, strict=True) if answer is None]
        if refused:
            await self._share_out_anew(found, refused, columns, assigned)
            return None
        done = Batch(
            batch.source,
            batch.batch,
            done=True,
            jobs=sum(one.jobs for one in admitted),
            skipped=batch.skipped + sum(one.skipped for one in admitted),
        )
        if not await self._books.write(done, found):
            return None
        try:
            await self._books.tidy(batch, columns)
        except CasqueError as error:
            log.warning("what batch %s of %r has left could not be deleted: %s", batch.batch, batch.source, error)
        return done

    # --- One share ---

    async def _admit(self, batch: Batch, share: Share, rows: list[StagedJobs], skip_known: bool) -> Admission | None:
        """The result; None if the shard will never take this share."""
        shard = await self._adopted(share.shard)
        name = batch.name(share)
        if (answered := await self._answered(shard, name, batch.batch)) is not None:
            return answered if answered.jobs + answered.skipped else None
        parts = [await self._books.stage(share.shard, jobs) for jobs in rows]
        try:
            admitted = await shard.service.call(Admit(name, batch.batch, tuple(parts), skip_known, share.generation))
        except ZoneMovedError:
            # Recorded in its history, so that no late attempt can make it take them after all.
            admitted = await shard.service.call(Admit(name, batch.batch, ()))
        return admitted if admitted.jobs + admitted.skipped else None

    async def _adopted(self, token: int) -> Shard:
        """A shard that knows the current ring."""
        for _ in range(ROUNDS_MAX):
            shard = await self._shards.adopted(token, self._shards.recent())
            if shard is not None:
                return shard
        raise CASConflictError("the ring keeps changing; nothing was done. Try again")

    async def _answered(self, shard: Shard, name: str, batch: int) -> Admission | None:
        return (await shard.service.call(AskKnown(admission=(name, batch)))).admission

    async def _share_out_anew(
        self, found: Found, refused: Sequence[Share], columns: list[StagedJobs], assigned: list[list[int]]
    ) -> None:
        """Reassign the rows of these shares to the shards where they belong now."""
        batch = found.batch
        head = await self._shards.refresh()
        targets = await self._targets(columns, head)
        if targets is None:
            return
        gone = {share.number for share in refused}
        new = max(SHARDS_MAX - 1, *(share.number for share in batch.shares)) + 1
        numbers: dict[int, int] = {}
        anew = [list(some) for some in assigned]
        for jobs, some in zip(columns, anew, strict=True):
            for row, number in enumerate(some):
                if number in gone:
                    shard = targets(jobs, row)
                    some[row] = numbers.setdefault(shard, new + len(numbers))
        left = [share for share in batch.shares if share.number not in gone]
        shares = [*left, *(Share(number, shard, head.generation) for shard, number in numbers.items())]
        key = await self._books.assign(batch, anew)
        await self._books.write(msgspec.structs.replace(batch, shares=tuple(shares), assigned=key), found)

    # --- Where rows go ---

    async def _targets(self, columns: list[StagedJobs], head: RingHead) -> _Targets | None:
        """None if the ring has changed."""
        several: dict[ZoneOrKey, list[int]] = {}
        if len(head.sizes) > 1:
            homes = {place: head.homes(place[1]) for place in _places(columns)}
            several = {place: tokens for place, tokens in homes.items() if len(tokens) > 1}
        asked: dict[int, list[ZoneOrKey]] = defaultdict(list)
        for place, tokens in several.items():
            for token in tokens[:-1]:
                asked[token].append(place)
        has: dict[int, set[ZoneOrKey]] = {}
        for token, places in asked.items():
            # It adopts the ring before it is asked: zones that it does not have then will not come.
            shard = await self._shards.adopted(token, head)
            if shard is None:
                return None
            has[token] = {place async for place in _held(shard, places)}
        older: dict[ZoneOrKey, int] = {}
        for place, tokens in several.items():
            older.update((place, token) for token in reversed(tokens[:-1]) if place in has[token])
        return _Targets(head.size, older)

    async def _known(self, columns: list[StagedJobs]) -> set[str]:
        """The ids that the ring has already, in any shard. Refuses what the shards would refuse, before any of them has
        added jobs.

        Raises:
            QueueDrainingError, InvalidInputError: these jobs cannot be added now.
        """
        ids = dict.fromkeys(job_id for jobs in columns for job_id in jobs.ids)
        entrypoints = dict.fromkeys(name for jobs in columns for name in _distinct(jobs.entrypoints))
        zones = dict.fromkeys(zone for jobs in columns for zone in _distinct(jobs.zones) if zone is not None)

        fifos: set[str | None] = set()
        if any(jobs.fifo is not False for jobs in columns):
            specs = [spec for jobs in columns for spec in jobs.specs(0, len(jobs))]
            check_zones(State(), specs)  # what would be refused in an empty queue is refused in any
            fifos = {spec.zone for spec in specs if spec.fifo}
        places = [(True, zone) for zone in zones]

        async def known(shard: Shard) -> set[str]:
            gates = (await shard.service.call(GetStats())).gates
            drained = next((name for name in entrypoints if gates.drains(name)), None)
            if drained is not None:
                raise QueueDrainingError(None if gates.queue is Gate.DRAINING else drained)
            for some in _portions(places, ASKED_MAX):
                there = await shard.service.call(AskKnown(places=tuple(some)))
                for _, zone in there.places:
                    if (zone in there.fifos) is not (zone in fifos):
                        now, wanted = ("FIFO", "fifo=True") if zone in there.fifos else ("not FIFO", "fifo left out")
                        raise InvalidInputError(
                            f"the zone {zone!r} has jobs and is {now}; nothing was admitted. Stage them with "
                            f"{wanted}, or use another zone"
                        )
            found: set[str] = set()
            for asked in _portions(ids, ASKED_MAX):
                found |= (await shard.service.call(AskKnown(tuple(asked)))).jobs
            return found

        return set[str]().union(*await asyncio.gather(*map(known, await self._shards.every())))


class _Targets:
    """The shard of each row."""

    def __init__(self, size: int, older: Mapping[ZoneOrKey, int]) -> None:
        self._size = size
        self._older = older
        self._homes: dict[ZoneOrKey, int] = {}

    def __call__(self, jobs: StagedJobs, row: int) -> int:
        place = _place(jobs, row)
        if place is None:
            # By its id, so that a job staged twice goes to the same shard.
            return zlib.crc32(jobs.ids[row].encode("utf-8", "surrogatepass")) % self._size
        found = self._older.get(place, self._homes.get(place))
        if found is None:
            found = self._homes[place] = home(place[1], self._size)
        return found


def _place(jobs: StagedJobs, row: int) -> ZoneOrKey | None:
    zone = jobs.zones[row] if isinstance(jobs.zones, list) else jobs.zones
    if zone is not None:
        return True, zone
    key = None if jobs.keys is None else jobs.keys[row]
    return None if key is None else (False, key)


def _places(columns: Iterable[StagedJobs]) -> list[ZoneOrKey]:
    found = dict.fromkeys(_place(jobs, row) for jobs in columns for row in range(len(jobs)))
    return [place for place in found if place is not None]


async def _held(shard: Shard, places: Collection[ZoneOrKey]) -> AsyncGenerator[ZoneOrKey]:
    """The places that are in this shard."""
    for some in _portions(places, ASKED_MAX):
        for place in (await shard.service.call(AskKnown(places=tuple(some)))).places:
            yield place


def _portions(things: Collection[T], most: int) -> Iterator[tuple[T, ...]]:
    """Groups of at most `most`."""
    left = iter(things)
    while some := tuple(islice(left, most)):
        yield some


def _passed_over(columns: list[StagedJobs], known: set[str], *, skip_known: bool) -> list[list[bool]]:
    """
    Raises:
        InvalidInputError: an id is there already, or twice, and `skip_known` is not set.
    """
    seen = set(known)
    found: list[list[bool]] = []
    for jobs in columns:
        some: list[bool] = []
        for job_id in jobs.ids:
            if job_id in seen and not skip_known:
                what = f"a job with the id {job_id!r} is already in the queue" if job_id in known else ""
                raise InvalidInputError(
                    f"{what or f'two jobs of one admission have the id {job_id!r}'}; nothing was admitted. With "
                    "skip_known=True such jobs are passed over"
                )
            some.append(job_id in seen)
            seen.add(job_id)
        found.append(some)
    return found


def _by_share(assigned: list[list[int]]) -> dict[int, dict[int, list[int]]]:
    """The rows of each share, by part."""
    found: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for part, some in enumerate(assigned):
        for row, number in enumerate(some):
            found[number][part].append(row)
    return found


def _numbers(assigned: list[list[int]]) -> list[int]:
    return sorted({number for some in assigned for number in some} - {NOWHERE})


def _distinct(column: list[T] | T) -> Iterable[T]:
    """In order, because shards are called in this order: the same call must go the same way in every process."""
    return dict.fromkeys(column) if isinstance(column, list) else (column,)


def _check_not_refused(found: Found | None, before: Found | None, batch: int) -> None:
    """
    Raises:
        CASConflictError: another process has refused this batch since this attempt began.
    """
    if found is None or found.batch.refused != batch:
        return
    if before is None or before.batch.writer != found.batch.writer:
        raise CASConflictError(
            f"batch {batch} of {found.batch.source!r} was refused through another process meanwhile; nothing was "
            "admitted. Try again"
        )


def _failed(batch: Batch, error: BaseException, admitted: int | None = None) -> BaseException:
    """The error for the caller. The batch is recorded, so a repetition completes it instead of starting over."""
    if not isinstance(error, CasqueError):
        return error
    how_far = "under way" if admitted is None else f"admitted by {admitted} of {len(batch.shares)} shards"
    return UnknownOutcomeError(
        f"batch {batch.batch} of {batch.source!r} is {how_far}: {error}. Repeat it: what is missing is added, and "
        "nothing twice"
    )
