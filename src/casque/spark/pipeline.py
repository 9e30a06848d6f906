"""The pipeline: brings the tables of a warehouse up to date with the history of a queue.

A run goes from the cursor, the position up to which the warehouse is complete, to the horizon. Executors turn the
objects of that stretch into files of bronze and silver, and then add their sums to gold; one write of the warehouse's
root makes all of it visible and moves the cursor. Before that write nothing has changed, after it nothing is left to
do: so a run may be killed anywhere, and two may run at once. A long stretch is split into several.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from casque.clock import Clock, SystemClock
from casque.errors import HistoryGoneError, InvalidInputError
from casque.scan import ArchiveObject
from casque.scan.horizon import Horizon, Sight, archived_between, look_around
from casque.scan.shards import AT_ONCE, shard_name, shard_store
from casque.spark import combine, requests
from casque.spark.gold import columns
from casque.spark.options import OnGone
from casque.spark.parquet import ADDED, FILES_DDL, AddedRows, File, days
from casque.spark.store_ref import StoreRef
from casque.spark.tables import TABLES
from casque.spark.task_errors import as_raised
from casque.spark.tasks import (
    COMPACTED,
    GONE,
    REPLACED,
    Compaction,
    FromArchive,
    FromLog,
    FromSilver,
    FromState,
    Merge,
    Task,
    Tasks,
)
from casque.spark.warehouse import Change, Snapshot, Warehouse, frame, stamp_of
from casque.storage.port import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
STRETCH_OBJECTS = 1_000
"""Archive objects per stretch: some millions of jobs. A killed run loses only its last stretch."""
STRETCH_COMMITS = 200_000
SEGMENTS_PER_TASK = 2_000
OBJECTS_PER_TASK = 24
TASKS_WANTED = 16
COMPACT_RUNS = 8
"""Compact small files of about one size in a partition once they come from this many runs. Files of one run count
once: otherwise the next run would rewrite a large one right away."""
COMPACT_FILES = 64
"""Compact at this many files, regardless of how many runs wrote them."""
SMALL_BYTES = 16 * 1024 * 1024
TINY_BYTES = 64 * 1024
COMPACTED_BYTES = 128 * 1024 * 1024
KEPT_GAPS = 100
GOLD = tuple(table for table in TABLES if table.startswith("gold/"))

Progress = Callable[[str, int, int], None]
"""Called with the title of a step, its number and the total."""
STEPS = ("look at the queue", "bronze and silver", "gold", "save the cursor")


class Cursor(msgspec.Struct, frozen=True):
    """How far the warehouse is. Stored in its root."""

    queue_id: str = ""
    position: int = 0
    """The warehouse is complete up to here."""
    bronze: int = 0
    """The last commit in `bronze/events`."""
    hour: str | None = None
    """The latest hour of the archive seen so far."""
    gaps: tuple[tuple[int, int], ...] = ()
    """The latest ranges of commits that were deleted before they could be read: first and last."""
    shards: Mapping[str, Cursor] = {}
    """For a ring, the cursor of each shard. The ring's own position is their sum."""

    def of(self, shard: int | None) -> Cursor:
        """A new shard starts with an empty cursor."""
        return self if shard is None else self.shards.get(shard_name(shard), Cursor())

    def json(self) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(self)
        for one in (fields, *fields["shards"].values()):
            if not one["shards"]:
                del one["shards"]
        return fields


class Summary(msgspec.Struct, frozen=True):
    """The result of a run."""

    before: int
    """Position of the warehouse before the run."""
    position: int
    """Position of the warehouse after the run."""
    events: int = 0
    jobs: int = 0
    attempts: int = 0
    queued: int = 0
    """Jobs in the queue at the position, dead ones included."""
    partitions: int = 0
    """Files of gold tables written."""
    files: int = 0
    bytes: int = 0
    stretches: int = 0
    compacted: int = 0
    """Small files that were merged."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Commits missing from `bronze/events` because they were collected: first and last."""
    notes: tuple[str, ...] = ()
    elapsed_ms: int = 0

    @property
    def changed(self) -> bool:
        return self.position != self.before


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Options that an operator sets."""

    payloads: bool = False
    """Whether bronze keeps payloads and results."""
    on_gone: OnGone = OnGone.FAIL
    put_dollars: float = requests.PUT_DOLLARS
    adopt: bool = False
    """Continue although the queue has another id: it was converted."""
    rebuild: bool = False
    """Rebuild gold from silver, instead of adding to it."""
    stretch_objects: int = STRETCH_OBJECTS


def run(
    spark: SparkSession,
    url: str,
    warehouse: Warehouse | str,
    *,
    options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Summary:
    """Bring a warehouse up to date with a queue. `options` are those of the queue's store.

    Raises:
        InvalidInputError: there is no queue, or the warehouse belongs to another queue.
        HistoryGoneError: commits were collected before they could be read.
        CASConflictError: another run changed the warehouse meanwhile; nothing of this stretch was written.
    """
    clock = clock or SystemClock()
    begun_ms = clock.monotonic_ms()
    store_ref = StoreRef(url, options)
    to = warehouse if isinstance(warehouse, Warehouse) else Warehouse(warehouse)
    one = _Run(spark, store_ref, to, settings or Settings(), progress or (lambda *_: None))
    with as_raised():
        summary = one.run()
    return msgspec.structs.replace(summary, elapsed_ms=clock.monotonic_ms() - begun_ms)


class _Part(msgspec.Struct, frozen=True):
    """One stretch of a queue or a shard."""

    shard: int | None
    horizon: Horizon
    to: int
    objects: Sequence[ArchiveObject]
    bronze: tuple[int, int] | None
    """The first and the last commit to read."""
    cursor: Cursor
    gaps: tuple[tuple[int, int], ...]
    """The new ones among `cursor.gaps`."""


class _Plan(msgspec.Struct, frozen=True):
    """One stretch of all shards."""

    parts: Sequence[_Part]
    is_last: bool
    """Nothing is left after it, so the queue itself is read as of then."""
    cursor: Cursor


class _Run:
    def __init__(
        self, spark: SparkSession, queue: StoreRef, warehouse: Warehouse, settings: Settings, progress: Progress
    ) -> None:
        self._spark = spark
        self._queue = queue
        self._warehouse = warehouse
        self._settings = settings
        self._progress = progress
        self._step = 0

    def run(self) -> Summary:
        snapshot = self._warehouse.snapshot()
        cursor = _cursor_of(snapshot)
        summary = Summary(cursor.position, cursor.position)
        rebuild = self._settings.rebuild
        while True:
            self._step = 0
            self._say("look at the queue")
            sight = self._queue.run(partial(look_around, known=lambda shard: cursor.of(shard).position))  # noqa: B023
            self._check(cursor, sight)
            if not all(one.has_log for one in sight.shards.values()):
                note = "the queue has the document layout, which keeps no log: bronze and requests stay empty"
                summary = msgspec.structs.replace(summary, notes=(note,))
            if sight.position <= cursor.position and not rebuild:
                return summary
            plan = self._plan(cursor, sight)
            change = self._warehouse.begin()
            if change.base.etag != snapshot.etag:
                change.base = snapshot  # the commit will lose: the plan no longer matches the warehouse
            summary = self._stretch(change, plan, summary, rebuild=rebuild)
            self._say("save the cursor")
            snapshot = change.commit(plan.cursor.json())
            cursor, rebuild = plan.cursor, False
            if plan.is_last and sight.is_end:
                return summary

    def _check(self, cursor: Cursor, sight: Sight) -> None:
        if cursor.queue_id and bool(cursor.shards) is (None in sight.shards):
            raise InvalidInputError(
                f"this warehouse is that of the queue {cursor.queue_id}, and {sight.queue_id} is another: a ring of "
                "shards has a warehouse of its own"
            )
        known = {cursor.queue_id: sight.queue_id}
        known |= {cursor.of(shard).queue_id: one.queue_id for shard, one in sight.shards.items()}
        for expected, found in known.items():
            if expected not in ("", found) and not self._settings.adopt:
                raise InvalidInputError(
                    f"this warehouse is that of the queue {expected}, and here is {found}. If the queue "
                    "was converted to another layout since, go on with --adopt; if it is another queue, give it a "
                    "warehouse of its own"
                )

    def _plan(self, cursor: Cursor, sight: Sight) -> _Plan:
        objects = self._queue.run(partial(archived_since, sight=sight, cursor=cursor))
        parts = [self._part(cursor, sight, shard, objects[shard]) for shard in sight.shards]
        is_last = all(part.to == part.horizon.position for part in parts)
        if None in sight.shards:
            return _Plan(parts, is_last, parts[0].cursor)
        shards = {shard_name(part.shard or 0): part.cursor for part in parts}
        whole = Cursor(sight.queue_id, sum(part.to for part in parts), shards=shards)
        return _Plan(parts, is_last, whole)

    def _part(self, whole: Cursor, sight: Sight, shard: int | None, objects: list[ArchiveObject]) -> _Part:
        cursor, horizon, of = whole.of(shard), sight.shards[shard], len(sight.shards)
        objects_max = max(1, self._settings.stretch_objects // of)
        to = horizon.position
        if len(objects) > objects_max:
            # Objects of one range stay together: they are identified by positions.
            to = objects[objects_max - 1].last
            objects = [one for one in objects if one.last <= to]
        gaps = list[tuple[int, int]]()
        bronze: tuple[int, int] | None = None
        if horizon.has_log:
            first = cursor.bronze + 1
            if first <= horizon.floor:
                # A first run starts with what is left: its gap is not reported.
                if whole.queue_id:
                    self._gone(shard, first, horizon.floor)
                    gaps.append((first, horizon.floor))
                first = horizon.floor + 1
            to = min(to, max(first - 1, cursor.position) + max(1, STRETCH_COMMITS // of))
            objects = [one for one in objects if one.last <= to]
            bronze = (first, to) if first <= to else None
        reached = Cursor(
            horizon.queue_id,
            to,
            bronze[1] if bronze else cursor.bronze,
            max([one.hour for one in objects] + ([cursor.hour] if cursor.hour else []), default=None),
            (*cursor.gaps, *gaps)[-KEPT_GAPS:],
        )
        return _Part(shard, horizon, to, objects, bronze, reached, tuple(gaps))

    def _gone(self, shard: int | None, first: int, last: int) -> None:
        if self._settings.on_gone is OnGone.FAIL:
            where = "" if shard is None else f" of shard {shard_name(shard)}"
            raise HistoryGoneError(
                f"bronze/events cannot go on: what follows position {first - 1}{where} (up to {last}) was collected "
                "before it was read, so run the pipeline more often, or go on without it with --on-gone skip "
                "(finished jobs come from the archive and miss nothing); position "
                f"{first}",
                last + 1,
            )

    # --- One stretch ---

    def _stretch(self, change: Change, plan: _Plan, summary: Summary, *, rebuild: bool) -> Summary:
        self._say("bronze and silver")
        tasks: list[Task] = list(_state_tasks(change, plan, rebuild=rebuild))
        for part in plan.parts:
            tasks += [*_archive_tasks(part), *self._log_tasks(part, len(plan.parts))]
        compactions = list(_compactions(change))
        tasks += compactions
        if rebuild:
            tasks += _silver_tasks(change)
        written, added = self._perform(change, tasks)
        gone = written.pop(GONE, [])
        for shard in {file.shard for file in gone}:
            mine = [file for file in gone if file.shard == shard]
            first, last = min(file.first or 0 for file in mine), max(file.last or 0 for file in mine)
            self._gone(shard, first, last)
            summary = msgspec.structs.replace(summary, gaps=(*summary.gaps, (first, last)))
        self._say("gold")
        partitions = self._gold(change, written, added, rebuild=rebuild)
        merged = {file.key for task in compactions for file in task.files}
        for table in ("bronze/events", "silver/jobs", "silver/attempts"):
            files = [*written.get(table, []), *written.get(COMPACTED + table, [])]
            change.add(table, columns(table), files, instead=merged)
        change.replace("silver/queue", columns("silver/queue"), written.get("silver/queue", []))
        rows = {table: sum(file.rows for file in files) for table, files in written.items()}
        everything = [file for files in written.values() for file in files] + partitions
        return Summary(
            summary.before,
            plan.cursor.position,
            summary.events + rows.get("bronze/events", 0),
            summary.jobs + rows.get("silver/jobs", 0),
            summary.attempts + rows.get("silver/attempts", 0),
            rows.get("silver/queue", 0),
            summary.partitions + len(partitions),
            summary.files + len(everything),
            summary.bytes + sum(file.bytes for file in everything),
            summary.stretches + 1,
            summary.compacted + len(merged),
            (*summary.gaps, *(gap for part in plan.parts for gap in part.gaps)),
            summary.notes,
        )

    def _log_tasks(self, part: _Part, of: int) -> Iterator[FromLog]:
        if part.bronze is None:
            return
        first, last = part.bronze
        wanted = max(1, TASKS_WANTED // of)
        size = max(1, min(SEGMENTS_PER_TASK, -(-(last - first + 1) // wanted)))
        queue_id, payloads = part.horizon.queue_id, self._settings.payloads
        for start in range(first, last + 1, size):
            yield FromLog(queue_id, start, min(start + size - 1, last), payloads, part.shard)

    def _perform(self, change: Change, tasks: Sequence[Task]) -> tuple[dict[str, list[File]], list[AddedRows]]:
        """Run tasks; returns the files that they wrote, by purpose, and the sums to add to gold."""
        work = Tasks(self._queue, self._warehouse.store_ref, change.stamp, tasks)
        numbers = self._spark.range(0, len(tasks), 1, len(tasks))
        written: dict[str, list[File]] = {}
        added: list[AddedRows] = []
        for row in numbers.mapInArrow(work, FILES_DDL).collect():
            if row.tag == ADDED:
                added.append(msgspec.json.decode(row.file, type=AddedRows))
            else:
                written.setdefault(row.tag, []).append(msgspec.json.decode(row.file, type=File))
        return written, added

    # --- Gold ---

    def _gold(
        self, change: Change, written: Mapping[str, list[File]], added: Sequence[AddedRows], *, rebuild: bool
    ) -> list[File]:
        merges = list(_merges(change, added, rebuild=rebuild))
        with ThreadPoolExecutor(1) as beside:
            requests_ = beside.submit(self._requests, change, written, rebuild=rebuild)
            done = self._perform(change, merges)[0] if merges else {}
            requested, replaced = requests_.result()
        replaced |= {file.key for file in done.pop(REPLACED, [])}
        done[requests.TABLE] = requested
        for table in GOLD:
            if rebuild:
                change.replace(table, columns(table), done.get(table, []))
            else:
                change.add(table, columns(table), done.get(table, []), instead=replaced)
        return [file for some in done.values() for file in some]

    def _requests(
        self, change: Change, written: Mapping[str, list[File]], *, rebuild: bool
    ) -> tuple[list[File], set[str]]:
        """Returns the files written, and the keys that they replace."""
        spark, store_ref, before = self._spark, self._warehouse.store_ref, change.manifest
        events = [*(before("bronze/events").files if rebuild else ()), *written.get("bronze/events", [])]
        if not events:
            return [], set()
        jobs = [*(before("silver/jobs").files if rebuild else ()), *written.get("silver/jobs", [])]
        queue = [*written.get("silver/queue", []), *before("silver/queue").files]
        known = [
            frame(spark, store_ref, files, {name: TABLES[table].columns[name].type for name in requests.WHOSE})
            for table, files in (("silver/jobs", jobs), ("silver/queue", queue))
        ]
        chosen = {name: TABLES["bronze/events"].columns[name].type for name in requests.EVENTS}
        added = requests.added(spark, frame(spark, store_ref, events, chosen), known)
        dates = sorted({file.date for file in events})
        old = [] if rebuild else before(requests.TABLE).of(dates)
        there = frame(spark, store_ref, old, columns(requests.TABLE))
        merged = requests.merged(spark, added, there, self._settings.put_dollars)
        files = change.write(requests.in_order(merged, len(dates)), requests.TABLE)
        return files, {file.key for file in old}

    def _say(self, what: str) -> None:
        self._progress(what, self._step, len(STEPS))
        self._step += 1


async def archived_since(store: Store, sight: Sight, cursor: Cursor) -> dict[int | None, list[ArchiveObject]]:
    """The new archive objects of each shard."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(shard: int | None, horizon: Horizon) -> list[ArchiveObject]:
        known = cursor.of(shard)
        if horizon.position <= known.position:
            return []
        async with room:
            return await archived_between(shard_store(store, shard), known.position, horizon.position, known.hour)

    found = await asyncio.gather(*(one(shard, horizon) for shard, horizon in sight.shards.items()))
    return dict(zip(sight.shards, found, strict=True))


def _merges(change: Change, added: Sequence[AddedRows], *, rebuild: bool) -> Iterator[Merge]:
    """Merges of several dates of a table each, enough for a few tasks in all."""
    for table in combine.ADDED:
        mine = [one for one in added if one.table == table]
        hours = sorted({hour for one in mine for hour in one.hours})
        if not hours:
            continue
        dates = combine.dates(hours)
        if table == "gold/depth":
            # A job counts in every minute from one of its points to the next.
            dates = list(days(dates[0], dates[-1]))
        tables = (table, "gold/hours", "gold/fairness") if table == "gold/minutes" else (table,)
        size = -(-len(dates) // TASKS_WANTED)
        for start in range(0, len(dates), size):
            some = dates[start : start + size]
            first, end = combine.hours_between(some[0], some[-1])
            # The level at the beginning depends on everything before.
            since = 0 if table == "gold/depth" else first
            files = [one.file for one in mine if any(since <= hour < end for hour in one.hours)]
            before = {} if rebuild else {name: change.manifest(name).of(some) for name in tables}
            yield Merge(table, some, files, before)


def _state_tasks(change: Change, plan: _Plan, *, rebuild: bool) -> Iterator[FromState]:
    """Subtract the rows that `silver/queue` has now; if no more stretches follow, read the queue, all shards as of one
    moment."""
    there = change.manifest("silver/queue").files
    as_of_ms = max(part.horizon.at_ms for part in plan.parts)
    for part in plan.parts:
        before = () if rebuild else [file for file in there if file.shard == part.shard]
        to = part.to if plan.is_last else None
        if before or to is not None or part.shard is None:
            yield FromState(to, part.horizon.has_log, before, part.shard, as_of_ms)


def _archive_tasks(plan: _Part) -> Iterator[FromArchive]:
    """Objects of one date per task, as many as make a file of good size."""
    by_date: dict[str, list[ArchiveObject]] = {}
    for one in plan.objects:
        by_date.setdefault(one.hour[:10], []).append(one)
    size = max(1, min(OBJECTS_PER_TASK, -(-len(plan.objects) // TASKS_WANTED)))
    for date, some in sorted(by_date.items()):
        for start in range(0, len(some), size):
            part = some[start : start + size]
            first, last = min(one.first for one in part), max(one.last for one in part)
            yield FromArchive(date, [one.key for one in part], first, last, plan.shard)


def _silver_tasks(change: Change) -> Iterator[FromSilver]:
    """Jobs and attempts separately: their sums are added up anyway."""
    for file in change.manifest("silver/jobs").files:
        yield FromSilver([file], [])
    for file in change.manifest("silver/attempts").files:
        yield FromSilver([], [file])


def _compactions(change: Change) -> Iterator[Compaction]:
    """Files merge only with others of about their size: so a row is rewritten once for every eightfold growth of its
    file, and not each time that rows are added to its date."""
    for table in ("bronze/events", "silver/jobs", "silver/attempts"):
        manifest = change.manifest(table)
        alike: dict[tuple[str, int], list[File]] = {}
        for file in manifest.files:
            if file.bytes < SMALL_BYTES:
                alike.setdefault((file.date, _magnitude(file.bytes)), []).append(file)
        for (date, _), small in alike.items():
            if len({stamp_of(file.key) for file in small}) < COMPACT_RUNS and len(small) < COMPACT_FILES:
                continue
            taken: list[File] = []
            for file in small:
                if sum(one.bytes for one in taken) + file.bytes <= COMPACTED_BYTES:
                    taken.append(file)
            yield Compaction(table, date, taken, manifest.columns)


def _magnitude(size: int) -> int:
    """Equal for sizes within a factor of eight, and for all tiny ones."""
    return max(size, TINY_BYTES).bit_length() // 3


def _cursor_of(snapshot: Snapshot) -> Cursor:
    raw: dict[str, Any] = snapshot.root.cursor
    return msgspec.convert(raw, Cursor) if raw else Cursor()
