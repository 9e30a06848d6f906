"""The pipeline: brings the tables of a warehouse up to date with the history of a queue.

A run goes from the cursor, the position up to which the warehouse is complete, to the horizon. First it writes that
plan to the root; then it commits to each table, once; last it replaces the root, which names the new
versions and moves the cursor. A run that dies anywhere is completed by the next one, and two may run at once: both
carry out the same plan, and each table takes one of them.

Spark does the work: `format("casque")` reads the queue, the models' SQL makes the tables, Spark writes the files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from casque.clock import Clock, SystemClock, new_nonce, system_random
from casque.errors import CASConflictError, CorruptQueueError, HistoryGoneError, InvalidInputError
from casque.prices import S3
from casque.scan import Scan, Table
from casque.scan.horizon import Bound, Sight, look_around
from casque.scan.shards import shard_name
from casque.scan.tables import COLUMNS
from casque.spark.expectations import Expect, Found, Progress, breaks, watched
from casque.spark.files import File, frame, write
from casque.spark.lineage import Lineage, Written
from casque.spark.models import Model, ddl, models, text
from casque.spark.offsets import Offsets
from casque.spark.options import OnGone
from casque.spark.session import activate, own_session, prepare
from casque.spark.store_ref import StoreRef
from casque.spark.table_log import Known, TableLog
from casque.spark.task_errors import as_raised
from casque.spark.upkeep import keep_small
from casque.spark.warehouse import Snapshot, Warehouse
from casque.types import from_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOURS_LISTED = 2_000
"""More touched hours than these are not listed in a query: everything is computed anew."""
AT_ONCE = 3
"""Queries that run at the same time."""
EVER = datetime(1970, 1, 1, tzinfo=UTC)
SILVER = ("silver/jobs", "silver/attempts", "silver/queue")
GOLD = tuple(name for name in models() if name.startswith("gold/"))
WITHOUT_PAYLOADS = ("payload", "result")

STEPS = ("look at the queue", "bronze and silver", "what changed", *GOLD, "the root")


class Cursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the warehouse is. Stored in its root."""

    queue_id: str = ""
    position: int = 0
    """The warehouse is complete up to here."""
    bronze: int = 0
    """The last commit in `bronze/events`."""
    shards: Mapping[str, Cursor] = {}
    """For a ring, the cursor of each shard. The ring's own position is their sum."""
    as_of_ms: int = 0
    """The time of the position."""
    name: str = ""
    """The queue's URL, without options."""

    def of(self, shard: int | None) -> Cursor:
        """A new shard starts with an empty cursor."""
        return self if shard is None else self.shards.get(shard_name(shard), Cursor())


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a run does, so that any process can carry it out."""

    run: int
    to: Cursor
    has_log: bool
    rebuild: bool = False
    payloads: bool = False
    put_dollars: float = S3.put


class Batch(NamedTuple):
    """A batch of a stream of events, to be carried out by a run."""

    events: DataFrame
    start: Offsets | None
    """None if it is not known."""
    end: Offsets | None

    def upto(self, shard: int | None) -> int:
        """Where a run with this batch ends. Shards that are newer than the batch are read to their end."""
        return sys.maxsize if self.end is None or shard not in self.end.of else self.end.of[shard].position

    def covers(self, queue_id: str, begin: Mapping[int | None, int], end: Mapping[int | None, int]) -> bool:
        """Whether it has all events after these positions and up to those."""
        if self.start is None or self.end is None or self.end.queue not in (None, queue_id):
            return False
        begins = all(self.start.at(shard).position <= position for shard, position in begin.items())
        return begins and all(position <= self.end.at(shard).position for shard, position in end.items())


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
    hours: int = 0
    """Hours of the gold tables that were computed anew."""
    files: int = 0
    bytes: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    """Commits missing from `bronze/events` because they were collected: first and last."""
    broken: tuple[Found, ...] = ()
    """Rules that rows of a table break."""
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
    put_dollars: float = S3.put
    adopt: bool = False
    """Continue although the queue has another id: it was converted."""
    rebuild: bool = False
    """Compute all of gold anew from silver."""
    models: Mapping[str, Model] = {}
    """Further tables, made after ours: `casque.spark.models.own_models` reads them from SQL files."""
    expect: Expect = Expect.WARN
    """What to do about rows that break a rule of their table."""


def run(
    spark: SparkSession,
    url: str,
    warehouse: Warehouse | str,
    *,
    options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
    batch: Batch | None = None,
    lineage: Lineage | None = None,
) -> Summary:
    """Bring a warehouse up to date with a queue; with a `batch`, up to its end. `options` are those of the queue's
    store. `lineage` is where the run is reported.

    Raises:
        InvalidInputError: there is no queue, or the warehouse belongs to another queue.
        HistoryGoneError: commits were collected before they could be read.
        CASConflictError: another writer changed a table meanwhile.
    """
    clock = clock or SystemClock()
    begun_ms = clock.monotonic_ms()
    to = warehouse if isinstance(warehouse, Warehouse) else Warehouse(warehouse)
    # Views cannot be shared between sessions, so a run with a batch works in that of its query.
    session = own_session(spark) if batch is None else prepare(batch.events.sparkSession)
    one = _Runs(session, StoreRef(url, options), to, settings or Settings(), progress or (lambda *_: None), batch)
    reported = None if lineage is None else lineage.start(url, to.store_ref.url)
    try:
        with as_raised():
            summary = one.run()
    except BaseException as error:
        if reported is not None:
            reported.fail(error)
        raise
    finally:
        activate(spark)
    if reported is not None:
        reported.complete(summary.position, one.models, one.written, one.versions)
    return msgspec.structs.replace(summary, elapsed_ms=clock.monotonic_ms() - begun_ms)


class _Runs:
    """Runs until the warehouse has reached the end of the queue."""

    def __init__(
        self,
        spark: SparkSession,
        queue: StoreRef,
        warehouse: Warehouse,
        settings: Settings,
        progress: Progress,
        batch: Batch | None,
    ) -> None:
        self._spark = spark
        self._queue = queue
        self._warehouse = warehouse
        self._settings = settings
        self._progress = progress
        self._batch = batch
        self.models = {**models(), **settings.models}
        self.written: dict[str, Written] = {}
        """By table; tables to which another process has committed this run have no rows here."""
        self.versions: Mapping[str, int] = {}

    def run(self) -> Summary:
        snapshot = self._warehouse.snapshot()
        cursor = cursor_of(snapshot)
        summary = Summary(cursor.position, cursor.position)
        rebuild = self._settings.rebuild
        while True:
            self._progress(STEPS[0], 0, len(STEPS))
            sight = self._look(cursor_of(snapshot))
            if not all(one.has_log for one in sight.shards.values()):
                note = "the queue has the document layout, which keeps no log: bronze and requests stay empty"
                summary = msgspec.structs.replace(summary, notes=(note,))
            if snapshot.root.plan is None:
                if sight.position <= cursor_of(snapshot).position and not rebuild:
                    return summary
                if self._settings.on_gone is OnGone.FAIL:
                    refuse_gaps(cursor_of(snapshot), sight)
                plan = self._plan(snapshot, sight, rebuild=rebuild)
                root = msgspec.structs.replace(snapshot.root, plan=msgspec.to_builtins(plan))
                snapshot = self._warehouse.write(snapshot, root)
                rebuild = False
            plan = msgspec.convert(snapshot.root.plan, Plan)
            one = Run(
                self._spark,
                self._queue,
                self._warehouse,
                snapshot,
                plan,
                sight,
                self._settings,
                self._progress,
                self._batch,
            )
            summary = _added(summary, one.carry_out())
            snapshot = self._finish(snapshot, plan)
            self.written = {name: self.written.get(name, Written()) + more for name, more in one.written.items()}
            self.versions = snapshot.root.tables
            snapshot = keep_small(self._spark, self._warehouse, snapshot)
            if sight.is_end and sight.position <= cursor_of(snapshot).position and not rebuild:
                return summary

    def _finish(self, snapshot: Snapshot, plan: Plan) -> Snapshot:
        tables = {**snapshot.root.tables, **{name: self._warehouse.log(name).version for name in self.models}}
        done = msgspec.structs.replace(
            snapshot.root, run=plan.run, tables=tables, cursor=msgspec.to_builtins(plan.to), plan=None
        )
        try:
            return self._warehouse.write(snapshot, done)
        except CASConflictError:
            found = self._warehouse.snapshot()
            if found.root.run < plan.run:
                raise
            return found  # another process carried out the same plan

    def _look(self, cursor: Cursor) -> Sight:
        return look(self._queue, cursor, adopt=self._settings.adopt, upto=self._batch and self._batch.upto)

    def _plan(self, snapshot: Snapshot, sight: Sight, *, rebuild: bool) -> Plan:
        cursors = {
            shard: Cursor(one.queue_id, one.position, one.position if one.has_log else 0)
            for shard, one in sight.shards.items()
        }
        whole = cursors.get(None) or Cursor(
            sight.queue_id,
            sight.position,
            shards={shard_name(shard or 0): cursor for shard, cursor in cursors.items()},
        )
        as_of_ms = max(one.at_ms for one in sight.shards.values()) or self._warehouse.now_ms()
        return Plan(
            run=snapshot.root.run + 1,
            to=msgspec.structs.replace(whole, as_of_ms=as_of_ms, name=self._queue.url.partition("?")[0]),
            has_log=all(one.has_log for one in sight.shards.values()),
            rebuild=rebuild,
            payloads=self._settings.payloads,
            put_dollars=self._settings.put_dollars,
        )


class Run:
    """Carries out one plan."""

    def __init__(
        self,
        spark: SparkSession,
        queue: StoreRef,
        warehouse: Warehouse,
        before: Snapshot,
        plan: Plan,
        sight: Sight,
        settings: Settings,
        progress: Progress,
        batch: Batch | None = None,
    ) -> None:
        self._batch = batch
        self._queue = queue
        self._warehouse = warehouse
        self._before = before
        self._cursor = cursor_of(before)
        self._plan = plan
        self._sight = sight
        self._settings = settings
        self._progress = progress
        self._step = 0
        self._lock = RLock()
        self._spark = spark
        self._folder = f"run-{plan.run:09d}-{new_nonce(system_random())[:8]}"
        self._models = {**models(), **settings.models}
        self._logs: dict[str, TableLog] = {name: warehouse.log_of(model) for name, model in self._models.items()}
        self._summary = Summary(self._cursor.position, plan.to.position)
        self._event_hours: list[datetime] | None = []
        """The hours of new events; None if they are too many."""
        self._found: list[Found] = []
        self.written = dict.fromkeys(self._models, Written())

    def carry_out(self) -> Summary:
        for function in ("error_class", "span_ms"):
            self._spark.sql(text(function))
        self._describe_run(EVER)
        self._say("bronze and silver")
        self._at_once(self._history, self._queued)
        self._say("what changed")
        self._gold()
        return self._summary

    def _at_once(self, *works: Callable[[], None]) -> None:
        """Much of a small query's time goes into planning and compiling it, beside which another one can run."""
        with ThreadPoolExecutor(AT_ONCE, initializer=activate, initargs=(self._spark,)) as pool:
            for done in [pool.submit(work) for work in works]:
                done.result()

    # --- Bronze and silver: what is new ---

    def _history(self) -> None:
        self._finished(self._bronze())

    def _bronze(self) -> datetime | None:
        """The hour of the first new commit; None if bronze lacks some of them, or they span too many hours."""
        if not self._plan.has_log:
            self._commit("bronze/events", None)
            self._commit("bronze/gaps", None)
            return None
        starts, gaps = self._starts()
        noticed = f"timestamp_millis({self._warehouse.now_ms()})"
        rows = [f"({shard or 0}, {first}L, {last}L, {noticed})" for shard, first, last in gaps]
        if rows:
            self._spark.sql(
                f"SELECT * FROM VALUES {', '.join(rows)} AS gaps(shard, first, last, noticed_at)"
            ).createOrReplaceTempView("gaps")
        self._events(starts)
        self._commit("bronze/events", models()["bronze/events"].query)
        self._commit("bronze/gaps", models()["bronze/gaps"].query if rows else None)
        self._count(events=self._rows("bronze/events"), gaps=tuple((first, last) for _, first, last in gaps))
        self._view("bronze/events", self._new("bronze/events"))
        self._event_hours = self._hours("SELECT DISTINCT date_trunc('HOUR', at) AS hour FROM bronze_events")
        whole = all(cursor.bronze == cursor.position for cursor in map(self._cursor.of, self._sight.shards))
        return min(self._event_hours) if self._event_hours and whole and not gaps else None

    def _events(self, starts: Mapping[int | None, int]) -> None:
        """The new events as a view: from the batch of the stream, or read again if that begins or ends elsewhere."""
        ends = {shard: self._plan.to.of(shard).bronze for shard in self._sight.shards}
        batch = self._batch
        if (
            batch is not None
            and self._plan.payloads is self._settings.payloads
            and batch.covers(self._sight.queue_id, starts, ends)
        ):
            new = " OR ".join(
                f"(shard = {shard or 0} AND position > {starts[shard]}L AND position <= {ends[shard]}L)"
                for shard in ends
            )
            with_all(batch.events.where(new), Table.EVENTS).createOrReplaceTempView("events")
            return
        skipped = () if self._plan.payloads else WITHOUT_PAYLOADS
        self._source(Table.EVENTS, "events", skipped, **{"from": positions(starts), "to": positions(ends)})

    def _starts(self) -> tuple[dict[int | None, int], list[tuple[int | None, int, int]]]:
        """The positions after which events are read; and the gaps before them: what the log has dropped."""
        if self._settings.on_gone is OnGone.FAIL:
            refuse_gaps(self._cursor, self._sight)
        read = {shard: self._cursor.of(shard).bronze for shard in self._sight.shards}
        floors = {shard: one.floor for shard, one in self._sight.shards.items()}
        gaps = [(shard, read[shard] + 1, floors[shard]) for shard in read if read[shard] < floors[shard]]
        return {shard: max(read[shard], floors[shard]) for shard in read}, gaps

    def _finished(self, since: datetime | None) -> None:
        span = {"from": self._positions("position", self._cursor), "to": self._positions("position", self._plan.to)}
        # A finish is archived under the hour of its commit, so hours before the first one need not be listed.
        if since is not None:
            span["since"] = since.isoformat()
        self._source(Table.ARCHIVE, "archive", ("payload", "result", "headers", "hour"), **span)
        self._commit("silver/jobs", models()["silver/jobs"].query)
        self._view("silver/jobs", self._new("silver/jobs"))
        self._commit("silver/attempts", models()["silver/attempts"].query)
        self._count(jobs=self._rows("silver/jobs"), attempts=self._rows("silver/attempts"))

    def _queued(self) -> None:
        as_of = self._as_of()
        self._source(Table.JOBS, "jobs", ("payload", "headers"), **({} if as_of is None else {"asOf": as_of}))
        self._commit("silver/queue", models()["silver/queue"].query, replaced=self._logs["silver/queue"].files())
        self._count(queued=sum(one.rows for one in self._logs["silver/queue"].files()))

    def _as_of(self) -> str | None:
        """The jobs as of the plan's position; as of now if that is gone by now, or there is no log."""
        if not self._plan.has_log:
            return None
        with Scan(self._queue.url, options=self._queue.options) as scan:
            try:
                scan.plan_jobs(_point(self._plan.to), splits=1)
            except HistoryGoneError:
                return None
        return self._positions("position", self._plan.to)

    # --- Gold: the hours that changed ---

    def _gold(self) -> None:
        touched = self._touched()
        event_hours = None if self._plan.rebuild else self._event_hours
        since = EVER
        if touched is not None and event_hours is not None:
            since = min([*touched, *event_hours], default=EVER)
        first = str(since.date())
        for name in ("silver/jobs", "silver/attempts"):
            self._view(name, [one for one in self._logs[name].files() if one.last >= first])
        self._view("silver/queue", self._logs["silver/queue"].files())
        self._describe_run(since)
        self._count(hours=len(touched or ()))
        self._view("bronze/events", self._dated("bronze/events", _dates(event_hours)))
        # A level that changes stays changed.
        levels = touched and _since(min(touched), from_ms(self._plan.to.as_of_ms))
        self._at_once(
            partial(self._replace_all, ("gold/minutes", "gold/hours", "gold/fairness"), touched),
            partial(self._replace_all, ("gold/depth",), levels),
            partial(self._replace_all, ("gold/requests",), event_hours),
            partial(self._replace_all, ("gold/workers", "gold/dead_letters"), touched),
        )
        self._own(touched)
        self._keep_what_was_found()
        self._say("the root")

    def _replace_all(self, names: Sequence[str], hours: Sequence[datetime] | None) -> None:
        """Tables one after the other, each of which may read those before it."""
        for name in names:
            self._say(name)
            self._replace(models()[name], hours)

    def _own(self, touched: Sequence[datetime] | None) -> None:
        """The models of users, by whole dates. One that missed a run is computed from everything."""
        for model in self._settings.models.values():
            hours = None if self._logs[model.name].run < self._before.root.run else touched
            dates = _dates(hours)
            for name in self._models:
                files = self._dated(name, dates)
                if name in SILVER and dates:
                    files = [one for one in self._logs[name].files() if one.last >= min(dates)]
                self._view(name, files)
            self._replace(model, hours, by="date")

    def _touched(self) -> list[datetime] | None:
        """The hours whose figures change; None for all of them."""
        if self._plan.rebuild or not self._before.root.run:
            return None
        self._view("silver/jobs", self._new("silver/jobs"), name="new_jobs")
        self._view("silver/queue", self._logs["silver/queue"].files(), name="new_queue")
        self._view("silver/queue", self._before.files("silver/queue"), name="old_queue")
        touched = self._hours(text("touched"))
        # Its last minute was not over.
        last = from_ms(self._cursor.as_of_ms).replace(minute=0, second=0, microsecond=0)
        return touched if touched is None else sorted({*touched, last})

    def _hours(self, query: str) -> list[datetime] | None:
        rows = self._spark.sql(f"SELECT unix_millis(hour) AS ms FROM ({query})").collect()
        found = sorted(from_ms(row["ms"]) for row in rows)
        return found if len(found) <= HOURS_LISTED else None

    def _replace(self, model: Model, hours: Sequence[datetime] | None, *, by: str = "hour") -> None:
        """Compute the rows of these hours, or all; the other rows of their dates stay."""
        dates = _dates(hours)
        replaced = self._dated(model.name, dates)
        if not hours:
            self._commit(model.name, None if hours == [] else _sorted(model, model.query), replaced=replaced)
        else:
            kept = f"kept_{model.view}"
            self._view(model.name, replaced, name=kept)
            chosen = _chosen("date", sorted(dates or ()), "DATE'{}'")
            if by == "hour":
                whole = _chosen(f"date_trunc('HOUR', {model.time})", hours, "TIMESTAMP'{:%Y-%m-%d %H:%M:%S}Z'")
                chosen = f"{chosen} AND {whole}"
            query = f"SELECT * FROM ({model.query}) WHERE {chosen} UNION ALL SELECT * FROM {kept} WHERE NOT ({chosen})"
            self._commit(model.name, _sorted(model, query), replaced=replaced)
        self._view(model.name, self._dated(model.name, dates))

    # --- Tables ---

    def _commit(self, name: str, query: str | None, *, replaced: Sequence[Known] = ()) -> None:
        """Write the rows of a query and commit them, unless this run has done so already. Without a query only the
        run's mark is written: a process that is later with the same plan then finds it."""
        log = self._logs[name]
        if log.run >= self._plan.run:
            return
        files = [] if query is None else self._written(self._models[name], query)
        if log.commit(self._plan.run, files, replaced, self._warehouse.now_ms()):
            size = sum(one.bytes for one in files)
            self.written[name] = Written(sum(one.rows for one in files), size)
            self._count(files=len(files), bytes=size)

    def _written(self, model: Model, query: str) -> list[File]:
        """
        Raises:
            CorruptQueueError: rows break a rule of the table, and the run is meant to stop then.
        """
        df, look = watched(self._spark.sql(query), None if self._settings.expect is Expect.OFF else model)
        files = write(df, self._warehouse.store_ref, model.name, self._folder)
        found = look()
        self._found += found
        broken = tuple(one for one in found if one.broken)
        if not broken:
            return files
        self._count(broken=broken)
        if self._settings.expect is Expect.FAIL:
            problem = "; ".join(f"{one.broken:,} of {one.rows:,} rows break the rule {one.rule!r}" for one in broken)
            raise CorruptQueueError(
                model.name,
                f"{problem}. Nothing of it is in the table. Go on with --expect warn, or with --expect quarantine to "
                "leave these rows out",
            )
        if self._settings.expect is Expect.WARN:
            return files
        with self._lock:  # guards the temporary view
            self._set_aside(model, query)
        kept = self._spark.sql(f"SELECT * FROM ({query}) WHERE NOT ({breaks(model)})")
        return write(kept, self._warehouse.store_ref, model.name, f"{self._folder}-kept")

    def _set_aside(self, model: Model, query: str) -> None:
        """Keep the rows that break a rule in `quality/rows`, before the table goes on without them."""
        every = ", ".join(f"IF({breaks(model, rule)}, '{rule}', NULL)" for rule in model.rules)
        self._spark.sql(
            f"SELECT timestamp_millis({self._warehouse.now_ms()}) AS checked_at, {self._plan.run}L AS run, "
            f"'{model.name}' AS table, array_compact(array({every})) AS rules, to_json(struct(*)) AS row "
            f"FROM ({query}) WHERE {breaks(model)}"
        ).createOrReplaceTempView("broken")
        rows = self._models["quality/rows"]
        aside = write(self._spark.sql(rows.query), self._warehouse.store_ref, rows.name, f"{self._folder}-{model.view}")
        self._logs[rows.name].append(aside, self._warehouse.now_ms())

    def _keep_what_was_found(self) -> None:
        rules, checked_at = self._models["quality/rules"], from_ms(self._warehouse.now_ms())
        found = [
            (checked_at, self._plan.run, one.table, one.rule, one.rows, one.broken, self._settings.expect.value)
            for one in self._found
        ]
        schema = {name: kind for name, kind in rules.types.items() if name != "date"}
        self._spark.createDataFrame(found, ddl(schema)).createOrReplaceTempView("results")
        self._commit(rules.name, rules.query if found else None)
        self._commit("quality/rows", None)

    def _new(self, name: str) -> list[Known]:
        """The files that this run, or a process that carried out its plan before, has added."""
        return [one for one in self._logs[name].files() if one.path.startswith(f"run-{self._plan.run:09d}-")]

    def _dated(self, name: str, dates: Collection[str] | None) -> list[Known]:
        return [one for one in self._logs[name].files() if one.holds(dates)]

    def _rows(self, name: str) -> int:
        return sum(one.rows for one in self._new(name))

    def _view(self, table: str, files: Sequence[Known], *, name: str | None = None) -> None:
        model = self._models[table]
        found = frame(self._spark, self._warehouse.store_ref, table, [one.path for one in files], model.types)
        found.createOrReplaceTempView(name or model.view)

    def _source(self, table: Table, view: str, without: Collection[str], **options: str) -> None:
        """A table of the queue as a view, without columns that are costly and not needed."""
        reader = self._spark.read.format("casque").schema(columns_without(table, without)).option("table", table)
        for name, value in self._queue.options.items():
            reader = reader.option(f"store.{name}", value)
        with_all(reader.options(**options).load(self._queue.url), table).createOrReplaceTempView(view)

    def _describe_run(self, since: datetime) -> None:
        """What models need to know of the run itself: the view `run`, of one row."""
        columns = {
            "as_of": f"timestamp_millis({self._plan.to.as_of_ms})",
            "since": f"TIMESTAMP'{since:%Y-%m-%d %H:%M:%S}Z'",
            "put_dollars": f"{self._plan.put_dollars!r}D",
        }
        one = self._spark.sql("SELECT " + ", ".join(f"{value} AS {name}" for name, value in columns.items()))
        one.createOrReplaceTempView("run")

    def _positions(self, what: str, cursor: Cursor) -> str:
        return positions({shard: getattr(cursor.of(shard), what) for shard in self._sight.shards})

    def _count(self, **more: Any) -> None:
        with self._lock:
            self._summary = _added(self._summary, Summary(self._summary.before, self._summary.position, **more))

    def _say(self, what: str) -> None:
        with self._lock:
            self._step += 1
            self._progress(what, self._step, len(STEPS))


def columns_without(table: Table, without: Collection[str]) -> str:
    """The schema of a table of the queue, without some columns."""
    return ddl({name: kind for name, kind in COLUMNS[table].items() if name not in without})


def with_all(df: DataFrame, table: Table) -> DataFrame:
    """A table of the queue with all of its columns: those that were left out are null."""
    missing = [name for name in COLUMNS[table] if name not in df.columns]
    return df.selectExpr("*", *(f"CAST(NULL AS {COLUMNS[table][name]}) AS `{name}`" for name in missing))


def _sorted(model: Model, query: str) -> str:
    """In files of a good size, each date together and sorted."""
    return f"SELECT /*+ REBALANCE(date) */ * FROM ({query}) SORT BY date, {', '.join(model.unique)}"


def _dates(hours: Iterable[datetime] | None) -> set[str] | None:
    return None if hours is None else {str(hour.date()) for hour in hours}


def _chosen(what: str, values: Iterable[Any], written: str) -> str:
    return f"{what} IN ({', '.join(written.format(value) for value in values)})"


def _since(first: datetime, last: datetime) -> list[datetime]:
    """All hours from one to another: a level that changes stays changed."""
    count = max(0, (last - first) // timedelta(hours=1)) + 1
    return [first + timedelta(hours=number) for number in range(count)]


def positions(of: Mapping[int | None, int]) -> str:
    """As the source's options take them."""
    if None in of:
        return str(of[None])
    return msgspec.json.encode({shard_name(shard or 0): position for shard, position in of.items()}).decode()


def _point(cursor: Cursor) -> int | Mapping[int, int]:
    """As a scan takes it."""
    return {int(shard): one.position for shard, one in cursor.shards.items()} or cursor.position


def look(queue: StoreRef, cursor: Cursor, *, adopt: bool = False, upto: Bound | None = None) -> Sight:
    """What is new after a cursor.

    Raises:
        InvalidInputError: there is no queue, or it is not the one of this cursor.
    """
    sight = queue.run(partial(look_around, known=lambda shard: cursor.of(shard).position, upto=upto))
    if cursor.queue_id and bool(cursor.shards) is (None in sight.shards):
        raise InvalidInputError(
            f"this warehouse is that of the queue {cursor.queue_id}, and {sight.queue_id} is another: a ring of "
            "shards has a warehouse of its own"
        )
    known = {cursor.queue_id: sight.queue_id}
    known |= {cursor.of(shard).queue_id: one.queue_id for shard, one in sight.shards.items()}
    for expected, found in known.items():
        if expected not in ("", found) and not adopt:
            raise InvalidInputError(
                f"this warehouse is that of the queue {expected}, and here is {found}. If the queue "
                "was converted to another layout since, go on with --adopt; if it is another queue, give it a "
                "warehouse of its own"
            )
    return sight


def refuse_gaps(cursor: Cursor, sight: Sight) -> None:
    """
    Raises:
        HistoryGoneError: the log has dropped commits that follow what was read. A first run starts with what is left.
    """
    for shard, horizon in sight.shards.items():
        known = cursor.of(shard)
        if known.queue_id and horizon.has_log and known.bronze < horizon.floor:
            where = "" if shard is None else f" of shard {shard_name(shard)}"
            raise HistoryGoneError(
                f"bronze/events cannot go on: what follows position {known.bronze}{where} (up to {horizon.floor}) was "
                "collected before it was read, so run the pipeline more often, or go on without it with --on-gone skip "
                f"(finished jobs come from the archive and miss nothing); position {known.bronze + 1}",
                horizon.floor + 1,
            )


def _added(one: Summary, more: Summary) -> Summary:
    return Summary(
        one.before,
        more.position,
        one.events + more.events,
        one.jobs + more.jobs,
        one.attempts + more.attempts,
        more.queued or one.queued,
        one.hours + more.hours,
        one.files + more.files,
        one.bytes + more.bytes,
        (*one.gaps, *more.gaps),
        (*one.broken, *more.broken),
        one.notes or more.notes,
    )


def cursor_of(snapshot: Snapshot) -> Cursor:
    """How far a warehouse is."""
    return msgspec.convert(snapshot.root.cursor, Cursor) if snapshot.root.cursor else Cursor()
