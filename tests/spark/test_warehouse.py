"""Warehouses: Delta tables that others read, and the root that holds them together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from casque.errors import CASConflictError, CorruptQueueError, InvalidInputError
from casque.spark.delta import DeltaLog, storage_options, table_uri
from casque.spark.files import File, frame, write
from casque.spark.pipeline import run
from casque.spark.store_ref import StoreRef
from casque.spark.warehouse import Root, Warehouse
from tests.spark.known_answers import Made
from tests.spark.test_pipeline import something_happens
from tests.support.servers import Server

pytestmark = pytest.mark.xdist_group("spark")
TABLE = "gold/things"
COLUMNS = {
    "date": "date",
    "id": "bigint",
    "at": "timestamp",
    "counts": "map<int,bigint>",
    "share": "decimal(28,9)",
    "more": "array<struct<x:bigint,y:string>>",
}
ROWS = """
    SELECT DATE'2026-02-15' AS date, id, timestamp_millis(1771150000123 + id) AS at, map(1, id) AS counts,
        CAST(id / 3 AS DECIMAL(28, 9)) AS share, if(id = 3, NULL, array(struct(id AS x, 'y' AS y))) AS more
    FROM range(5) UNION ALL SELECT DATE'2026-02-16', 9, NULL, NULL, NULL, NULL
"""


@pytest.fixture(params=["files", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StoreRef:
    """Where Spark writes itself, and where it needs a data source for it."""
    if request.param == "files":
        return StoreRef((tmp_path / "warehouse").as_uri())
    server: Server = request.getfixturevalue("s3_server")
    return StoreRef(server.fresh_url(), server.options)


def log_of(place: StoreRef, **more: str) -> DeltaLog:
    return DeltaLog(place, TABLE, {**COLUMNS, **more}, "one thing")


def test_a_frame_comes_back_as_it_was_written(spark: SparkSession, place: StoreRef) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    try:
        df = spark.sql(ROWS)
        files = write(df, place, TABLE, "run-1")
        assert log_of(place).commit(1, files, [], 0)
        known = log_of(place).files()
        assert max((one.first, one.last) for one in known) == ("2026-02-16", "2026-02-16"), "a date to a file"
        assert sum(one.rows for one in known) == 6
        back = frame(spark, place, TABLE, [one.path for one in known], COLUMNS)
        assert back.dtypes == df.dtypes
        assert sorted(back.collect(), key=lambda row: row.id) == sorted(df.collect(), key=lambda row: row.id)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    # What others read, without Spark and without casque.
    table = DeltaTable(table_uri(place, TABLE), storage_options=storage_options(place)).to_pyarrow_table()
    assert "2026-02-15 10:06:40.123000+00:00" in {str(row["at"]) for row in table.to_pylist()}
    assert sorted(table["id"].to_pylist()) == [0, 1, 2, 3, 4, 9]


def test_filters_reach_the_files(spark: SparkSession, place: StoreRef) -> None:
    files = [one.path for one in write(spark.sql(ROWS), place, TABLE, "run-1")]
    whole = frame(spark, place, TABLE, files, COLUMNS)
    for where, ids in {
        "date IN ('2026-02-16', '2026-02-17') AND date <=> '2026-02-16'": [9],
        "at >= timestamp_millis(1771150000125) AND share < 3": [2, 3, 4],
        "id = 9223372036854775807 OR id = 1": [1],
        "more IS NULL": [3, 9],
        "more[0].y = 'y' AND counts[1] = 4": [4],
        "date < '2026-02-15'": [],
    }.items():
        back = whole.where(where)
        assert sorted(row.id for row in back.collect()) == ids, where
        plan = back._jdf.queryExecution().executedPlan().toString()
        assert ("PushedFilters: [" if place.url.startswith("file") else "BatchScan") in plan


def file_of(name: str) -> File:
    day = {"date": "2026-02-15"}
    return File(f"{name}.parquet", 10, 1, day, day, {"date": 0})


def test_a_run_commits_once_to_a_table_and_on_the_version_it_was_made_for(place: StoreRef) -> None:
    first, late = log_of(place), log_of(place)
    assert first.commit(1, [file_of("a")], [], 0)
    assert late.commit(1, [file_of("again")], [], 0) is False, "somebody else has carried out this run"
    one, other = log_of(place), log_of(place)
    assert (one.run, other.run, one.version) == (1, 1, 1)
    [old] = one.files()
    assert one.commit(2, [file_of("b")], [old], 0)
    assert other.commit(2, [file_of("c")], [old], 0) is False
    slow, merging = log_of(place), log_of(place)
    [old] = slow.files()
    [mine] = merging.files()
    assert log_of(place).rewrite([file_of("merged")], [old], 0)
    assert merging.rewrite([file_of("late")], [mine], 0) is False, "another has merged it"
    with pytest.raises(CASConflictError, match="another writer changed gold/things"):
        slow.commit(3, [file_of("d")], [old], 0)
    slow = log_of(place)
    assert slow.run == 2
    assert log_of(place).rewrite([file_of("again")], log_of(place).files(), 0)
    assert slow.commit(3, [file_of("e")], [], 0), "who only adds files adds them to whatever is there"
    assert sorted(one.path for one in log_of(place).files()) == ["again.parquet", "e.parquet"]
    assert [one.path for one in log_of(place).files(version=1)] == ["a.parquet"], "an older version stays readable"


def test_a_table_gains_columns_and_keeps_those_it_has(place: StoreRef) -> None:
    assert log_of(place).commit(1, [file_of("a")], [], 0)
    wider = log_of(place, colour="string")
    assert len(wider.files()) == 1
    assert log_of(place).columns() == COLUMNS, "reading changes nothing"
    assert wider.commit(2, [], [], 0)
    assert log_of(place).columns() == {**COLUMNS, "colour": "string"}
    with pytest.raises(InvalidInputError, match=r"missing here: colour\. A table only ever gains columns"):
        log_of(place).check_columns()
    with pytest.raises(InvalidInputError, match=r"id \(bigint, here int\)"):
        DeltaLog(place, TABLE, {**COLUMNS, "id": "int", "colour": "string"}, "").check_columns()


def test_of_two_who_replace_the_root_at_once_one_loses(tmp_path: Path) -> None:
    warehouse = Warehouse((tmp_path / "warehouse").as_uri())
    one, other = warehouse.snapshot(), warehouse.snapshot()
    written = warehouse.write(one, Root(run=1))
    with pytest.raises(CASConflictError, match="another run of the pipeline"):
        warehouse.write(other, Root(run=1))
    assert warehouse.write(written, Root(run=2)).root.run == 2


def test_what_is_not_there_is_named(spark: SparkSession, tmp_path: Path, known_warehouse: Made) -> None:
    empty = Warehouse((tmp_path / "warehouse").as_uri())
    with pytest.raises(InvalidInputError, match=r"no tables yet: `casque pipeline run` makes them"):
        empty.read(spark, "gold/hours")
    with pytest.raises(InvalidInputError, match=r"no tables yet: `casque pipeline run` makes them"):
        empty.read(spark, "gold/ours")
    with pytest.raises(InvalidInputError, match=r"no table 'gold/ours' in this warehouse; there are: bronze/events"):
        Warehouse(known_warehouse.warehouse).read(spark, "gold/ours")
    with pytest.raises(InvalidInputError, match="has no column colour"):
        Warehouse(known_warehouse.warehouse).read(spark, "gold/hours", columns=["hour", "colour"])


def test_dates_and_columns_are_chosen_by_file(spark: SparkSession, known_warehouse: Made) -> None:
    warehouse = Warehouse(known_warehouse.warehouse)
    days = sorted({str(row.date) for row in warehouse.read(spark, "gold/minutes", columns=["date"]).collect()})
    assert len(days) > 1
    some = warehouse.read(spark, "gold/minutes", dates=days[:1], columns=["minute"])
    assert some.columns == ["minute"]
    assert {str(row.minute.date()) for row in some.collect()} == {days[0]}
    assert len(some.inputFiles()) < len(warehouse.read(spark, "gold/minutes").inputFiles())


def test_every_table_can_be_read_by_others_as_it_is(known_warehouse: Made) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    warehouse = Warehouse(known_warehouse.warehouse)
    snapshot = warehouse.snapshot()
    for name in snapshot.root.tables:
        rows = snapshot.arrow(name).num_rows
        uri = table_uri(warehouse.store_ref, name)
        table = DeltaTable(uri)
        assert len(table.to_pandas()) == rows, name
        assert polars.scan_delta(uri).collect().height == rows, name
        if files := table.file_uris():
            [(count,)] = duckdb.sql(f"SELECT count(*) FROM read_parquet({files!r})").fetchall()
            assert count == rows, name


def test_a_warehouse_of_an_older_casque_is_named_and_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    asyncio.run(something_happens(url, 3))
    (tmp_path / "warehouse").mkdir()
    (tmp_path / "warehouse" / "_cursor.json").write_text('{"format": 1}')
    with pytest.raises(InvalidInputError, match="make a new one from the archive"):
        run(spark, url, (tmp_path / "warehouse").as_uri())
    assert [path.name for path in (tmp_path / "warehouse").iterdir()] == ["_cursor.json"]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("{", "not the root of a warehouse"),
        ('{"format": 99}', "newer casque"),
        ('{"run": "x"}', "not the root of a warehouse"),
    ],
)
def test_damage_of_the_root_is_named(tmp_path: Path, body: str, problem: str) -> None:
    (tmp_path / "casque.json").write_text(body)
    with pytest.raises(CorruptQueueError, match=problem):
        Warehouse(tmp_path.as_uri()).snapshot()


def test_executors_do_not_share_memory() -> None:
    with pytest.raises(InvalidInputError, match="use file://"):
        Warehouse("memory://tables")


def test_credentials_are_not_shown() -> None:
    store_ref = StoreRef("s3://bucket/prefix?region=eu", {"secret_access_key": "hush"})
    assert "hush" not in repr(store_ref) + repr(Warehouse(store_ref.url, store_ref.options))
