"""The pipeline: what happened to a queue since the last run, into the tables of a warehouse.

A run goes from the cursor, the position up to which the warehouse tells everything, to the horizon. Executors turn the
objects of that stretch into files of bronze and silver; Spark SQL adds what they say to gold; one write of the
warehouse's root makes all of it visible and moves the cursor. Before that write nothing has changed, after it nothing
is left to do: so a run may be killed anywhere, and two may run at once. A long stretch is cut into several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from casque.client.scan import ArchiveObject
from casque.clock import Clock, SystemClock
from casque.codec.stored import to_ms
from casque.errors import HistoryGoneError, InvalidInputError
from casque.spark import combine, gold
from casque.spark.gold import columns
from casque.spark.horizon import Horizon, archived_between, look
from casque.spark.options import OnGone
from casque.spark.parquet import ADDED, FILES_DDL, Added, File
from casque.spark.place import Place
from casque.spark.tables import TABLES
from casque.spark.tasks import COMPACTED, GONE, Compaction, FromArchive, FromLog, FromSilver, FromState, Task, Tasks
from casque.spark.told import as_raised
from casque.spark.warehouse import Change, Snapshot, Warehouse, frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
STRETCH_OBJECTS = 1_000
"""Objects of the archive that one stretch takes: some millions of jobs. What was done of a longer one is not lost."""
STRETCH_COMMITS = 200_000
SEGMENTS_PER_TASK = 2_000
OBJECTS_PER_TASK = 24
TASKS_WANTED = 16
COMPACT_FILES = 8
"""So many small files of one partition become one."""
SMALL_BYTES = 16 * 1024 * 1024
COMPACTED_BYTES = 128 * 1024 * 1024
KEPT_GAPS = 100
WRITES_AT_ONCE = 4
BY_MINUTE = frozenset({"gold/minutes", "gold/depth", "gold/workers"})
GOLD = tuple(table for table in TABLES if table.startswith("gold/"))

Progress = Callable[[str, int, int], None]
"""Told what is being done, which step that is, and of how many."""
STEPS = ("look at the queue", "bronze and silver", "gold", *GOLD, "save the cursor")


class Cursor(msgspec.Struct, frozen=True):
    """Where the warehouse stands. Kept in its root."""

    queue_id: str = ""
    position: int = 0
    """Everything up to here is in it."""
    bronze: int = 0
    """The last commit in `bronze/events`."""
    hour: str | None = None
    """The latest hour of the archive seen so far."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Commits that were gone before they could be read, the latest ones: first and last."""


class Summary(msgspec.Struct, frozen=True):
    """What a run did."""

    before: int
    """The position at which the warehouse was."""
    position: int
    """And is now."""
    events: int = 0
    jobs: int = 0
    attempts: int = 0
    queued: int = 0
    """Jobs in the queue as of the position, dead ones too."""
    partitions: int = 0
    """Files of gold tables written."""
    files: int = 0
    bytes: int = 0
    stretches: int = 0
    compacted: int = 0
    """Small files that were merged."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Commits that `bronze/events` misses because they were collected: first and last."""
    notes: tuple[str, ...] = ()
    elapsed_ms: int = 0

    @property
    def changed(self) -> bool:
        return self.position != self.before


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may say."""

    payloads: bool = False
    """Whether bronze keeps payloads and results."""
    on_gone: OnGone = OnGone.FAIL
    put_dollars: float = gold.PUT_DOLLARS
    adopt: bool = False
    """Go on although the queue has another id: it was converted."""
    rebuild: bool = False
    """Make gold anew from silver, instead of adding to it."""
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
        InvalidInputError: there is no queue, or the warehouse is another queue's.
        HistoryGoneError: commits were collected before they could be read.
        CASConflictError: another run changed the warehouse meanwhile; nothing of this stretch is there.
    """
    clock = clock or SystemClock()
    begun_ms = clock.monotonic_ms()
    place = Place(url, options)
    to = warehouse if isinstance(warehouse, Warehouse) else Warehouse(warehouse)
    one = _Run(spark, place, to, settings or Settings(), progress or (lambda *_: None))
    with as_raised():
        summary = one.run()
    return msgspec.structs.replace(summary, elapsed_ms=clock.monotonic_ms() - begun_ms)


class _Plan(msgspec.Struct, frozen=True):
    """One stretch."""

    to: int
    is_last: bool
    """Nothing is left after it, so that the queue is looked at as it is then."""
    objects: Sequence[ArchiveObject]
    bronze: tuple[int, int] | None
    """The first and the last commit to read."""
    cursor: Cursor


class _Run:
    def __init__(
        self, spark: SparkSession, queue: Place, warehouse: Warehouse, settings: Settings, progress: Progress
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
            horizon = self._queue.run(partial(look, known=cursor.position))
            self._check(cursor, horizon)
            if not horizon.has_log:
                note = "the queue has the document layout, which keeps no log: bronze and requests stay empty"
                summary = msgspec.structs.replace(summary, notes=(note,))
            if horizon.position <= cursor.position and not rebuild:
                return summary
            plan = self._plan(cursor, horizon)
            change = self._warehouse.begin()
            if change.base.etag != snapshot.etag:
                change.base = snapshot  # the commit will lose: what was planned is not what is there now
            summary = self._stretch(change, plan, horizon, summary, rebuild=rebuild)
            self._say("save the cursor")
            snapshot = change.commit(msgspec.to_builtins(plan.cursor))
            cursor, rebuild = plan.cursor, False
            if plan.is_last and horizon.is_end:
                return summary

    def _check(self, cursor: Cursor, horizon: Horizon) -> None:
        if cursor.queue_id not in ("", horizon.queue_id) and not self._settings.adopt:
            raise InvalidInputError(
                f"this warehouse is that of the queue {cursor.queue_id}, and here is {horizon.queue_id}. If the queue "
                "was converted to another layout since, go on with --adopt; if it is another queue, give it a "
                "warehouse of its own"
            )

    def _plan(self, cursor: Cursor, horizon: Horizon) -> _Plan:
        settings = self._settings
        objects = self._queue.run(
            partial(archived_between, after=cursor.position, upto=horizon.position, since_hour=cursor.hour)
        )
        to = horizon.position
        if len(objects) > settings.stretch_objects:
            # Objects of one range stay together: they are told apart by positions.
            to = objects[settings.stretch_objects - 1].last
            objects = [one for one in objects if one.last <= to]
        gaps = list(cursor.gaps)
        bronze: tuple[int, int] | None = None
        if horizon.has_log:
            first = cursor.bronze + 1
            if first <= horizon.floor:
                # Of a first run nothing was ever promised.
                if cursor.queue_id:
                    self._gone(first, horizon.floor)
                    gaps.append((first, horizon.floor))
                first = horizon.floor + 1
            to = min(to, max(first - 1, cursor.position) + STRETCH_COMMITS)
            objects = [one for one in objects if one.last <= to]
            bronze = (first, to) if first <= to else None
        reached = Cursor(
            horizon.queue_id,
            to,
            bronze[1] if bronze else cursor.bronze,
            max([one.hour for one in objects] + ([cursor.hour] if cursor.hour else []), default=None),
            tuple(gaps[-KEPT_GAPS:]),
        )
        return _Plan(to, to == horizon.position, objects, bronze, reached)

    def _gone(self, first: int, last: int) -> None:
        if self._settings.on_gone is OnGone.FAIL:
            raise HistoryGoneError(
                f"bronze/events cannot go on: what follows position {first - 1} (up to {last}) was collected before it "
                "was read, so run the pipeline more often, or go on without it with --on-gone skip (finished jobs "
                "come from the archive and miss nothing); position "
                f"{first}",
                last + 1,
            )

    # --- One stretch ---

    def _stretch(self, change: Change, plan: _Plan, horizon: Horizon, summary: Summary, *, rebuild: bool) -> Summary:
        self._say("bronze and silver")
        queue = change.manifest("silver/queue").files
        state = FromState(plan.to if plan.is_last else None, horizon.has_log, () if rebuild else queue)
        tasks: list[Task] = [state, *_archive_tasks(plan.objects), *self._log_tasks(plan, horizon)]
        compactions = list(_compactions(change))
        tasks += compactions
        if rebuild:
            tasks += _silver_tasks(change)
        written, added = self._perform(change, tasks)
        if gone := written.pop(GONE, []):
            first, last = min(file.first or 0 for file in gone), max(file.last or 0 for file in gone)
            self._gone(first, last)
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
            plan.to,
            summary.events + rows.get("bronze/events", 0),
            summary.jobs + rows.get("silver/jobs", 0),
            summary.attempts + rows.get("silver/attempts", 0),
            rows.get("silver/queue", 0),
            summary.partitions + len(partitions),
            summary.files + len(everything),
            summary.bytes + sum(file.bytes for file in everything),
            summary.stretches + 1,
            summary.compacted + len(merged),
            (*summary.gaps, *plan.cursor.gaps[len(_cursor_of(change.base).gaps) :]),
            summary.notes,
        )

    def _log_tasks(self, plan: _Plan, horizon: Horizon) -> Iterator[FromLog]:
        if plan.bronze is None:
            return
        first, last = plan.bronze
        size = max(1, min(SEGMENTS_PER_TASK, -(-(last - first + 1) // TASKS_WANTED)))
        for start in range(first, last + 1, size):
            yield FromLog(horizon.queue_id, start, min(start + size - 1, last), self._settings.payloads)

    def _perform(self, change: Change, tasks: Sequence[Task]) -> tuple[dict[str, list[File]], list[Added]]:
        """Have tasks done; answers the files they wrote, by what for, and what they add to gold."""
        work = Tasks(self._queue, self._warehouse.place, change.stamp, tasks)
        numbers = self._spark.range(0, len(tasks), 1, len(tasks))
        written: dict[str, list[File]] = {}
        added: list[Added] = []
        for row in numbers.mapInArrow(work, FILES_DDL).collect():
            if row.tag == ADDED:
                added.append(msgspec.json.decode(row.file, type=Added))
            else:
                written.setdefault(row.tag, []).append(msgspec.json.decode(row.file, type=File))
        return written, added

    # --- Gold ---

    def _gold(
        self, change: Change, written: Mapping[str, list[File]], added: Sequence[Added], *, rebuild: bool
    ) -> list[File]:
        """Few actions, and those beside each other: a small run would otherwise mostly wait for Spark to begin."""
        spark = self._spark
        with ExitStack() as held:

            def keep(df: DataFrame) -> DataFrame:
                held.callback(df.unpersist)
                return df.persist()

            news = self._news(change, written, added, keep, rebuild=rebuild)
            hours = {table: some for table, (_, some) in news.items()}
            frames: dict[str, DataFrame] = {}
            for table, (df, _) in news.items():
                frames[table] = self._summed(table, df, self._old(change, table, hours[table], rebuild=rebuild))
            if "gold/minutes" in frames:
                minutes = frames["gold/minutes"] = keep(frames["gold/minutes"])
                by_hour = keep(gold.hours(spark, minutes))
                for table, df in (("gold/hours", by_hour), ("gold/fairness", gold.fairness(spark, by_hour))):
                    touched = hours[table] = hours["gold/minutes"]
                    old = self._old(change, table, touched, rebuild=rebuild)
                    frames[table] = gold.in_columns(df, table).union(gold.but_for(old, touched))
            with ThreadPoolExecutor(WRITES_AT_ONCE) as threads:
                writes = {
                    table: threads.submit(self._write, change, table, df, hours[table]) for table, df in frames.items()
                }
        done = {table: write.result() for table, write in writes.items()}
        for table in GOLD:
            if rebuild:
                change.replace(table, columns(table), done.get(table, []))
            else:
                replaced = {file.key for file in _touched(change, table, hours.get(table, []))}
                change.add(table, columns(table), done.get(table, []), instead=replaced)
        return [file for some in done.values() for file in some]

    def _old(self, change: Change, table: str, hours: Sequence[int], *, rebuild: bool) -> DataFrame:
        files = [] if rebuild else _touched(change, table, hours)
        return frame(self._spark, self._warehouse.place, files, columns(table))

    def _news(
        self,
        change: Change,
        written: Mapping[str, list[File]],
        added: Sequence[Added],
        keep: Callable[[DataFrame], DataFrame],
        *,
        rebuild: bool,
    ) -> dict[str, tuple[DataFrame, list[int]]]:
        """What is to be added to each table, and to which hours."""
        spark, place = self._spark, self._warehouse.place
        news: dict[str, tuple[DataFrame, list[int]]] = {}
        for table, types in combine.ADDED.items():
            mine = [one for one in added if one.table == table]
            if mine:
                df = frame(spark, place, [one.file for one in mine], types)
                news[table] = df, sorted({hour for one in mine for hour in one.hours})
        if "gold/depth" in news:
            # Jobs that stay in the queue cancel out, so that only this tells which minutes really change.
            levels = keep(gold.levels(spark, news["gold/depth"][0]))
            news["gold/depth"] = levels, gold.hours_of(levels)
        before = change.manifest
        events = [*(before("bronze/events").files if rebuild else ()), *written.get("bronze/events", [])]
        if events:
            jobs = [*(before("silver/jobs").files if rebuild else ()), *written.get("silver/jobs", [])]
            queue = [*written.get("silver/queue", []), *before("silver/queue").files]
            known = [
                frame(spark, place, files, {name: TABLES[table].columns[name].type for name in gold.WHOSE})
                for table, files in (("silver/jobs", jobs), ("silver/queue", queue))
            ]
            chosen = {name: TABLES["bronze/events"].columns[name].type for name in gold.EVENTS}
            requests = gold.requests_added(spark, frame(spark, place, events, chosen), known)
            news["gold/requests"] = requests, sorted(_first_hour(file.date) for file in events)
        return {table: (df, hours) for table, (df, hours) in news.items() if hours}

    def _summed(self, table: str, added: DataFrame, old: DataFrame) -> DataFrame:
        match table:
            case "gold/minutes":
                return gold.minutes(self._spark, added, old)
            case "gold/depth":
                return gold.depth(self._spark, added, old)
            case "gold/workers":
                return gold.workers(self._spark, added, old)
            case "gold/dead_letters":
                return gold.dead_letters(self._spark, added, old)
            case _:
                return gold.requests(self._spark, added, old, self._settings.put_dollars)

    def _write(self, change: Change, table: str, df: DataFrame, hours: Sequence[int]) -> list[File]:
        ordered = gold.in_order(df, table, len(combine.dates(hours)))
        files = change.write(ordered, table, minute="minute" if table in BY_MINUTE else None)
        self._say(table)
        return files

    def _say(self, what: str) -> None:
        self._progress(what, self._step, len(STEPS))
        self._step += 1


def _touched(change: Change, table: str, hours: Sequence[int]) -> list[File]:
    """The files that hours are in: of tables by minute each hour has its own, of others each date."""
    if table in BY_MINUTE:
        wanted = set(hours)
        return [file for file in change.manifest(table).files if file.first in wanted]
    return change.manifest(table).of(combine.dates(hours))


def _first_hour(date: str) -> int:
    return to_ms(datetime.fromisoformat(date).replace(tzinfo=UTC)) // combine.HOUR_MS


def _archive_tasks(objects: Sequence[ArchiveObject]) -> Iterator[FromArchive]:
    """Objects of one date together, as many as are worth a file."""
    by_date: dict[str, list[ArchiveObject]] = {}
    for one in objects:
        by_date.setdefault(one.hour[:10], []).append(one)
    size = max(1, min(OBJECTS_PER_TASK, -(-len(objects) // TASKS_WANTED)))
    for date, some in sorted(by_date.items()):
        for start in range(0, len(some), size):
            part = some[start : start + size]
            first, last = min(one.first for one in part), max(one.last for one in part)
            yield FromArchive(date, [one.key for one in part], first, last)


def _silver_tasks(change: Change) -> Iterator[FromSilver]:
    """Jobs and attempts each by themselves: what they add is added up anyway."""
    for file in change.manifest("silver/jobs").files:
        yield FromSilver([file], [])
    for file in change.manifest("silver/attempts").files:
        yield FromSilver([], [file])


def _compactions(change: Change) -> Iterator[Compaction]:
    for table in ("bronze/events", "silver/jobs", "silver/attempts"):
        manifest = change.manifest(table)
        by_date: dict[str, list[File]] = {}
        for file in manifest.files:
            if file.bytes < SMALL_BYTES:
                by_date.setdefault(file.date, []).append(file)
        for date, small in by_date.items():
            if len(small) < COMPACT_FILES:
                continue
            taken: list[File] = []
            for file in small:
                if sum(one.bytes for one in taken) + file.bytes <= COMPACTED_BYTES:
                    taken.append(file)
            yield Compaction(table, date, taken, manifest.columns)


def _cursor_of(snapshot: Snapshot) -> Cursor:
    raw: dict[str, Any] = snapshot.root.cursor
    return msgspec.convert(raw, Cursor) if raw else Cursor()
