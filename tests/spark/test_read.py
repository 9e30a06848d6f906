"""A queue's tables as DataFrames: the same rows that plain Python reads, and nothing but reads."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, StructField, StructType

from casque import Queue, SyncQueue
from casque.errors import InvalidInputError, NotInstalledError
from casque.scan import Scan, Table, ddl
from casque.service import Outcome
from casque.settings import ArchiveFormat
from casque.spark import register
from casque.spark.options import SourceOptions, about_options
from casque.spark.reader import CasqueReader
from casque.spark.source import CasqueDataSource
from casque.state.events import Claimed
from casque.testing.clock import ManualClock
from tests.spark.histories import complete, ring_of, varied
from tests.support.servers import Server

pytestmark = pytest.mark.xdist_group("spark")

START = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
"""When a manual clock begins."""
Place = tuple[str, dict[str, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    url = tmp_path_factory.mktemp("queue").as_uri()
    asyncio.run(varied(url, ManualClock(), retention=timedelta(days=30)))
    return url, {}


@pytest.fixture
def registered(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def reading(spark: SparkSession, place: Place, table: str, **options: Any) -> DataFrame:
    url, store = place
    reader = spark.read.format("casque").option("table", table).option("splits", 2)
    for name, value in {**{f"store.{name}": value for name, value in store.items()}, **options}.items():
        reader = reader.option(name, value)
    return reader.load(url)


def planned(scan: Scan, table: Table) -> list[Any]:
    if table is Table.EVENTS:
        return list(scan.plan_events())
    return scan.plan_jobs() if table is Table.JOBS else list(scan.plan_archive(table=table))


def expected(place: Place, table: Table) -> list[dict[str, Any]]:
    """What plain Python reads; tests of `Scan` hold that against the queue itself."""
    url, store = place
    with Scan(url, options=store) as scan:
        return in_order(scan.table(planned(scan, table), table).to_pylist())


def shown(frame: DataFrame) -> list[dict[str, Any]]:
    """Through Arrow, so that times come as instants whatever the zone of the session."""
    return in_order(frame.toArrow().to_pylist())


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("shard", "position", "index", "sequence", "attempt", "job_id", "id")
    return sorted(rows, key=lambda row: [str(row.get(name)).rjust(40) for name in names])


def objects(place: Place) -> dict[str, int]:
    """Every file with the moment of its last change."""
    root = Path(place[0].removeprefix("file://"))
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


def test_every_table_is_what_plain_python_reads_whatever_the_zone_of_the_session(
    registered: SparkSession, place: Place
) -> None:
    before = objects(place)
    for table, zone in zip(Table, ("UTC", "America/New_York", "Asia/Kolkata", "Pacific/Auckland"), strict=True):
        registered.conf.set("spark.sql.session.timeZone", zone)
        try:
            rows = shown(reading(registered, place, table))
        finally:
            registered.conf.set("spark.sql.session.timeZone", "UTC")
        assert rows == expected(place, table)
        assert rows
    assert objects(place) == before


def test_every_table_of_a_queue_on_s3(registered: SparkSession, s3_server: Server) -> None:
    place = s3_server.fresh_url(), s3_server.options
    asyncio.run(varied(place[0], ManualClock(), options=place[1], retention=timedelta(days=30)))
    for table in Table:
        frame = reading(registered, place, table)
        assert shown(frame) == expected(place, table)
        assert s3_server.options["secret_access_key"] not in explained(frame)


def test_every_table_of_a_ring(registered: SparkSession, tmp_path: Path) -> None:
    place: Place = (tmp_path / "ring").as_uri(), {}
    asyncio.run(ring_of(place[0], 3))
    asyncio.run(varied(place[0], ManualClock(), 2, retention=timedelta(days=30)))
    for table in Table:
        rows = shown(reading(registered, place, table))
        assert rows == expected(place, table)
        assert len({row["shard"] for row in rows}) > 1
    then = START + timedelta(seconds=30)
    with Scan(place[0]) as scan:
        as_it_was = in_order(scan.table(scan.plan_jobs(then), Table.JOBS).to_pylist())
    assert shown(reading(registered, place, "jobs", asOf=then.isoformat())) == as_it_was != []
    one = reading(registered, place, "events").where("shard = 1")
    assert {row["shard"] for row in shown(one)} == {1}
    with pytest.raises(PySparkException, match=r"asOf: each of the 3 shards"):
        reading(registered, place, "jobs", asOf=1).count()


def test_every_table_of_a_history_with_every_kind_of_event(registered: SparkSession, tmp_path: Path) -> None:
    place: Place = (tmp_path / "ring").as_uri(), {}
    asyncio.run(complete(place[0], ManualClock()))
    for table in Table:
        assert shown(reading(registered, place, table)) == expected(place, table) != []


def test_both_ends_of_every_range_of_whole_numbers_are_read(
    registered: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place: Place = (tmp_path / "queue").as_uri(), {}
    least, most = -(2**63), 2**63 - 1

    def claimed(job_id: str, token: int, *others: Any) -> Claimed:
        """As after many claims: the last token is the largest."""
        return Claimed(job_id, token if token > 2**62 else most - 4, *others)

    monkeypatch.setattr("casque.state.claiming.Claimed", claimed)

    async def work() -> None:
        low = {"priority": least, "max_attempts": 1, "max_crashes": 1}
        high = {"priority": most, "max_attempts": most, "max_crashes": most}
        async with Queue.open(place[0], retention=timedelta(days=30)) as q:
            await q.enqueue("ends", b"", **low)  # type: ignore[arg-type]
            await q.enqueue("ends", b"", **high)  # type: ignore[arg-type]
            for name in ("runs", "waits"):
                await q.enqueue(name, b"", **low)  # type: ignore[arg-type]
                await q.enqueue(name, b"", **high)  # type: ignore[arg-type]
            [one] = await q.dequeue("ends")
            await one.ack()
            [two] = await q.dequeue("ends")
            await two.nack(delay=0)
            [two] = await q.dequeue("ends")
            await two.ack()
            for _ in range(2):
                assert len(await q.dequeue("runs", lease=3600)) == 1

    asyncio.run(work())
    seen = {table: shown(reading(registered, place, table)) for table in Table}
    for table in (Table.JOBS, Table.EVENTS, Table.ARCHIVE):
        for name, ends in {
            "priority": {least, most},
            "max_attempts": {1, most},
            "max_crashes": {1, most},
        }.items():
            assert {row[name] for row in seen[table]} - {None} == ends, (table, name)
    tokens = {table: {row["token"] for row in rows} - {None} for table, rows in seen.items()}
    assert tokens == {
        Table.JOBS: {0, most - 1, most},
        Table.EVENTS: {most - 4, most - 3, most - 2, most - 1, most},
        Table.ARCHIVE: {most - 4, most - 2},
        Table.ATTEMPTS: {most - 4, most - 3, most - 2},
    }
    for table in Table:
        assert seen[table] == expected(place, table)


def test_shards_with_little_share_tasks(tmp_path: Path) -> None:
    place: Place = (tmp_path / "ring").as_uri(), {}
    asyncio.run(ring_of(place[0], 5))
    schema = StructType([StructField("shard", IntegerType())])
    given = {"path": place[0], "table": "events", "splits": "2"}
    reader = CasqueReader(SourceOptions.parse(given), schema)
    read = [[row["shard"] for batch in reader.read(one) for row in batch.to_pylist()] for one in reader.partitions()]
    assert read == [[0, 1, 2], [3, 4]]


def explained(frame: DataFrame) -> str:
    text = frame._jdf.queryExecution().toString()
    return str(text)


def test_the_jobs_as_of_a_position_and_of_a_time(registered: SparkSession, place: Place) -> None:
    with Scan(place[0]) as scan:
        for as_of in (7, START + timedelta(hours=1, seconds=30)):
            rows = shown(
                reading(registered, place, "jobs", asOf=as_of if isinstance(as_of, int) else as_of.isoformat())
            )
            assert rows == in_order(scan.table(scan.plan_jobs(as_of), Table.JOBS).to_pylist())
            assert rows


def test_the_jobs_of_a_document(registered: SparkSession, tmp_path: Path) -> None:
    place: Place = tmp_path.as_uri(), {}
    asyncio.run(varied(place[0], ManualClock(), layout="document"))
    assert shown(reading(registered, place, "jobs")) == expected(place, Table.JOBS)
    with pytest.raises(PySparkException, match="casque queue convert"):
        reading(registered, place, "jobs", asOf=1).count()


def test_a_schema_of_ones_own_prunes_columns(registered: SparkSession, place: Place) -> None:
    reader = registered.read.format("casque").option("table", "archive")
    few = reader.schema("finished_at timestamp, id string not null").load(place[0]).toArrow()
    assert few.column_names == ["finished_at", "id"]
    assert in_order(few.to_pylist()) == in_order(
        [{name: row[name] for name in ("finished_at", "id")} for row in expected(place, Table.ARCHIVE)]
    )
    with pytest.raises(PySparkException, match="position of the table archive is bigint, not int"):
        reader.schema("position int").load(place[0]).count()
    with pytest.raises(PySparkException, match="no column 'identity'"):
        reader.schema("identity string").load(place[0]).count()


def read_here(given: dict[str, str], schema: str) -> list[dict[str, Any]]:
    """What driver and tasks do, in this process."""
    reader = CasqueReader(SourceOptions.parse(given), cast("StructType", StructType.fromDDL(schema)))
    return [row for one in reader.partitions() for batch in reader.read(one) for row in batch.to_pylist()]


def test_metadata_columns_come_if_they_are_asked_for(registered: SparkSession, place: Place, tmp_path: Path) -> None:
    ring: Place = (tmp_path / "ring").as_uri(), {}
    asyncio.run(ring_of(ring[0], 2))
    asyncio.run(varied(ring[0], ManualClock(), 2, retention=timedelta(days=30)))
    names = ["_shard", "_position", "_object"]
    for here in (place, ring):
        for table in Table:
            given = {"path": here[0], "table": table.value, "metadata": "true"}
            rows = read_here(given, CasqueDataSource(given).schema())
            plain = [{name: value for name, value in row.items() if name not in names} for row in rows]
            assert in_order(plain) == expected(here, table)
            assert all((row["_shard"], row["_position"]) == (row["shard"], row["position"]) for row in rows)
            found = {row["_object"] for row in rows}
            assert (found == {None}) if table is Table.JOBS else found <= objects(here).keys()
            alone = [row["_object"] for row in read_here(given, "_object string")]
            assert sorted(alone, key=str) == sorted((row["_object"] for row in rows), key=str)
    frame = reading(registered, place, "events", metadata="true", splits=6).where("_position = 3")
    assert {(row["_object"], row["position"]) for row in shown(frame)} == {(f"log/{3:020d}", 3)}
    with pytest.raises(InvalidInputError, match="metadata must be true or false, not 'yes'"):
        SourceOptions.parse({"path": place[0], "table": "jobs", "metadata": "yes"})


def test_an_action_reads_and_never_writes(registered: SparkSession, place: Place) -> None:
    before = objects(place)
    frame = reading(registered, place, "jobs")
    frame.explain()
    assert frame.limit(1).count() == 1
    cached = frame.cache()
    assert cached.count() == cached.count() > 1
    cached.unpersist()
    assert objects(place) == before


def test_a_read_beside_a_writer_sees_whole_commits_and_one_moment(registered: SparkSession, tmp_path: Path) -> None:
    place: Place = (tmp_path / "busy").as_uri(), {}
    stopped = threading.Event()

    def write() -> None:
        with SyncQueue.open(place[0]) as queue:
            while not stopped.is_set():
                queue.enqueue_many([("pair", b"left"), ("pair", b"right")])
                if len(claimed := queue.dequeue("pair", batch_size=2)) == 2:
                    queue.settle([Outcome(job.id, job.token) for job in claimed])

    with SyncQueue.open(place[0]) as queue:
        queue.enqueue_many([("pair", b"left"), ("pair", b"right")])
    writer = threading.Thread(target=write)
    writer.start()
    try:
        jobs = reading(registered, place, "jobs").toArrow().to_pylist()
        events = reading(registered, place, "events").toArrow().to_pylist()
    finally:
        stopped.set()
        writer.join()
    assert len({row["position"] for row in jobs}) == 1
    assert sorted(row["payload"] for row in jobs) == [b"left"] * (len(jobs) // 2) + [b"right"] * (len(jobs) // 2)
    last = max(row["position"] for row in events)
    with Scan(place[0]) as scan:
        assert scan.extent().end > last
        assert in_order(events) == in_order(scan.table(scan.plan_events(end=last), Table.EVENTS).to_pylist())


# --- Less than everything ---


def objects_read(spark: SparkSession, frame: DataFrame) -> int:
    """How many objects of the archive a query reads: each split names one here."""
    return frame.rdd.getNumPartitions() if frame.count() else 0


def objects_of(place: Place, hour: datetime | None = None) -> int:
    """How many the archive has, of one hour or in all."""
    archive = Path(unquote(urlsplit(place[0]).path)) / "archive"
    return len(list(archive.glob(f"{hour:%Y-%m-%dT%H}/*" if hour else "*/*")))


def test_an_hour_reads_the_objects_of_that_hour_by_option(registered: SparkSession, place: Place) -> None:
    everything = expected(place, Table.ARCHIVE)
    hour = max(row["hour"] for row in everything)
    chosen = [row for row in everything if row["hour"] == hour]
    literal = f"timestamp'{hour:%Y-%m-%d %H:%M:%S}+00:00'"
    # How many objects an hour has is the archiver's affair: a pass may begin while the hour's jobs still finish.
    last = objects_of(place, hour)
    assert 0 < last < objects_of(place)
    for table in ("archive", "attempts"):
        whole = reading(registered, place, table, splits=1000)
        assert objects_read(registered, whole) == objects_of(place)
        asked = reading(registered, place, table, splits=1000, since=hour.isoformat())
        assert objects_read(registered, asked) == last
    filtered = reading(registered, place, "archive").where(f"finished_at >= {literal} and state <> 'x'")
    assert shown(filtered) == chosen
    until = reading(registered, place, "archive", until=hour.isoformat())
    assert shown(until) == [row for row in everything if row["hour"] < hour]


@pytest.mark.parametrize("pushing", ["true", "false"])
def test_a_frame_that_is_used_again_with_other_filters_has_all_its_rows(
    registered: SparkSession, place: Place, pushing: str
) -> None:
    before = registered.conf.get("spark.sql.python.filterPushdown.enabled") or "false"
    registered.conf.set("spark.sql.python.filterPushdown.enabled", pushing)
    try:
        everything = expected(place, Table.EVENTS)
        frame = reading(registered, place, "events", splits=6)
        for chosen in ({3}, {3, 4}, {row["position"] for row in everything}):
            condition = " or ".join(f"position = {one}" for one in sorted(chosen))
            found = shown(frame.where(condition) if len(chosen) < 3 else frame)
            assert found == [row for row in everything if row["position"] in chosen]
    finally:
        registered.conf.set("spark.sql.python.filterPushdown.enabled", before)


def test_events_by_position_and_by_time(registered: SparkSession, place: Place) -> None:
    everything = expected(place, Table.EVENTS)
    middle = START + timedelta(hours=1)
    assert shown(reading(registered, place, "events", **{"from": 3, "to": 9})) == [
        row for row in everything if 3 < row["position"] <= 9
    ]
    literal = f"timestamp'{middle:%Y-%m-%d %H:%M:%S}+00:00'"
    for frame in (
        reading(registered, place, "events", **{"from": middle.isoformat(), "clockSkew": "1s"}),
        reading(registered, place, "events", clockSkew="1s").where(f"at >= {literal}"),
    ):
        assert shown(frame) == [row for row in everything if row["at"] >= middle]


# --- Words ---


def refused(spark: SparkSession, url: str, **options: Any) -> str:
    reader = spark.read.format("casque")
    for name, value in options.items():
        reader = reader.option(name, value)
    with pytest.raises(PySparkException) as caught:
        reader.load(url)
    return str(caught.value)


def test_a_wrong_option_is_refused_with_the_fix_and_without_a_secret(registered: SparkSession, place: Place) -> None:
    secret = {"store.secret_access_key": "hush-hush"}
    told = refused(registered, "s3://bucket/x", tabel="jobs", **secret)
    assert "there is no option 'tabel' for reading: did you mean 'table'?" in told
    assert "hush" not in told
    told = refused(registered, "s3://bucket/x", table="jobs", **secret, **{"store.reegion": "hush-too"})
    assert "did you mean 'region'?" in told
    assert "hush" not in told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"path": "grpc://host:7700", "table": "jobs"}, "read from the bucket, not through a broker"),
        ({"path": "memory://x", "table": "jobs"}, "lives in one process"),
        ({"path": "s3://b/x?secret_access_key=hush", "table": "jobs"}, "the option store.secret_access_key"),
        ({"table": "jobs"}, "say where the queue is.*CREATE TEMPORARY VIEW"),
        ({"path": "file:///x"}, "say what to read.*jobs, events, archive, attempts"),
        ({"path": "file:///x", "table": "job"}, "table must be one of jobs, events, archive, attempts, not 'job'"),
        ({"path": "file:///x", "table": "events", "from": "yesterday"}, "from must be a position, or a time"),
        ({"path": "file:///x", "table": "archive", "since": "2026-02-15T10:00:00"}, "a time with its zone"),
        ({"path": "file:///x", "table": "events", "clockSkew": "much"}, "a span such as"),
        ({"path": "file:///x", "table": "events", "splits": "0"}, "splits must be"),
        ({"path": "file:///x", "table": "events", "start": "now"}, "or earliest, or latest"),
        ({"path": "file:///x", "table": "events", "onGone": "ignore"}, "one of fail, skip"),
        ({"path": "file:///x", "table": "events", "asOf": "3"}, "asOf is for jobs; the table events has from, to, clo"),
        (
            {"path": "file:///x", "table": "jobs", "since": "2026-02-15T10:00:00Z"},
            "since is for archive, attempts; the",
        ),
    ],
)
def test_options_say_what_they_take(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidInputError, match=told) as caught:
        SourceOptions.parse(given)
    assert "hush" not in str(caught.value)


def test_options_of_streams_are_not_for_batches_nor_the_other_way_round() -> None:
    given = {"path": "file:///x", "table": "events"}
    with pytest.raises(InvalidInputError, match="start is for streams"):
        SourceOptions.parse({**given, "start": "latest"}).for_batch()
    with pytest.raises(InvalidInputError, match="a stream begins at start"):
        SourceOptions.parse({**given, "from": "3"}).for_stream()
    plain = SourceOptions.parse({**given, "splits": "3"})
    assert plain.for_batch() == plain.for_stream() == plain


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("ID string", "no column 'ID': did you mean 'id'?"),
        ("id string, id string", "the column id is asked for twice"),
        ("id string, key string not null", "the column key holds null, and the schema says NOT NULL"),
    ],
)
def test_a_schema_that_the_table_does_not_have_is_refused_by_the_name_of_the_column(
    place: Place, schema: str, told: str
) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(told)):
        read_here({"path": place[0], "table": "archive"}, schema)


def test_options_are_never_shown_with_their_secrets() -> None:
    given = {"path": "s3://b/x", "table": "jobs", "store.access_key_id": "me", "store.secret_access_key": "hush"}
    options = SourceOptions.parse(given)
    assert repr(options) == str(options) == "SourceOptions('s3://b/x', 'jobs')"
    assert all(about["says"] for about in about_options())


def test_a_view_keeps_its_options_and_a_table_says_to_use_one(registered: SparkSession, place: Place) -> None:
    given = f"USING casque OPTIONS (path '{place[0]}', table 'archive')"
    registered.sql(f"CREATE OR REPLACE TEMPORARY VIEW finished {given}")
    try:
        assert shown(registered.table("finished")) == expected(place, Table.ARCHIVE)
    finally:
        registered.catalog.dropTempView("finished")
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW name USING casque"):
        registered.sql(f"CREATE TABLE lost {given}")
    registered.sql(f"CREATE TABLE lost ({ddl(Table.JOBS)}) {given}")  # Spark asks nobody when it is told the columns
    try:
        with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW name USING casque"):
            registered.table("lost").count()
    finally:
        registered.sql("DROP TABLE lost")


# --- Discovery ---


def test_a_broken_casque_hides_nobody_elses_source(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        textwrap.dedent("""
        import sys
        class Broken:
            def find_spec(self, name, path=None, target=None):
                if name == "casque.spark.source":
                    raise RuntimeError("broken")
        sys.meta_path.insert(0, Broken())
        import pyspark_casque
        print(hasattr(pyspark_casque, "DefaultSource"))
        """)
    )
    told = subprocess.run([sys.executable, tmp_path / "broken.py"], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


def test_without_pyspark_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import casque.spark

    for name in [name for name in sys.modules if name.startswith("casque.spark.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    with pytest.raises(NotInstalledError, match=r'pip install "casque\[spark\]"'):
        _ = casque.spark.register


def test_importing_casque_imports_neither_spark_nor_arrow() -> None:
    code = (
        "import sys, casque, casque.spark; print(sorted({'pyspark', 'pyarrow', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def test_an_archive_of_several_forms_is_read_once(registered: SparkSession, tmp_path: Path) -> None:
    """As lines, as Parquet and as both, by turns: casque's tables have each finish once; Spark alone reads Parquet."""
    forms: tuple[ArchiveFormat, ...] = ("both", "parquet", "jsonl")
    place: Place = (tmp_path / "queue").as_uri(), {}
    for number, form in enumerate(forms):
        clock = ManualClock(1_700_000_000_000 + number * 86_400_000)
        asyncio.run(varied(place[0], clock, 1, seed=number, archive_format=form))
    with Scan(place[0]) as scan:
        chosen = [one.key for one in scan.archive_objects()]
        finished = scan.table(list(scan.plan_archive()), Table.ARCHIVE).num_rows
    assert {key.rpartition(".")[2] for key in chosen} == {"jsonl", "parquet"}
    assert len(chosen) == len({key.rpartition(".")[0] for key in chosen}) < len(list(tmp_path.rglob("archive/*/*.*")))
    for table in ("archive", "attempts"):
        assert shown(reading(registered, place, table)) == expected(place, Table(table))
    with SyncQueue.open(place[0]) as queue:
        lines = list(queue.archive())
    assert len(lines) == finished == reading(registered, place, "archive").select("id", "position").distinct().count()
    plain = registered.read.option("recursiveFileLookup", "true").option("pathGlobFilter", "*.parquet")
    found = plain.parquet((tmp_path / "queue" / "archive").as_uri())
    rows = {(row.id, row.position): row for row in found.collect()}
    assert len(rows) == sum(job.position <= max(p for _, p in rows) for job in lines)
    for job in lines:
        if (row := rows.get((job.id, job.position))) is not None:
            assert (row.entrypoint, row.state, row.attempts) == (job.entrypoint, job.state.value, job.attempts)
            assert (None if row.payload is None else bytes(row.payload)) == (
                job.payload if job.blob_bytes is None else None
            )


@pytest.fixture(autouse=True, scope="module")
def _nothing_left_behind(spark: SparkSession) -> Iterator[None]:
    yield
    spark.catalog.clearCache()
